"""A page on this machine that shows jobs: `trainyard ui`. Needs the extra ``ui``.

It asks the runner, and no scheduler, and knows nothing of the command line.
"""

"""A page on this machine that shows jobs: `shunter ui`. Needs the extra ``ui``.

It asks only the runner, never a scheduler directly, and does not depend on the command line.
"""

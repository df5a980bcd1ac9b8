"""Why a job failed or waits: rules over what its scheduler, its logs and the history say of it.

Not here: the words of schedulers for their states (``reasons.py`` of each), and how `trainyard why` prints.
"""

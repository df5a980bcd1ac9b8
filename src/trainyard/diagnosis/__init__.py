"""Why a job failed or waits: rules over what schedulers and logs say of it, without asking anything by itself.

Not here: the words that schedulers give their states (``reasons.py`` of each), and how `trainyard why` prints.
"""

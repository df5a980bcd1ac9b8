"""Why a job failed or waits: rules that read what its scheduler and its logs say.

Not here: the words of schedulers for their states (``reasons.py`` of each), what the history adds
(`shunter.why.explanation`), and how `shunter why` prints.
"""

"""The hosts of a job: what each finds below /opt/ml, and its container or process.

How containers and processes are started, followed and removed is in `schedulers/exec`.
"""

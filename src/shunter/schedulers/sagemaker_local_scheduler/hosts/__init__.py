"""The hosts of a job: what each finds below /opt/ml, and its container or process.

How processes are started and stopped is in `schedulers/supervisor`.
"""

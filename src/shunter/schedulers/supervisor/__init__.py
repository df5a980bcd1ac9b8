"""The executor of processes: job directory, supervisor, recovery, replicas and their logs.

What runs, and with which options, is decided by the schedulers `local_cwd` and `sagemaker_local`.
"""

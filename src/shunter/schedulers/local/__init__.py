"""The scheduler `local_cwd`: options, request, submission and description of jobs that are processes here.

How the processes are run, recovered and logged is in `schedulers/exec/process`.
"""

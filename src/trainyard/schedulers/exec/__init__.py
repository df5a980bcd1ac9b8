"""What runs jobs on this machine, below the schedulers: processes in `process`, containers in `container`.

Nothing here knows options of schedulers or a service's requests; no module here imports a scheduler.
"""

"""`local_docker`: options, and the request for the containers of a job.

How containers are run, judged, read and removed is in `schedulers/exec/container`.
"""

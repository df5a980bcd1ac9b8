"""The embedded scheduler: a job's replicas are processes of this machine, under a detached supervisor."""

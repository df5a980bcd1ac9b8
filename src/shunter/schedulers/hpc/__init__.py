"""What the schedulers of clusters share: native commands here or over ssh, a job's folder on shared storage.

`slurm_scheduler`, `lsf_scheduler` and `sge_scheduler` fill the hooks of `HpcScheduler`; README.md says how to
add another one. Nothing here names a native command, option or state.
"""

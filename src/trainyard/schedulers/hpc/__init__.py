"""What the schedulers of clusters share: native commands here or over ssh, a job's folder on shared storage.

A backend's folder (`slurm`, `lsf`, `sge`) fills the hooks of `HpcScheduler`; this folder imports none of
them.

A cluster is added so (`schedulers/sge/` is the shortest example):

1. `options.py`: a dataclass that inherits `HpcOpts`.
2. `request.py`: ``make_script(plan, opts)``, a pure function that returns the submit command and the script.
   The lines that start replicas come from `JobPlan`.
3. `observe.py`: pure functions that turn the output of the native queries into `NativeJob` values. States
   that it does not know stay open and keep their own name.
4. `scheduler.py`: a subclass of `HpcScheduler` with the hooks listed there.
5. `doctor.py`, `rules.py`: as far as it needs them.

What is *not* here: anything that names a native command, option or state.
"""

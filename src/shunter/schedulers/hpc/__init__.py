"""What the schedulers of clusters share: native commands here or over ssh, a job's folder on shared storage.

A backend's folder (`slurm`, `lsf`, `sge`) fills the hooks of `HpcScheduler`; this folder imports none of
them.

To add a cluster (`schedulers/sge/` is the shortest example), write:

1. `options.py`: a dataclass that inherits `HpcOpts`.
2. `request.py`: ``make_script(plan, opts)``, a pure function that returns the submit command and the script.
   `JobPlan` makes the lines that start replicas: `JobPlan.start_lines` all of them, or
   `JobPlan.around_job` and `JobPlan.replica` where the cluster has a program for it.
3. `observe.py`: pure functions that turn the output of the native queries into `NativeJob` values. States
   that it does not know stay open and keep their own name.
4. `scheduler.py`: a subclass of `HpcScheduler` with the hooks at its beginning; the methods behind them help.
5. `reasons.py`: what to do about refusals; `doctor.py`, `rules.py`: as far as it needs them.

What is *not* here: anything that names a native command, option or state.
"""

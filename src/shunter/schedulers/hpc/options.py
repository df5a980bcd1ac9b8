"""Options that every cluster has."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.schedulers.supervision import HangOpts, NotifyOpts, RetryOpts
from shunter.specs.options import ADDRESS, CREDENTIALS, DESTINATION, FILES_OUTSIDE, PROGRAM, option

#: What an amount of memory or GPUs applies to at a site; the third unit is a slot, or core.
PER_JOB, PER_HOST = "job", "host"


@dataclass
class HpcOpts(NotifyOpts, RetryOpts, HangOpts):
    """How a job reaches a cluster; a backend's options inherit these."""

    host: str | None = option(
        "login node to submit on, as ssh knows it, such as me@login1; by default this machine",
        default=None,
        needs_trust=ADDRESS,
    )
    shared_dir: str | None = option(
        "folder on storage that all nodes share, for code, logs and results; ~/.shunter there by default",
        default=None,
        needs_trust=DESTINATION,
    )
    workdir: str | None = option(
        "directory on the cluster to run in; by default the workspace, or else the current directory",
        default=None,
        needs_trust=FILES_OUTSIDE,
    )
    env: dict[str, str] | None = option("more environment variables of all replicas", default=None)
    copy_env: list[str] | None = option(
        "patterns of variables of this machine to copy into the job; by default PATH and what an activated "
        "environment sets, unless host is given",
        default=None,
        needs_trust=CREDENTIALS,
    )
    prologue: list[str] | None = option(
        "lines of shell to run on each node before the program, such as 'module load cuda'",
        default=None,
        needs_trust=PROGRAM,
    )
    array: bool = option(
        "run the replicas independently, as an array job: each starts as soon as there is room for it; by "
        "default they run together and know each other",
        default=False,
    )
    max_running: int | None = option("how many replicas of an array run at a time", default=None)
    chain: int = option(
        "number of submissions in a row; each continues from the last checkpoint if the time limit ended the "
        "one before",
        default=1,
    )
    grace_period: float = option(
        "seconds between the warning before the time limit, or a cancellation, and the end of the program",
        default=60.0,
    )
    follow_up_args: list[str] | None = option(
        "more native options for the small job that runs after this one, for notify and retry, such as "
        "--partition=cpu",
        default=None,
        needs_trust=PROGRAM,
    )

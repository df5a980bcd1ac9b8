"""Options of the local scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.schedulers.supervision import HangOpts, NotifyOpts, RetryOpts, StopOpts
from shunter.specs.options import PLACE_OUTSIDE, PROGRAM, SECONDS, option


@dataclass
class ProcessOpts:
    """How the processes of a job are run."""

    log_dir: str | None = option(
        "directory for the replicas' logs, as LOG_DIR/APP_ID/ROLE/REPLICA; in the state directory by default",
        default=None,
        needs_trust=PLACE_OUTSIDE,
    )
    prepend_cwd: bool = option(
        "put the working directory first in PATH, so that programs in it win",
        default=False,
        needs_trust=PROGRAM,
    )
    auto_set_cuda_visible_devices: bool = option(
        "hide this machine's GPUs from roles with gpu=0; roles that ask for GPUs get their own in any case"
        " (CUDA_VISIBLE_DEVICES)",
        default=False,
    )
    timeout: float | None = option("stop the job after this many seconds", default=None, time_limit=SECONDS)
    chain: int = option(
        "maximum number of attempts, each with its own timeout: when that ends one, the next continues from"
        " the last checkpoint; a failure of the program ends the chain",
        default=1,
    )
    array: bool = option(
        "run the replicas independently: each starts as soon as there is room for it, and is restarted"
        " alone; by default they start together",
        default=False,
    )
    max_running: int | None = option(
        "how many replicas of an array run at a time; as many as CPUs and GPUs suffice for by default",
        default=None,
    )
    slots: str | None = option(
        "wait until the CPUs and GPUs that the roles ask for are free, in a queue with your other jobs that"
        " have this option: 'auto' for all of this machine's, or how many there are, as CPUS or CPUS:GPUS",
        default=None,
    )


@dataclass
class LocalOpts(HangOpts, RetryOpts, NotifyOpts, StopOpts, ProcessOpts):
    """How a job runs on this machine; TorchX's options come first."""

"""Starting replicas on several hosts where the cluster has no program for it."""

from __future__ import annotations

import posixpath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainyard.schedulers.hpc.request import JobPlan
    from trainyard.specs.app import Role

SPREAD_SCRIPT = "spread.sh"
#: The variable with the hosts of a submission, in lines "HOST SLOTS".
HOSTS = "TRAINYARD_HOSTS"


def spread_script() -> bytes:
    """Return the script that places replicas on hosts and starts them there."""
    from importlib.resources import files

    return files(__package__).joinpath(SPREAD_SCRIPT).read_bytes()


def cpus_of(role: Role) -> int:
    """Return how many cpus, which are slots, each replica of a role gets: at least one."""
    return max(role.resource.cpu, 1)


def spread_command(plan: JobPlan, start: Sequence[str], *, retries: int = 0, lost: str = "") -> list[str]:
    """Return the command that starts all replicas of a submission.

    Args:
        plan: the job; a replica needs as many slots as cpus.
        start: begins the command that runs a line of shell on another host; the host and the line follow.
        retries: how often all are restarted after a failure.
        lost: what that command writes when it has lost the host, as a pattern of grep.
    """
    needs = ",".join(f"{role.name}={cpus_of(role)}" for role in plan.app.roles)
    script = posixpath.join(plan.folder, SPREAD_SCRIPT)
    words = ["--lost", lost] if lost else []
    grace = f"{max(plan.opts.grace_period, 1):.0f}"
    return plan.around_job(
        "sh", script, "--needs", needs, "--grace", grace, *words, "--", *start, retries=retries
    )

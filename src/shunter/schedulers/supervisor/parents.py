"""The jobs that another one waits for (``run --after``), as its supervisor sees them.

Only a parent's directory is read, as by every other reader. A parent whose supervisor was killed is ended.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

from shunter.schedulers.supervisor import recovery
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.job_watch import POLL_SECONDS, JobWatch
from shunter.specs.status import AppState, is_terminal


class Parents:
    """Jobs to wait for.

    Args:
        wanted: of each: ``app_id``, ``job_dir``, and whether ``any_end`` will do.

    Attributes:
        waits_for: which of them have not ended, in words.
        problem: why the job can never start; "" as long as it can.
    """

    def __init__(self, wanted: Sequence[dict[str, Any]]) -> None:
        self._open = list(wanted)
        self._watches = {parent["app_id"]: JobWatch(JobDirectory(parent["job_dir"]), []) for parent in wanted}
        self.waits_for = ""
        self.problem = ""

    def are_done(self) -> bool:
        """Check the parents, and tell whether all of them have ended as required."""
        left = []
        for parent in self._open:
            problem, is_open = _judge(parent)
            self.problem = self.problem or problem
            if is_open:
                left.append(parent)
            else:
                self._watches.pop(parent["app_id"]).close()
        self._open = left
        self.waits_for = "waits for " + ", ".join(parent["app_id"] for parent in left) if left else ""
        return not left and not self.problem

    def wait(self, also: int, milliseconds: float | None) -> set[int]:
        """Wait until something may have changed; returns the file descriptors that are readable.

        ``also`` is another one to wait for, ``milliseconds`` the longest wait; None for no limit.
        """
        poller = select.poll()
        poller.register(also, select.POLLIN)
        have_to = [watch.has_to_poll() for watch in self._watches.values()]
        if any(have_to):
            limit = POLL_SECONDS * 1000
            milliseconds = limit if milliseconds is None else min(limit, milliseconds)
        for watch in self._watches.values():
            for fd in watch.descriptors():
                poller.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(milliseconds)}
        for watch in self._watches.values():
            if ready.intersection(watch.descriptors()):
                watch.wait(0)
        return ready

    def close(self) -> None:
        """Close what is open."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()


def _judge(parent: dict[str, Any]) -> tuple[str, bool]:
    """Return why a parent keeps its child from starting, or "", and whether it may still end."""
    job = JobDirectory(parent["job_dir"])
    app_id = parent["app_id"]
    state = recovery.current_state(job)
    if state is None:  # only what has ended can be deleted
        if parent["any_end"]:
            return "", False
        return f"{app_id}, which it waited for, was deleted, so how it ended is not known", False
    found = AppState[state["state"]]
    if not is_terminal(found):
        if found is AppState.UNKNOWN:
            return f"the outcome of {app_id}, which it waited for, cannot be read", False
        return "", True
    if parent["any_end"] or found is AppState.SUCCEEDED:
        return "", False
    msg = f": {state['msg']}" if state.get("msg") else ""
    return f"{app_id}, which it waited for, is {found.name}{msg}", False

"""Waiting for a change of a job, without polling where the system notifies."""

from __future__ import annotations

import os
import select
import time

from shunter import system
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.recovery import has_ended, supervisor_of
from shunter.system import file_events

#: How often to poll where the system cannot notify, and while a supervisor starts.
POLL_SECONDS = 0.05
LONGEST_WAIT = 86400.0


class JobWatch:
    """Wakes up when a job's state or one of these files changes, or its supervisor ends.

    Args:
        job: the job.
        paths: the files. They need not exist yet. If their directories do not exist either, it polls.
        only_end: whether it need not wake up before the supervisor has ended. It then opens no queue of file
            events, which the kernel takes 15 ms to close.
    """

    def __init__(self, job: JobDirectory, paths: list[str], *, only_end: bool = False) -> None:
        self._job = job
        self._paths = set(paths)
        self._poller = select.poll()
        self._supervisor = -1
        self._watch_supervisor()
        is_enough = only_end and self._supervisor >= 0
        self._events = None if is_enough else system.open_file_events()
        self.changed: set[str] = set(paths)
        self._directories: dict[int, str] = {}
        self._blind = self._events is None and not is_enough
        if self._events is not None:
            directories = {
                os.path.dirname(path): file_events.MODIFIED | file_events.CREATED for path in paths
            }
            directories[job.path] = file_events.MOVED_TO
            watches = {path: self._events.add(path, mask) for path, mask in directories.items()}
            self._directories = {watch: path for path, watch in watches.items() if watch is not None}
            self._blind = None in watches.values()
            self._poller.register(self._events.fileno(), select.POLLIN)

    def wait(self, timeout: float | None) -> None:
        """Block until something changes, or ``timeout`` seconds have passed.

        ``changed`` then holds the files that have grown, or all files if that is not known.
        """
        limit = None if timeout is None else min(timeout, LONGEST_WAIT)  # the kernel counts in an int
        if self.has_to_poll():
            limit = POLL_SECONDS if timeout is None else min(timeout, POLL_SECONDS)
        ready = [fd for fd, _ in self._poller.poll(None if limit is None else max(0.0, limit) * 1000)]
        if self._supervisor in ready:
            self._poller.unregister(self._supervisor)
            os.close(self._supervisor)
            self._supervisor = -1
        changes = [] if self._events is None else self._events.read_names()
        if self._blind or any(watch < 0 for watch, _ in changes):
            self.changed = self._paths
        else:
            entries = {
                (self._directories[watch], name) for watch, name in changes if watch in self._directories
            }
            self.changed = {os.path.join(*entry) for entry in entries} & self._paths

    def has_to_poll(self) -> bool:
        """Tell whether the caller has to poll, since some changes make none of `descriptors` readable."""
        if self._supervisor < 0:
            self._watch_supervisor()
        return self._blind or self._supervisor < 0

    def descriptors(self) -> list[int]:
        """Return descriptors that become readable at a change, for callers that wait for other things too.

        ``wait(0)`` then processes the change.
        """
        events = [] if self._events is None else [self._events.fileno()]
        return events if self._supervisor < 0 else [*events, self._supervisor]

    def close(self) -> None:
        """Close what is open."""
        if self._events is not None:
            self._events.close()
        if self._supervisor >= 0:
            os.close(self._supervisor)
            self._supervisor = -1

    def _watch_supervisor(self) -> None:
        state = self._job.read_state()
        supervisor = None if state is None or self._job.is_over(state) else supervisor_of(self._job, state)
        if supervisor is None:
            return
        handle = system.open_process(supervisor.pid)
        if handle < 0:
            return
        if supervisor.is_alive():
            self._supervisor = handle
            self._poller.register(handle, select.POLLIN)
        else:
            os.close(handle)


def wait_for_end(job: JobDirectory, timeout: float | None) -> None:
    """Block until the job has ended or ``timeout`` seconds have passed."""
    deadline = None if timeout is None else time.monotonic() + timeout
    watch = JobWatch(job, [], only_end=True)
    try:
        while not has_ended(job):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            watch.wait(left)
    finally:
        watch.close()

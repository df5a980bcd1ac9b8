"""Slots: CPUs and GPUs of this machine, which jobs with the option `slots` take before they start.

The queue is a directory with one ticket for each job, or each independent replica, that holds slots or waits
for some. A ticket is a small file that its supervisor keeps locked (flock(2)): the kernel frees the lock when
the process ends, however it ends, so that no slot is lost. A process that finds a ticket whose lock is free
ends what is left of its job (`recovery`), then removes the ticket. All of this happens under the lock of the
directory, which is held for moments only.

Slots are granted in order of arrival. A later job starts first only if that takes nothing from earlier ones.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from typing import Any

from shunter import system
from shunter.errors import StateStoreError
from shunter.paths import xdg
from shunter.schedulers.supervisor import recovery
from shunter.schedulers.supervisor.documents import read_json
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.system import file_events
from shunter.system.file_events import FileEvents
from shunter.system.identity import Process, machine, myself
from shunter.system.locks import is_locked

#: How often to look where the system cannot notify, and while a killed job is being cleaned up.
POLL_SECONDS = 0.05
MOST_HOLDERS = 3
_SUFFIX = ".ticket"


class Ticket:
    """A place in the queue, and the slots that were granted to it.

    Attributes:
        cpus, gpus: how many it needs.
        granted: the ids of its GPUs, once it has been granted its slots; None before.
        waits_for: why no slots have been granted yet, in words.
    """

    def __init__(self, path: str, lock: int, cpus: int, gpus: int) -> None:
        self.path = path
        self.lock = lock
        self.cpus = cpus
        self.gpus = gpus
        self.granted: list[str] | None = None
        self.waits_for = ""


class SlotQueue:
    """The queue of this machine's slots, as the supervisor of one job sees it.

    Args:
        folder: the directory of tickets; made if it does not exist.
        cpus: how many CPUs may be taken in all.
        gpus: the ids of the GPUs that may be taken.
        app_id, job_dir: the job.
        within: the directory of the job that submitted it, and may wait for it: it shares that job's slots.

    Raises:
        OSError: the directory cannot be made, or is another user's.
    """

    def __init__(
        self, folder: str, cpus: int, gpus: list[str], app_id: str, job_dir: str, within: str = ""
    ) -> None:
        self.folder = folder
        self.cpus = cpus
        self.gpus = gpus
        self._within = within
        self._owner = {"app_id": app_id, "job_dir": job_dir, "supervisor": myself()}
        self._events: FileEvents | None = None
        self._supervisors: dict[int, int] = {}
        self._has_to_poll = False
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.stat(folder).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", folder)

    # ---- taking and giving back

    def join(self, cpus: int, gpus: int) -> Ticket:
        """Take a place at the end of the queue."""
        with _Lock(self.folder):
            numbers = [int(name.partition("-")[0]) for name in self._names()]
            name = f"{max(numbers, default=0) + 1:012d}-{os.getpid()}{_SUFFIX}"
            path = os.path.join(self.folder, name)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            ticket = Ticket(path, lock, cpus, gpus)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._write(ticket)
            except OSError:
                os.unlink(path)
                os.close(lock)
                raise
        return ticket

    def claim(self, ticket: Ticket) -> bool:
        """Grant a ticket its slots if they are free, and tell whether it has them."""
        if ticket.granted is not None:
            return True
        self._watch_changes()
        with _Lock(self.folder):
            others = [each for each in self._others(ticket) if each["job_dir"] != self._within]
            taken = [each for each in others if each["granted"] is not None]
            ahead = [
                each for each in others if each["granted"] is None and each["number"] < _number(ticket.path)
            ]
            busy = {gpu for each in taken for gpu in each["granted"]}
            free = [gpu for gpu in self.gpus if gpu not in busy]
            free_cpus = self.cpus - sum(each["cpus"] for each in taken)
            lacks_gpus = 0 < ticket.gpus > len(free) - sum(each["gpus"] for each in ahead)
            lacks_cpus = 0 < ticket.cpus > free_cpus - sum(each["cpus"] for each in ahead)
            if not lacks_gpus and not lacks_cpus:
                ticket.granted, ticket.waits_for = free[: ticket.gpus], ""
                self._write(ticket)
                return True
            lacking = []
            if lacks_gpus:
                lacking.append(f"{ticket.gpus} of {len(self.gpus)} GPUs ({len(free)} free)")
            if lacks_cpus:
                lacking.append(f"{ticket.cpus} of {self.cpus} CPUs ({max(free_cpus, 0)} free)")
            held = [each["app_id"] for each in taken if each["granted" if lacks_gpus else "cpus"]]
            words = f"waits for {' and '.join(lacking)}"
            words += f"; held by {_listed(held)}" if held else ""
            words += f"; behind {_listed([each['app_id'] for each in ahead])}" if ahead else ""
            ticket.waits_for = words
        self._watch_supervisors(others)
        return False

    def give_back(self, ticket: Ticket) -> None:
        """Leave the queue, give the slots back, and wake the jobs that wait."""
        with _Lock(self.folder):
            try:
                os.unlink(ticket.path)
            except OSError:  # it has been removed already
                pass
            os.close(ticket.lock)
            self._wake_others()

    def close(self) -> None:
        """Stop watching the queue."""
        if self._events is not None:
            self._events.close()
            self._events = None
        for handle in self._supervisors.values():
            os.close(handle)
        self._supervisors.clear()

    # ---- waiting

    def descriptors(self) -> list[int]:
        """Return descriptors that become readable when slots may be free; then call `seen` and `claim`."""
        events = [] if self._events is None else [self._events.fileno()]
        return [*events, *self._supervisors.values()]

    def seen(self) -> None:
        """Take note of the events of `descriptors`."""
        if self._events is not None:
            self._events.read_names()

    def seconds_to_wait(self) -> float | None:
        """Return the seconds after which to look in any case; None where every change is notified."""
        return POLL_SECONDS if self._has_to_poll or self._events is None else None

    def _watch_changes(self) -> None:
        """Watch the directory; called before it is read, so that no change is lost in between."""
        if self._events is None:
            self._events = system.open_file_events()
            if self._events is not None and self._events.add(self.folder, file_events.MOVED_TO) is None:
                self._events.close()
                self._events = None

    def _watch_supervisors(self, others: list[dict[str, Any]]) -> None:
        """Watch for the end of other supervisors: a killed one does not announce that it frees its slots."""
        here = myself().pid
        alive = {each["pid"] for each in others if not each["is_ending"]} - {here}
        self._has_to_poll = any(each["is_ending"] for each in others)
        for pid in [pid for pid in self._supervisors if pid not in alive]:
            os.close(self._supervisors.pop(pid))
        for each in others:
            if each["pid"] not in alive or each["pid"] in self._supervisors:
                continue
            handle = system.open_process(each["pid"])
            if handle >= 0 and each["process"].is_alive():
                self._supervisors[each["pid"]] = handle
                continue
            self._has_to_poll = True  # it ended just now, or the system cannot notify
            if handle >= 0:
                os.close(handle)

    # ---- tickets

    def _write(self, ticket: Ticket) -> None:
        data = {**self._owner, "cpus": ticket.cpus, "gpus": ticket.gpus, "granted": ticket.granted}
        text = json.dumps(data).encode()
        os.ftruncate(ticket.lock, 0)
        os.pwrite(ticket.lock, text, 0)

    def _names(self) -> list[str]:
        """Return the names of tickets. Anything else in the directory is left alone."""
        return sorted(
            name
            for name in os.listdir(self.folder)
            if name.endswith(_SUFFIX) and name.partition("-")[0].isdecimal() and self._is_own_file(name)
        )

    def _is_own_file(self, name: str) -> bool:
        try:
            facts = os.lstat(os.path.join(self.folder, name))
        except OSError:
            return False
        return stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()

    def _others(self, own: Ticket) -> Iterator[dict[str, Any]]:
        """Yield the other tickets that hold slots or wait for some; remove those of jobs that are over."""
        for name in self._names():
            path = os.path.join(self.folder, name)
            if path == own.path:
                continue
            is_held = is_locked(path)
            found, process = _read_ticket(path)
            if process is None:
                if not is_held:  # its supervisor was killed while it wrote it, or something else damaged it
                    _remove(path)
                continue
            if not is_held and (found["granted"] is None or _is_over(found["job_dir"])):
                _remove(path)
                continue
            yield {
                **found,
                "number": _number(path),
                "process": process,
                "pid": process.pid,
                "is_ending": not is_held,
            }

    def _wake_others(self) -> None:
        temporary = os.path.join(self.folder, f"changed.{os.getpid()}")
        try:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            os.replace(temporary, os.path.join(self.folder, "changed"))
        except OSError:  # they notice when this process ends
            pass


class _Lock:
    """The lock of the directory, as a context manager."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "lock")

    def __enter__(self) -> None:
        self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)


def slots_dir() -> str:
    """Return the directory of the queue: one for each user of a machine, whichever state directory is used.

    ``SHUNTER_SLOTS_DIR`` names another one of this user's.
    """
    named = os.environ.get("SHUNTER_SLOTS_DIR")
    if named:
        return os.path.abspath(os.path.expanduser(named))
    state = xdg("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "shunter", "slots", str(machine()["host"]))


def _read_ticket(path: str) -> tuple[dict[str, Any], Process | None]:
    """Return what a ticket says, and its supervisor; None for that if the ticket is damaged."""
    try:
        found = read_json(path) or {}
    except StateStoreError:
        return {}, None
    granted = found.get("granted")
    is_whole = all(isinstance(found.get(key), int) for key in ("cpus", "gpus"))
    is_whole &= all(isinstance(found.get(key), str) for key in ("app_id", "job_dir"))
    is_whole &= granted is None or (
        isinstance(granted, list) and all(isinstance(each, str) for each in granted)
    )
    return found, Process.from_json(found.get("supervisor")) if is_whole else None


def _is_over(job_dir: str) -> bool:
    """Tell whether a job whose supervisor has ended is over, after ending what is left of the job."""
    try:
        return recovery.has_ended(JobDirectory(job_dir))
    except (OSError, StateStoreError):
        return True


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _number(path: str) -> int:
    return int(os.path.basename(path).partition("-")[0])


def _listed(app_ids: list[str]) -> str:
    names = list(dict.fromkeys(app_ids))
    more = f" and {len(names) - MOST_HOLDERS} more" if len(names) > MOST_HOLDERS else ""
    return ", ".join(names[:MOST_HOLDERS]) + more

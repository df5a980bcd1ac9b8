"""What `linux` does, for macOS and other systems of POSIX: with psutil, and by polling.

docs/schedulers/local_cwd.md says what is weaker. Use the functions by way of `shunter.system`.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from typing import IO

import psutil

from shunter.system.interface import FileEvents, ProcessFacts, ProcessPlace, ProcessUsage

#: Whether orphaned descendants of a process can become its children (`become_subreaper`).
HAS_SUBREAPER = False
#: Whether the processes in a local daemon's containers are processes of this machine.
SEES_CONTAINER_PROCESSES = False
#: Whether a process can have an /opt/ml, a host name and names of hosts that others do not see.
HAS_NAMESPACES = False

#: Where the system's programs are searched, whatever the user's PATH is.
_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
_ZEROS = bytes(1 << 20)
_BLOCK = 1 << 20
_POLL_SECONDS = 0.02

_boot: list[str] = []


# ---- processes


def boot_id() -> str:
    """Return what changes with every boot of this machine."""
    if not _boot:
        is_darwin = sys.platform == "darwin"
        _boot.append(_output("sysctl", "-n", "kern.bootsessionuuid").strip() if is_darwin else "")
    return _boot[0]


def process_facts(pid: int) -> ProcessFacts | None:
    """Return the facts about a process, or None if it has ended. A zombie has ended."""
    try:
        return _facts_of(psutil.Process(pid))
    except psutil.Error:
        return None


def start_of(pid: int) -> int | None:
    """Return when a process started, in hundredths of a second since the epoch; None if it has ended."""
    facts = process_facts(pid)
    return None if facts is None else facts.start


def all_processes() -> list[ProcessFacts]:
    """Return the facts about all processes that have not ended."""
    return [facts for process in psutil.process_iter() if (facts := _facts_of(process)) is not None]


def children_of(pid: int) -> list[ProcessFacts]:
    """Return the facts about the children of a process, in the order in which they started."""
    return sorted((facts for facts in all_processes() if facts.parent == pid), key=lambda facts: facts.start)


def _facts_of(process: psutil.Process) -> ProcessFacts | None:
    try:
        status = process.status()
        if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        what = "stopped" if status == psutil.STATUS_STOPPED else ""
        group, session = os.getpgid(process.pid), os.getsid(process.pid)
        start = int(process.create_time() * 100)
        return ProcessFacts(process.pid, process.ppid(), group, session, start, what)
    except (psutil.Error, ProcessLookupError, PermissionError):
        return None


def process_usage(roots: Collection[int]) -> dict[int, ProcessUsage]:
    """Return what these processes use, each with its descendants."""
    found = {}
    for root in roots:
        cpu, memory = 0.0, 0
        try:
            first = psutil.Process(root)
            for process in [first, *first.children(recursive=True)]:
                times = process.cpu_times()
                cpu += times.user + times.system
                memory += process.memory_info().rss
        except psutil.Error:
            continue
        found[root] = ProcessUsage(cpu, memory, 0, 0)
    return found


def network_bytes() -> tuple[int, int]:
    """Return how many bytes this machine has received and sent."""
    counters = psutil.net_io_counters()
    return counters.bytes_recv, counters.bytes_sent


def has_mark(pids: Sequence[int], variable: str, directory: str) -> set[int]:
    """Return which processes have ``NAME=VALUE`` in their environment, as far as the system shows it."""
    name, _, value = variable.partition("=")
    found = set()
    for pid in pids:
        try:
            if psutil.Process(pid).environ().get(name) == value:
                found.add(pid)
        except (psutil.Error, OSError):
            continue
    return found


def process_place(pid: int) -> ProcessPlace | None:
    """Return where a process runs: None, since that is not known."""
    return None


def handles_sigterm(pid: int) -> bool:
    """Tell whether a process has a handler for SIGTERM. True if that is not known."""
    return True


def open_process(pid: int) -> int:
    """Return a descriptor of a process that becomes readable when it ends, or -1 if there is none."""
    return -1


def signal_process(pid: int, handle: int, signum: int) -> None:
    """Signal the process behind a descriptor of `open_process`, or the pid if that is -1.

    Raises:
        ProcessLookupError: it has ended.
    """
    os.kill(pid, signum)


def wait_without_reaping(pid: int) -> None:
    """Wait for the end of a child, and leave it a zombie whose pid is not given to another process."""
    while process_facts(pid) is not None:
        time.sleep(_POLL_SECONDS)


def become_subreaper() -> None:
    """Do nothing: orphaned descendants become children of the first process."""


def die_with_parent(parent: int) -> None:
    """Do nothing: the next process that looks at the job ends what its supervisor has left behind."""


def set_title(title: str) -> None:
    """Do nothing: `ps` goes on showing the command line."""


def _output(*command: str) -> str:
    """Return what a program of the system writes, or "" if it cannot be started."""
    environ = {"PATH": _PATH, "LC_ALL": "C", "TZ": "UTC0"}
    try:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
        ) as process:
            return process.communicate()[0].decode("utf-8", "surrogateescape")
    except OSError:
        return ""


# ---- kills by the kernel's out-of-memory killer


def out_of_memory_counters() -> list[tuple[str, str]]:
    """Return the files that count such kills: there are none."""
    return []


def kernel_log_has(text: str) -> bool:
    """Tell whether the kernel log holds a text. False if it cannot be read."""
    return False


# ---- file events


def open_file_events() -> FileEvents | None:
    """Return None: callers look at the files from time to time."""
    return None


# ---- files


def reserve_space(fd: int, size: int) -> None:
    """Reserve space on the disk for a file, so that later writes to it cannot fail for lack of space."""
    while size > 0:
        size -= os.write(fd, _ZEROS[:size])


def share_blocks(source: int, target: int) -> None:
    """Let an empty file share the content of another one until either is written to.

    Raises:
        OSError: the file system cannot do that.
    """
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def send_file(source: int, target: int, offset: int, count: int) -> int:
    """Copy content of a file to the position of another one. Returns how many bytes, 0 at the end."""
    return os.write(target, os.pread(source, min(count, _BLOCK), offset))


def data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of those parts of a file that are not holes: here all of it."""
    if size:
        yield 0, size


def has_writer(path: str) -> bool:
    """Tell whether a process has a file open for writing. False if that is not known."""
    return False


def unnamed_file() -> IO[bytes]:
    """Return a new file that is gone when it is closed."""
    return tempfile.NamedTemporaryFile()


def path_of_open_file(file: IO[bytes]) -> str:
    """Return a path by which a file of `unnamed_file` can be opened again."""
    return file.name


def memory_directory() -> str:
    """Return a directory whose files are in memory, never on a disk; "" without one."""
    return ""


def is_pipe_path(path: str) -> bool:
    """Tell whether a path names an open descriptor, as a shell's ``<(...)`` does."""
    return path.startswith("/dev/")


# ---- network


def routes() -> list[tuple[int, int]]:
    """Return the addresses and masks of this machine's IPv4 routes: a daemon's networks are not on it."""
    return []


def user_of_peer(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the uid of the process at the other end of a TCP connection; None: the system cannot tell."""
    return None

"""What `linux` does, for macOS and other systems of POSIX: with `ps`, by polling, and with files as locks.

docs/schedulers/local_cwd.md says what is weaker. Use the functions by way of `shunter.system`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from typing import IO

from shunter.system.interface import FileEvents, ProcessFacts, ProcessPlace, ProcessUsage

#: Whether orphaned descendants of a process can become its children (`become_subreaper`).
HAS_SUBREAPER = False
#: Whether the processes in a local daemon's containers are processes of this machine.
SEES_CONTAINER_PROCESSES = False
#: Whether a process can have an /opt/ml, a host name and names of hosts that others do not see.
HAS_NAMESPACES = False

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
#: How long a start time from `ps` is trusted, in seconds, while the process's pid exists.
_REMEMBER_SECONDS = 1.0
#: Where the system's programs are searched, whatever the user's PATH is.
_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
_ZEROS = bytes(1 << 20)
_BLOCK = 1 << 20
_POLL_SECONDS = 0.02

_starts: dict[int, tuple[float, int | None]] = {}
_boot: list[str] = []


# ---- processes


def boot_id() -> str:
    """Return what changes with every boot of this machine; "" where the system does not say."""
    if not _boot:
        _boot.append(
            _output("sysctl", "-n", "kern.bootsessionuuid").strip() if sys.platform == "darwin" else ""
        )
    return _boot[0]


def process_facts(pid: int) -> ProcessFacts | None:
    """Return the facts about a process, or None if it has ended. A zombie has ended."""
    if not _exists(pid):
        return None
    found = _ask_ps("-p", str(pid))
    if found is None:  # there is no `ps` here, or it does not know these columns
        return ProcessFacts(pid, 0, 0, _session_of(pid) or 0, 0, "")
    return next(iter(found), None)


def start_of(pid: int) -> int | None:
    """Return when a process started, as the number that its date and time make, or None if it has ended."""
    if pid != os.getpid() and not _exists(pid):
        _starts.pop(pid, None)
        return None
    when, start = _starts.get(pid, (0.0, None))
    now = time.monotonic()
    if start is None or (now - when > _REMEMBER_SECONDS and pid != os.getpid()):
        facts = process_facts(pid)
        start = None if facts is None else facts.start
        _starts[pid] = now, start
    return start


def all_processes() -> list[ProcessFacts]:
    """Return the facts about all processes that have not ended."""
    return _ask_ps("-A") or []


def children_of(pid: int) -> list[ProcessFacts]:
    """Return the facts about the children of a process, in the order in which they started."""
    return sorted((facts for facts in all_processes() if facts.parent == pid), key=lambda facts: facts.start)


def process_usage(roots: Collection[int]) -> dict[int, ProcessUsage]:
    """Return what these processes use, each with its descendants: nothing unless psutil is installed."""
    try:
        import psutil
    except ImportError:
        return {}
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
    """Return how many bytes this machine has received and sent; nothing unless psutil is installed."""
    try:
        import psutil
    except ImportError:
        return 0, 0
    counters = psutil.net_io_counters()
    return counters.bytes_recv, counters.bytes_sent


def has_mark(pids: Sequence[int], variable: str, directory: str) -> set[int]:
    """Return which processes have ``NAME=VALUE`` in their environment, as far as `ps` shows it."""
    options = ("-A", "-E", "-ww") if sys.platform == "darwin" else ("axeww",)
    wanted, found = set(pids), set()
    for line in _output("ps", *options, "-o", "pid=,command=").splitlines():
        pid, _, text = line.strip().partition(" ")
        if pid.isdigit() and int(pid) in wanted and f" {variable} " in f"{text} ":
            found.add(int(pid))
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


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _session_of(pid: int) -> int | None:
    """Return a process's session, 0 if it is not known, or None if it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
    except OSError:
        return 0


def _ask_ps(*which: str) -> list[ProcessFacts] | None:
    """Return what `ps` says of processes, or None if it says nothing that makes sense."""
    text = _output("ps", *which, "-o", "pid=,ppid=,pgid=,stat=,lstart=")
    found = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) != 9 or fields[5] not in _MONTHS:
            return None
        pid, parent, group = (int(field) for field in fields[:3])
        status = fields[3]
        session = _session_of(pid)
        if status[0] not in "ZX" and session is not None:  # `ps` itself has ended meanwhile
            what = "stopped" if status[0] in "Tt" else "ending" if "E" in status else ""
            found.append(ProcessFacts(pid, parent, group, session, _start(fields[5:]), what))
    return found


def _start(words: list[str]) -> int:
    """Return a number for ``Nov 22 07:40:05 2026``; a later time has a higher one."""
    month, day, clock, year = words
    return int(f"{year}{_MONTHS.index(month) + 1:02}{int(day):02}{clock.replace(':', '')}")


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


# ---- names that one process of this machine can have at a time


class _Door(socket.socket):
    """A listening socket, whose name is locked until it is closed."""

    lock = -1

    def close(self) -> None:
        super().close()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def claim_name(name: str) -> socket.socket | None:
    """Listen under a name until this process ends or closes the socket; None if another process does.

    The name is a locked file of this user, so two users can have the same name at a time.
    """
    path = _path_of(name)
    while True:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(f"{path}.lock")):
                break
        except FileNotFoundError:  # another process has just removed the unused lock file
            pass
        except OSError as error:
            os.close(lock)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise
        os.close(lock)
    _tidy_up()
    door = _Door(socket.AF_UNIX, socket.SOCK_STREAM)
    door.lock = lock
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        if os.path.lexists(path):
            os.unlink(path)
        door.bind(path)
        door.listen()
    except OSError:
        door.close()
        raise
    return door


def connect_to_name(name: str) -> socket.socket | None:
    """Return a connection to the process that has a name, or None if there is no such process."""
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        visitor.connect(_path_of(name))
    except OSError:
        visitor.close()
        return None
    return visitor


def pid_of_name(name: str, connection: socket.socket) -> int:
    """Return the pid of the process that has a name, given a connection to it."""
    with open(f"{_path_of(name)}.lock", encoding="ascii") as file:
        return int(file.read())


def user_of_visitor(connection: socket.socket) -> int:
    """Return the uid of the process at the other end of a connection to a name: no other can reach it."""
    return os.geteuid()


def _path_of(name: str) -> str:
    """Return the path of a name's socket, in a directory of this user. Such paths have to be short.

    Raises:
        OSError: the directory cannot be made, or is another user's.
    """
    folder = _names_folder()
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        facts = os.lstat(folder)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "others can use this directory", folder) from None
    return os.path.join(folder, hashlib.sha256(name.encode()).hexdigest()[:24])


def _names_folder() -> str:
    return f"/tmp/shunter-{os.getuid()}"


def _tidy_up() -> None:
    """Remove the files of names that no process has."""
    folder = _names_folder()
    for entry in os.listdir(folder):
        if not entry.endswith(".lock"):
            continue
        path = os.path.join(folder, entry)
        try:
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                for leftover in (path.removesuffix(".lock"), path):
                    if os.path.lexists(leftover):
                        os.unlink(leftover)
        except OSError:  # it is in use
            pass
        finally:
            os.close(lock)


# ---- network


def routes() -> list[tuple[int, int]]:
    """Return the addresses and masks of this machine's IPv4 routes: a daemon's networks are not on it."""
    return []


def user_of_peer(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the uid of the process at the other end of a TCP connection; None: the system cannot tell."""
    return None

"""The primitives of Linux: /proc, pidfd, inotify, subreapers, leases and shared blocks.

`portable` has the same functions for other systems. Use them by way of `shunter.system`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import IO

from shunter.system.interface import (
    MODIFIED,
    FileChanges,
    FileEvents,
    ProcessFacts,
    ProcessPlace,
    ProcessUsage,
)

assert sys.platform == "linux"  # type checkers stop here for other systems


#: Whether orphaned descendants of a process can become its children (`become_subreaper`).
HAS_SUBREAPER = True
#: Whether the processes in a local daemon's containers are processes of this machine.
SEES_CONTAINER_PROCESSES = True
#: Whether a process can have an /opt/ml, a host name and names of hosts that others do not see.
HAS_NAMESPACES = True

_IN_Q_OVERFLOW = 0x4000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: Flag of a process in /proc/PID/stat, see include/linux/sched.h.
_PF_EXITING = 0x4
#: ioctl FICLONE of linux/fs.h: the new file shares its blocks with the old one until either is written to.
_FICLONE = 0x40049409
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_READ_SIZE = 1 << 20
_EVENT = struct.Struct("iIII")
_KERNEL_LOG = "/dev/kmsg"
ROUTES = "/proc/net/route"
_KERNEL_LOG_RECORDS = 10_000
_KERNEL_LOG_BYTES = 8192
#: How often the table of sockets is read: it can miss an entry while others come and go.
_TABLE_READS = 3


_LIBC = ctypes.CDLL(None, use_errno=True)


# ---- processes


def boot_id() -> str:
    """Return what changes with every boot of this machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def process_facts(pid: int) -> ProcessFacts | None:
    """Return the facts about a process, or None if it has ended. A zombie has ended."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    status = "stopped" if fields[0] in "Tt" else "ending" if int(fields[6]) & _PF_EXITING else ""
    return ProcessFacts(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), status)


def start_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if it has ended."""
    facts = process_facts(pid)
    return None if facts is None else facts.start


def all_processes() -> list[ProcessFacts]:
    """Return the facts about all processes that have not ended."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    found = [process_facts(pid) for pid in pids]
    return [facts for facts in found if facts is not None]


def children_of(pid: int) -> list[ProcessFacts]:
    """Return the facts about the children of a process, in the order in which they started."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            found = [process_facts(int(child)) for child in file.read().split()]
    except OSError:  # a kernel without this list, or the process has ended
        return [facts for facts in all_processes() if facts.parent == pid]
    return [facts for facts in found if facts is not None and facts.parent == pid]


def process_usage(roots: Collection[int]) -> dict[int, ProcessUsage]:
    """Return what these processes use, each with its descendants; those that have ended are left out."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGESIZE")
    facts: dict[int, tuple[int, float, int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].split()  # proc(5): the third field on
        except OSError:
            continue
        seconds = sum(map(int, words[11:15])) / ticks
        facts[int(name)] = (int(words[1]), seconds, int(words[21]) * page)
    root_of: dict[int, int] = {root: root for root in roots}
    totals: dict[int, list[float]] = {}
    for pid in facts:
        at = pid
        path: list[int] = []
        while at in facts and at not in root_of and len(path) < len(facts):
            path.append(at)
            at = facts[at][0]
        root = root_of.get(at, 0)
        root_of.update(dict.fromkeys(path, root))
        if root:
            total = totals.setdefault(root, [0.0, 0, 0, 0])
            total[0] += facts[pid][1]
            total[1] += facts[pid][2]
            read, written = _storage_bytes(pid)
            total[2] += read
            total[3] += written
    return {
        root: ProcessUsage(total[0], int(total[1]), int(total[2]), int(total[3]))
        for root, total in totals.items()
        if root in facts
    }


def _storage_bytes(pid: int) -> tuple[int, int]:
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            lines = dict(line.split(b": ") for line in file.read().splitlines())
        return int(lines[b"read_bytes"]), int(lines[b"write_bytes"])
    except (OSError, ValueError, KeyError):  # another user's, or ended
        return 0, 0


def network_bytes() -> tuple[int, int]:
    """Return how many bytes this network namespace has received and sent, without loopback."""
    received = sent = 0
    try:
        with open("/proc/self/net/dev", encoding="ascii") as file:
            for line in file.readlines()[2:]:
                name, _, counters = line.partition(":")
                words = counters.split()
                if name.strip() != "lo":
                    received, sent = received + int(words[0]), sent + int(words[8])
    except (OSError, ValueError, IndexError):
        pass
    return received, sent


def has_mark(pids: Sequence[int], variable: str, directory: str) -> set[int]:
    """Return which processes have ``NAME=VALUE`` in their environment, or write output below a directory."""
    mark = os.fsencode(variable) + b"\0"
    return {pid for pid in pids if mark in _environment_of(pid) or _writes_below(pid, directory)}


def _environment_of(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read() + b"\0"
    except OSError:
        return b""


def process_place(pid: int) -> ProcessPlace | None:
    """Return where a process runs; None if it has ended, or this user may not know."""
    try:
        cwd = os.readlink(f"/proc/{pid}/cwd")
        ours, theirs = _namespaces_of("self"), _namespaces_of(str(pid))
        with open(f"/proc/{pid}/environ", "rb") as file:
            lines = file.read().split(b"\0")
    except OSError:
        return None
    environ = dict(line.split(b"=", 1) for line in lines if b"=" in line)
    return ProcessPlace(pid, cwd, environ, [name for name in theirs if theirs[name] != ours.get(name)])


def _namespaces_of(pid: str) -> dict[str, str]:
    directory = f"/proc/{pid}/ns"
    return {name: os.readlink(f"{directory}/{name}") for name in os.listdir(directory)}


def _writes_below(pid: int, directory: str) -> bool:
    """Tell whether the standard output or error of a process is a file below a directory."""
    for fd in (1, 2):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(f"{directory}/"):
                return True
        except OSError:
            continue
    return False


def handles_sigterm(pid: int) -> bool:
    """Tell whether a process has a handler for SIGTERM. True if that is not known."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        return bool(int(fields["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)
    except (OSError, KeyError, ValueError):
        return True


def open_process(pid: int) -> int:
    """Return a descriptor of a process that becomes readable when it ends, or -1 if there is none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # an old kernel, or a Python that was built on one
        return -1


def signal_process(pid: int, handle: int, signum: int) -> None:
    """Signal the process behind a descriptor of `open_process`, or the pid if that is -1.

    Raises:
        ProcessLookupError: it has ended.
    """
    if handle >= 0:
        signal.pidfd_send_signal(handle, signum)
    else:
        os.kill(pid, signum)


def wait_without_reaping(pid: int) -> None:
    """Wait for the end of a child, and leave it a zombie whose pid is not given to another process."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that forked it ends (prctl(2), PR_SET_PDEATHSIG).

    ``parent`` is the pid of that thread's process, which may have ended already. A program that gets other
    rights by its start (set-uid, a user namespace) loses this.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def set_title(title: str) -> None:
    """Show this process under a title in `ps`, in place of its command line; cut if it is longer."""
    fields = _stat_fields(os.getpid())
    if fields is not None:
        start, end = int(fields[45]), int(fields[46])  # where the kernel reads the command line
        if 0 < start < end:
            size = end - start
            ctypes.memmove(start, os.fsencode(title)[: size - 1].ljust(size, b"\0"), size)


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the command, which may itself hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


# ---- kills by the kernel's out-of-memory killer


def out_of_memory_counters() -> list[tuple[str, str]]:
    """Return the files that count such kills, with the key to look for: own cgroup first, machine last."""
    found: list[tuple[str, str]] = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append((f"/sys/fs/cgroup/memory{path}/memory.oom_control", "oom_kill"))
        elif not controllers:
            found.append((f"/sys/fs/cgroup{path}/memory.events", "oom_kill"))
    found.append(("/proc/vmstat", "oom_kill"))
    return [(path, key) for path, key in found if os.path.exists(path)]


def kernel_log_has(text: str) -> bool:
    """Tell whether the kernel log holds a text. False if it cannot be read."""
    mark = text.encode()
    try:
        log = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        for _ in range(_KERNEL_LOG_RECORDS):
            try:
                if mark in os.read(log, _KERNEL_LOG_BYTES):
                    return True
            except BrokenPipeError:  # records were overwritten meanwhile; the next read goes on
                continue
    except OSError:
        pass
    finally:
        os.close(log)
    return False


# ---- file events


def open_file_events() -> FileEvents | None:
    """Return a new queue of file events, or None if the limit of such queues is reached."""
    fd = int(_LIBC.inotify_init1(_NONBLOCK_CLOEXEC))
    return None if fd < 0 else _Inotify(fd)


class _Inotify(FileEvents):
    """A queue of inotify(7)."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def add(self, path: str, mask: int = MODIFIED) -> int | None:
        watch = int(_LIBC.inotify_add_watch(self._fd, os.fsencode(path), mask))
        return None if watch < 0 else watch

    def read(self) -> FileChanges:
        data = self._read()
        watches: set[int] = set()
        overflow, offset = False, 0
        while offset < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, offset)
            overflow = overflow or bool(mask & _IN_Q_OVERFLOW)
            watches.add(watch)
            offset += _EVENT.size + length
        return FileChanges(watches, overflow)

    def read_names(self) -> list[tuple[int, str]]:
        data = self._read()
        changes, offset = [], 0
        while offset < len(data):
            watch, _, _, length = _EVENT.unpack_from(data, offset)
            name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
            changes.append((watch, os.fsdecode(name)))
            offset += _EVENT.size + length
        return changes

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


# ---- files


def reserve_space(fd: int, size: int) -> None:
    """Reserve space on the disk for a file, so that later writes to it cannot fail for lack of space."""
    os.posix_fallocate(fd, 0, size)


def share_blocks(source: int, target: int) -> None:
    """Let an empty file share the content of another one until either is written to.

    Raises:
        OSError: the file system cannot do that.
    """
    import fcntl

    fcntl.ioctl(target, _FICLONE, source)


def send_file(source: int, target: int, offset: int, count: int) -> int:
    """Copy content of a file to the position of another one. Returns how many bytes, 0 at the end."""
    return os.sendfile(target, source, offset, count)


def data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of those parts of a file that are not holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole from here on
                return
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            start, end = end, size  # the file system has no holes
        yield start, end


def has_writer(path: str) -> bool:
    """Tell whether a process has a file open for writing. False if that is not known.

    A lease for reading is granted only while no process has (fcntl(2), F_SETLEASE).
    """
    import fcntl

    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(fd)
    return False


def path_of_open_file(file: IO[bytes]) -> str:
    """Return a path by which a temporary file can be opened again."""
    return f"/proc/self/fd/{file.fileno()}"


def unnamed_file() -> IO[bytes]:
    """Return a new file that is gone when it is closed, however this process ends."""
    return tempfile.TemporaryFile()


def memory_directory() -> str:
    """Return a directory whose files are in memory, never on a disk; "" without one."""
    path = "/dev/shm"
    return path if os.path.isdir(path) and os.access(path, os.W_OK) else ""


def is_pipe_path(path: str) -> bool:
    """Tell whether a path names an open descriptor, as a shell's ``<(...)`` does."""
    return path.startswith(("/dev/", "/proc/"))


# ---- network


def routes() -> list[tuple[int, int]]:
    """Return the addresses and masks of this machine's IPv4 routes, as numbers."""
    try:
        with open(ROUTES, encoding="ascii") as file:
            rows = [line.split() for line in file][1:]
    except OSError:
        return []
    as_number = [[int.from_bytes(bytes.fromhex(row[n]), "little") for n in (1, 7)] for row in rows]
    return [(destination & mask, mask) for destination, mask in as_number]


def user_of_peer(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the uid of the process at the other end of a TCP connection on this machine.

    Returns -1 if there is no such process, or if it has closed its end, which the kernel shows as root's.
    Returns None if the system cannot tell.

    Args:
        peer: address and port of the other end.
        own: address and port of this end.
    """
    table = "/proc/net/tcp6" if ":" in peer[0] else "/proc/net/tcp"
    if not os.path.exists(table):
        return None
    # Match both ends: the peer's address alone may also belong to connections to others, or to old ones.
    wanted = [_in_table(*peer), _in_table(*own)]
    for _ in range(_TABLE_READS):
        with open(table, encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if len(fields) > 9 and fields[1:3] == wanted:
                    has_owner = fields[9] != "0"  # the inode, by which processes hold it
                    return int(fields[7]) if has_owner else -1
    return -1


def _in_table(address: str, port: int) -> str:
    """Return an address and a port as the kernel's table has them."""
    version, width = (socket.AF_INET6, 16) if ":" in address else (socket.AF_INET, 4)
    raw = socket.inet_pton(version, address.partition("%")[0])
    # The kernel shows each group of four bytes in this machine's order.
    swapped = b"".join(
        int.from_bytes(raw[i : i + 4], sys.byteorder).to_bytes(4, "big") for i in range(0, width, 4)
    )
    return f"{swapped.hex().upper()}:{port:04X}"

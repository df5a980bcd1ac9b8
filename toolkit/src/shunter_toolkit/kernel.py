"""Features that only Linux has, and what replaces them on other systems.

With ``SHUNTER_PORTABLE=1`` Linux is treated like the other systems, to test the replacements.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterable

IS_LINUX = sys.platform == "linux" and os.environ.get("SHUNTER_PORTABLE", "") in ("", "0")
#: Where the kernel shows processes and devices. On other systems nothing can be read there.
PROC, SYS = ("/proc", "/sys") if IS_LINUX else ("/dev/null/proc", "/dev/null/sys")
_TAG = "user.shunter.tag"
_FICLONE = 0x40049409  # linux/fs.h
_F_GETPATH = 50  # of macOS
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2  # of macOS


def c_library() -> ctypes.CDLL:
    """Return the C library, for calls of Linux that Python does not wrap.

    Raises:
        OSError: this is not Linux.
    """
    if not IS_LINUX:
        raise OSError(0, "this system is not Linux")
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    if sys.platform == "linux" and IS_LINUX:
        try:
            return len(os.sched_getaffinity(0))
        except OSError:
            pass
    return os.cpu_count() or 1


def reserve_space(descriptor: int, size: int) -> None:
    """Reserve disk space for an empty file, so that it can be written later even if the disk is full."""
    if sys.platform == "linux" and IS_LINUX:
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.write(descriptor, bytes(size))


def set_tag(path: str, tag: str) -> None:
    """Store a tag with a file, as an extended attribute; on other systems than Linux, do nothing.

    Raises:
        OSError: the file system cannot store it.
    """
    if sys.platform == "linux" and IS_LINUX:
        os.setxattr(path, _TAG, tag.encode())


def tag_of(path: str) -> str:
    """Return the tag of a file, or "" without one."""
    if sys.platform == "linux" and IS_LINUX:
        try:
            return os.getxattr(path, _TAG).decode()
        except OSError:
            pass
    return ""


def share_blocks(source: int, target: int) -> None:
    """Make an empty file a copy of another one that shares its blocks on the disk.

    Raises:
        OSError: the system or the file system cannot.
    """
    if not IS_LINUX:
        raise OSError(0, "this system is not Linux")
    import fcntl

    fcntl.ioctl(target, _FICLONE, source)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the pid of the process at the other end of a Unix socket, and its uid.

    Other systems do not report the uid, so our own is returned: the socket's path keeps other users out.
    """
    if sys.platform == "linux" and IS_LINUX:
        import socket
        import struct

        who = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", who)
        return pid, uid
    is_mac = sys.platform == "darwin"
    return connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID) if is_mac else 0, os.geteuid()


def path_of(descriptor: int) -> str:
    """Return a path by which the file behind a descriptor can be opened again.

    Raises:
        OSError: the system knows none.
    """
    if sys.platform == "darwin":
        import fcntl

        path = os.fsdecode(fcntl.fcntl(descriptor, _F_GETPATH, bytes(1024)).rstrip(b"\0"))
    else:  # or else mypy finds the rest unreachable there
        path = f"{PROC}/self/fd/{descriptor}"
    return path


def children_of(parent: int) -> Iterable[int]:
    """Return the pids of the children of a process, zombies too."""
    if not IS_LINUX:
        return _listed_children(parent)
    found = []
    for name in os.listdir(PROC):
        if name.isdigit():
            try:
                with open(f"{PROC}/{name}/stat", encoding="ascii", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(name))
    return found


def _listed_children(parent: int) -> Iterable[int]:
    """Return the same from `ps`, which is not counted itself."""
    reading, writing = os.pipe()
    try:
        actions = [(os.POSIX_SPAWN_DUP2, writing, 1)]
        command = ["/bin/ps", "-A", "-o", "pid=,ppid="]
        listing = os.posix_spawn(command[0], command, {"LC_ALL": "C"}, file_actions=actions)
    except OSError:
        os.close(reading)
        return []
    finally:
        os.close(writing)
    with os.fdopen(reading) as file:
        rows = [line.split() for line in file]
    try:
        os.waitpid(listing, 0)
    except ChildProcessError:  # another part of this process collects all children
        pass
    return [int(pid) for pid, of in rows if int(of) == parent and int(pid) != listing]


def machine() -> str:
    """Name this boot of this machine, and the namespace in which its process ids count."""
    try:
        with open(f"{PROC}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink(f'{PROC}/self/ns/pid')}"
    except OSError:
        return os.uname().nodename


def start_of(pid: int) -> str:
    """When a process was started, in the kernel's own unit; "" if it has ended, or if there is no /proc."""
    try:
        with open(f"{PROC}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def network_interface() -> str:
    """Return the first network interface that is not the loopback, by the kernel's numbering.

    On other systems hosts of a job are on one machine: there it is the loopback.
    """
    if not IS_LINUX:
        return next((name for name in _interfaces() if name.startswith("lo")), "lo0")
    try:
        names = sorted(os.listdir(f"{SYS}/class/net"), key=_interface_number)
    except OSError:
        return "eth0"
    usable = [name for name in names if name != "lo" and _interface_fact(name, "operstate") != "down"]
    return (usable or ["lo" if "lo" in names else "eth0"])[0]


def has_interface(name: str) -> bool:
    """Tell whether this machine has a network interface."""
    return os.path.isdir(f"{SYS}/class/net/{name}") if IS_LINUX else name in _interfaces()


def _interfaces() -> list[str]:
    import socket

    return [name for _, name in socket.if_nameindex()]


def _interface_number(name: str) -> int:
    text = _interface_fact(name, "ifindex")
    return int(text) if text.isdigit() else 1 << 30


def _interface_fact(name: str, fact: str) -> str:
    try:
        with open(f"{SYS}/class/net/{name}/{fact}", encoding="ascii") as file:
            return file.readline().strip()
    except OSError:
        return ""

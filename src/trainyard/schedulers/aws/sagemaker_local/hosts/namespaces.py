"""What only one process host sees: other hosts' names, a name of its own, directories that it cannot write.

All of it is done in namespaces of mounts and of names, which end with the host's last process. Root makes
them as root; another user as root of a namespace of users, and is itself again in one within it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.schedulers.aws.sagemaker_local.hosts.layout import Host

HOSTS_PER_NETWORK = 250
#: $1: an /etc/hosts, or ""; $2: the host's name, or ""; $3: how many pairs of a directory and the place where
#: it is shown, not to be written, follow; then the command. A mount of a namespace of users keeps the flags
#: that it has outside, and has to be asked for with them.
_SETUP = r"""
set -e
[ -z "$1" ] || mount --bind "$1" /etc/hosts
[ -z "$2" ] || hostname "$2" 2>/dev/null || echo "$2" >/proc/sys/kernel/hostname
trainyard_left=$3
shift 3
while [ "$trainyard_left" -gt 0 ]; do
  mount --bind "$1" "$2"
  for trainyard_flags in '' ,nosuid,nodev ,nosuid,nodev,noexec ,nodev ,nosuid; do
    mount -o "remount,bind,ro$trainyard_flags" "$2" 2>/dev/null && break
  done || echo "trainyard: $2 cannot be made read-only here" >&2
  shift 2
  trainyard_left=$((trainyard_left-1))
done
unset trainyard_left trainyard_flags
exec "$@"
"""


@dataclass(frozen=True)
class View:
    """What one host sees.

    Attributes:
        hosts_file: shown as ``/etc/hosts``; "" for the machine's own.
        hostname: the host's name; "" for the machine's own.
        fixed: directories, each with the place where it is shown read-only.
    """

    hosts_file: str = ""
    hostname: str = ""
    fixed: Sequence[tuple[str, str]] = ()

    def wrap(self, command: list[str]) -> list[str]:
        """Return the command that runs another one with this view."""
        if not (self.hosts_file or self.hostname or self.fixed):
            return command
        pairs = [path for pair in self.fixed for path in pair]
        words = [self.hosts_file, self.hostname, str(len(self.fixed)), *pairs]
        setup = ["sh", "-c", _SETUP, "sh", *words]
        spaces = ["--mount", "--uts"]
        if os.geteuid() == 0:
            return ["unshare", *spaces, *setup, *command]
        again = ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]
        return ["unshare", "--user", "--map-root-user", *spaces, *setup, *again, *command]


@functools.cache
def are_available() -> bool:
    """Tell whether this user can make such namespaces on this machine."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    probe = View("/etc/hosts", "trainyard").wrap(["true"])
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def address_of(host: Host, network: int) -> str:
    """Return the loopback address of a host.

    Args:
        host: the host.
        network: the second and third number of the address, as one.
    """
    block = network + host.number // HOSTS_PER_NETWORK
    return f"127.{block >> 8}.{block & 255}.{1 + host.number % HOSTS_PER_NETWORK}"


def write_hosts_file(hosts: list[Host], network: int, path: str) -> str:
    """Write an ``/etc/hosts`` that has the hosts too; returns its path."""
    try:
        with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
            lines = [file.read().rstrip("\n")]
    except OSError:
        lines = ["127.0.0.1 localhost"]
    lines += [f"{address_of(host, network)} {host.name}" for host in hosts]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path

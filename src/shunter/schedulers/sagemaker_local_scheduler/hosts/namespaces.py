"""What only one process host sees: its ``/opt/ml``, its name, the hosts' names, read-only directories.

All of it is done in mount and UTS namespaces, which end with the host's last process. Root creates them
directly. Another user creates them as root of a user namespace, and gets its own user id back in a nested
one.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shunter import system

#: Directories that can be covered by one in memory, to which others can be added.
_COVERABLE = ("/", "/opt")
#: $1: an /etc/hosts, or ""; $2: the host's name, or ""; $3: an empty directory; then steps of three words,
#: up to "--"; then the command. In a user namespace, a remount has to repeat the flags that the mount has
#: outside. -n keeps mount from writing to /run/mount, which belongs to the machine.
_SETUP = r"""
set -e
[ -z "$1" ] || mount -n --bind "$1" /etc/hosts
[ -z "$2" ] || hostname "$2" 2>/dev/null || echo "$2" >/proc/sys/kernel/hostname
shunter_stage=$3
shift 3
while [ "$1" != -- ]; do
  case $1 in
  fixed)
    mount -n --bind "$2" "$3"
    for shunter_flags in '' ,nosuid,nodev ,nosuid,nodev,noexec ,nodev ,nosuid; do
      mount -n -o "remount,bind,ro$shunter_flags" "$3" 2>/dev/null && break
    done || echo "shunter: $3 cannot be made read-only here" >&2
    ;;
  cover)
    mount -n -t tmpfs -o mode=755 shunter "$shunter_stage"
    for shunter_entry in "${2%/}"/* "${2%/}"/.[!.]* "${2%/}"/..?*; do
      shunter_place=$shunter_stage/${shunter_entry##*/}
      if [ -L "$shunter_entry" ]; then
        cp -P "$shunter_entry" "$shunter_place"
      elif [ -d "$shunter_entry" ]; then
        mkdir "$shunter_place"
        mount -n --rbind "$shunter_entry" "$shunter_place"
      elif [ -e "$shunter_entry" ]; then
        : >"$shunter_place"
        mount -n --rbind "$shunter_entry" "$shunter_place"
      fi
    done
    if [ "$2" = / ]; then
      umount -n -l "$shunter_stage$shunter_stage"
      shunter_directory=$PWD
      cd "$shunter_stage"
      mkdir .old
      pivot_root . .old
      umount -n -l /.old
      rmdir /.old
      cd "$shunter_directory"
    else
      mount -n --move "$shunter_stage" "$2"
    fi
    ;;
  make) mkdir -p "$3"; mount -n --rbind "$2" "$3" ;;
  show) mount -n --rbind "$2" "$3" ;;
  esac
  shift 3
done
shift
unset shunter_stage shunter_flags shunter_entry shunter_place shunter_directory
exec "$@"
"""
#: $1: a message to print first; then the command.
_WARN = 'echo "shunter: $1" >&2; shift; exec "$@"'


@dataclass(frozen=True)
class View:
    """What one host sees.

    Attributes:
        hosts_file: shown as ``/etc/hosts``; "" for the machine's own.
        hostname: the host's name; "" for the machine's own.
        fixed: directories, each with the place where it is shown read-only.
        shown: directories, each with the place where it is shown, after ``fixed``. A place that does not
            exist is made for the host alone.
        stage: a directory that is empty.
        warning: said in the host's log before its program starts; "" for nothing.
    """

    hosts_file: str = ""
    hostname: str = ""
    fixed: Sequence[tuple[str, str]] = ()
    shown: Sequence[tuple[str, str]] = ()
    stage: str = ""
    warning: str = ""

    def wrap(self, command: list[str]) -> list[str]:
        """Return the command that runs another one with this view."""
        if self.warning:
            command = ["sh", "-c", _WARN, "sh", self.warning, *command]
        if not (self.hosts_file or self.hostname or self.fixed or self.shown):
            return command
        steps = [word for pair in self.fixed for word in ("fixed", *pair)]
        steps += [word for step in _steps(self.shown) for word in step]
        setup = ["sh", "-c", _SETUP, "sh", self.hosts_file, self.hostname, self.stage, *steps, "--"]
        spaces = ["--mount", "--propagation", "slave", "--uts"]
        if os.geteuid() == 0:
            return ["unshare", *spaces, *setup, *command]
        again = ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]
        return ["unshare", "--user", "--map-root-user", *spaces, *setup, *again, *command]


def can_show_at(place: str) -> bool:
    """Tell whether a host can be shown a directory at a path that may not exist."""
    return os.path.isdir(place) or _parent(os.path.realpath(place)) in _COVERABLE


def _steps(shown: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    covered = set()
    for source, place in shown:
        place = os.path.realpath(place)
        if os.path.isdir(place):
            yield "show", source, place
            continue
        parent = _parent(place)
        if parent not in covered:
            covered.add(parent)
            yield "cover", parent, ""
        yield "make", source, place


def _parent(place: str) -> str:
    """Return the deepest directory above a place that exists."""
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    return place


@functools.cache
def are_available() -> bool:
    """Tell whether this user can make such namespaces on this machine."""
    if not system.HAS_NAMESPACES or shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    probe = View("/etc/hosts", "shunter").wrap(["true"])
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def write_hosts_file(addresses: Mapping[str, str], path: str) -> str:
    """Write an ``/etc/hosts`` that has these hosts too; returns its path."""
    try:
        with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
            lines = [file.read().rstrip("\n")]
    except OSError:
        lines = ["127.0.0.1 localhost"]
    lines += [f"{address} {host}" for host, address in addresses.items()]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path

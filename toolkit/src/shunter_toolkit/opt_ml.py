"""Shows a job's processes their base directory at ``/opt/ml``, if ``SHUNTER_OPT_ML=1`` asks for it.

``unshare`` and ``mount`` of util-linux (2.36 or newer) make a mount namespace, which ends with the job's last
process and leaves nothing on the machine. A user who may not mount gets a user namespace too, with the same
user and group.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from .errors import ClientError
from .layout import DEFAULT_BASE

VARIABLE = "SHUNTER_OPT_ML"
#: $1: the base directory; then the command. Without an /opt/ml, /opt is covered by a directory in memory that
#: has the same entries and one more. -n keeps mount from writing to /run/mount, which belongs to the machine.
_SETUP = """
set -e
base=$1; shift
if [ ! -d /opt/ml ]; then
  stage=$(mktemp -d)
  mount -n -t tmpfs -o mode=755 shunter "$stage"
  mkdir "$stage/ml"
  for entry in /opt/* /opt/.[!.]*; do
    place=$stage/${entry##*/}
    if [ -L "$entry" ]; then cp -P "$entry" "$place"
    elif [ -d "$entry" ]; then mkdir "$place"; mount -n --rbind "$entry" "$place"
    elif [ -e "$entry" ]; then : >"$place"; mount -n --bind "$entry" "$place"
    fi
  done
  mount -n --move "$stage" /opt
  rmdir "$stage"
fi
mount -n --rbind "$base" /opt/ml
exec "$@"
"""
_AS_USER = ("--user", "--map-current-user", "--keep-caps")


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether a job asks for its base directory at ``/opt/ml``."""
    return environ.get(VARIABLE, "") not in ("", "0")


def command(base: str, words: Sequence[str]) -> list[str]:
    """Return the command line that runs another one with a base directory at ``/opt/ml``.

    Raises:
        ClientError: this machine does not allow it.
    """
    reason = "there is no /opt" if not os.path.isdir(os.path.dirname(DEFAULT_BASE)) else ""
    for spaces in ((), _AS_USER) if not reason else ():
        line = ["unshare", *spaces, "--mount", "--propagation", "slave", "sh", "-c", _SETUP, "sh", base]
        try:
            tried = subprocess.run([*line, "true"], capture_output=True, text=True, check=False)
        except OSError as error:
            reason = f"unshare: {error.strerror}"
            break
        if tried.returncode == 0:
            return [*line, *words]
        reason = " ".join(tried.stderr.split()) or "unshare failed"
    raise ClientError(
        f"Cannot show {base} at {DEFAULT_BASE}, as {VARIABLE} asks: {reason}. "
        "Use SM_MODEL_DIR and the other SM_ variables, or run the job in a container."
    )


def enter(base: str) -> None:
    """Start this program again with ``base`` at ``/opt/ml``, unless it is there already.

    Raises:
        ClientError: this machine does not allow it.
    """
    try:
        os.makedirs(base, exist_ok=True)
    except OSError as error:
        raise ClientError(f"Cannot make the base directory {base}: {error.strerror}.") from None
    if os.path.isdir(DEFAULT_BASE) and os.path.samefile(base, DEFAULT_BASE):
        return
    with open("/proc/self/cmdline", encoding="utf-8", errors="surrogateescape") as file:
        words = file.read().split("\0")[:-1]
    line = command(os.path.realpath(base), [sys.executable, *words[1:]])
    os.execvp(line[0], line)

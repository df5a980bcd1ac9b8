"""Whether what only Linux has is used."""

from __future__ import annotations

import os
import sys

#: If this variable is 1, Linux is used as any other system of POSIX, to test that.
SWITCH = "SHUNTER_PORTABLE"
IS_LINUX = sys.platform == "linux" and os.environ.get(SWITCH, "") in ("", "0")

#: Whether orphaned descendants of a process can become its children (`become_subreaper`).
HAS_SUBREAPER = IS_LINUX

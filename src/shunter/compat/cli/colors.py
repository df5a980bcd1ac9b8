"""Colours of a terminal; empty where the output is no terminal (``torchx.cli.colors``)."""

from __future__ import annotations

import sys

_TERMINAL = sys.stdout.isatty() and sys.stderr.isatty()
GREEN = "\033[32m" if _TERMINAL else ""
ORANGE = "\033[38:2:238:76:44m" if _TERMINAL else ""
BLUE = "\033[34m" if _TERMINAL else ""
GRAY = "\033[2m" if _TERMINAL else ""
ENDC = "\033[0m" if _TERMINAL else ""

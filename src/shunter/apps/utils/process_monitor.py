"""Runs a command for a time, or until a file appears: the toolkit's program, under TorchX's name."""

from __future__ import annotations

import sys

from shunter._toolkit.apps import monitoring

main = monitoring.main

if __name__ == "__main__":
    sys.exit(monitoring.run(sys.argv[1:]))

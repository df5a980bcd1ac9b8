"""Evaluates Booth's function: the toolkit's program, under TorchX's name."""

from __future__ import annotations

import sys

from shunter._toolkit.apps import booth

main = booth.main

if __name__ == "__main__":
    sys.exit(booth.run(sys.argv[1:]))

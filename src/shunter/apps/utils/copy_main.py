"""Copies one file: the toolkit's program, under TorchX's name."""

from __future__ import annotations

import sys

from shunter._toolkit.apps import copying

main = copying.main

if __name__ == "__main__":
    sys.exit(copying.run(sys.argv[1:]))

"""Registers a model with TorchServe: the toolkit's program, under TorchX's name."""

from __future__ import annotations

import sys

from shunter._toolkit.apps import registering

main = registering.main

if __name__ == "__main__":
    sys.exit(registering.run(sys.argv[1:]))

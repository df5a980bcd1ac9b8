"""``python -m shunter``: the command line."""

from __future__ import annotations

from shunter.cli import console_main

if __name__ == "__main__":
    console_main()

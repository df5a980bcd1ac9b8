"""``python -m trainyard``: the command line."""

from __future__ import annotations

from trainyard.cli import console_main

if __name__ == "__main__":
    console_main()

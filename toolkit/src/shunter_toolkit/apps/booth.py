"""Evaluate Booth's function, whose minimum is 0 at (1, 3), and write the value to a file."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence

from ..tracking.results import FsspecResultTracker
from .urls import run_program

DEFAULT_BASE = "/tmp/torchx-utils-booth"


def booth(x1: float, x2: float) -> float:
    """Return Booth's function at a point."""
    return float((x1 + 2 * x2 - 7) ** 2 + (2 * x1 + x2 - 5) ** 2)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the value and write it as JSON to ``{tracker_base}/{trial_idx}``; return 0."""
    parser = argparse.ArgumentParser(prog="booth_main", description="Evaluate Booth's function.")
    parser.add_argument("--x1", type=float, required=True)
    parser.add_argument("--x2", type=float, required=True)
    parser.add_argument("--trial_idx", type=int, default=0)
    parser.add_argument("--tracker_base", default=DEFAULT_BASE, help="directory (or URL) of the results")
    args = parser.parse_args(argv)
    value = booth(args.x1, args.x2)
    print(f"booth_eval={value} trial={args.trial_idx} x1={args.x1} x2={args.x2}")
    FsspecResultTracker(args.tracker_base)[args.trial_idx] = {"booth_eval": value}
    return 0


run = functools.partial(run_program, main)

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

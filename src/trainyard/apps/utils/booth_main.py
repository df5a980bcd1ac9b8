"""Evaluate Booth's function, whose minimum is 0 at (1, 3), and write the value to a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from trainyard.apps.files import open_to_write, run_main


def booth(x1: float, x2: float) -> float:
    """Return Booth's function at a point."""
    return float((x1 + 2 * x2 - 7) ** 2 + (2 * x1 + x2 - 5) ** 2)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the value and write ``{tracker_base}/{trial_idx}/result.json``; return 0."""
    parser = argparse.ArgumentParser(prog="booth_main", description="Evaluate Booth's function.")
    parser.add_argument("--x1", type=float, required=True)
    parser.add_argument("--x2", type=float, required=True)
    parser.add_argument("--trial_idx", type=int, default=0)
    parser.add_argument("--tracker_base", required=True, help="directory (or URL) of the results")
    args = parser.parse_args(argv)
    value = booth(args.x1, args.x2)
    print(f"booth_eval={value} trial={args.trial_idx} x1={args.x1} x2={args.x2}")  # noqa: T201
    with open_to_write(f"{args.tracker_base.rstrip('/')}/{args.trial_idx}/result.json") as file:
        file.write(json.dumps({"booth_eval": value, "x1": args.x1, "x2": args.x2}).encode())
    return 0


if __name__ == "__main__":
    run_main(main)

"""Functions as jobs of this machine, beside a pool of processes, and submitit where it is installed.

Usage: python benchmarks/functions.py [--calls N] [--rounds N]

A call in a job is compared with a call in a fresh interpreter (`ProcessPoolExecutor`, one task for each
process, method spawn), since that is what separate calls cost anyway. All sides run alternately.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import shunter


def nothing(x: int) -> int:
    """Do nothing, at the other side."""
    return x


def latency(executor: concurrent.futures.Executor) -> None:
    """Submit a call and wait for its result."""
    assert executor.submit(nothing, 1).result() == 1


def mapped(executor: concurrent.futures.Executor, calls: int) -> None:
    """Map over many calls and read all results."""
    assert list(executor.map(nothing, range(calls))) == list(range(calls))


def pool() -> concurrent.futures.Executor:
    """Return a pool in which each call has a fresh interpreter."""
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context, max_tasks_per_child=1)


def submitit_executor(folder: str) -> concurrent.futures.Executor:
    """Return submitit's executor for this machine."""
    import submitit

    return submitit.AutoExecutor(folder, cluster="local")


def compare(name: str, sides: dict[str, Callable[[], None]], rounds: int) -> None:
    """Run the sides in turn and print the median of each, and the ratio to ours."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, action in sides.items():
            start = time.monotonic()
            action()
            times[side].append(time.monotonic() - start)
    medians = {side: statistics.median(values) for side, values in times.items()}
    words = [f"{side} {seconds:.2f} s" for side, seconds in medians.items()]
    ratios = [
        f"{medians['shunter'] / seconds:.2f} of {side}"
        for side, seconds in medians.items()
        if side != "shunter"
    ]
    print(f"{name}: {', '.join(words)}; shunter takes {', '.join(ratios)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHUNTER_HOME"] = folder
        with shunter.Executor("local_cwd") as ours, pool() as processes:
            sides = {"shunter": lambda: latency(ours), "pool": lambda: latency(processes)}
            if importlib.util.find_spec("submitit"):
                sides["submitit"] = lambda: latency(submitit_executor(folder))
            compare("submit to result", sides, args.rounds)
            maps = {
                "shunter": lambda: mapped(ours, args.calls),
                "pool": lambda: mapped(processes, args.calls),
            }
            compare(f"map of {args.calls} calls", maps, max(args.rounds // 2, 1))


if __name__ == "__main__":
    main()

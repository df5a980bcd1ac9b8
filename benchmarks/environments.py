"""What a warm environment costs: the same job with and without one, in turn.

Usage: python benchmarks/environments.py [--rounds N] [--docker IMAGE] [--slurm PARTITION]

The script needs one package. The first job with it builds the environment, and is not measured. uv has to
find the package, and IMAGE has to have Python.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shunter.runner import Runner, get_runner
from shunter.specs import AppState

SCRIPT = '# /// script\n# dependencies = ["six"]\n# ///\nprint("done")\n'


def seconds(
    runner: Runner, scheduler: str, options: dict[str, Any], words: Sequence[str], environment: Sequence[str]
) -> float:
    """Return how long a job takes from its submission to its end."""
    start = time.monotonic()
    handle = runner.run_component(
        "train.script", ["--script", "s.py", *words, *environment], scheduler, options, workspace="."
    )
    state = runner.wait(handle).state
    took = time.monotonic() - start
    if state != AppState.SUCCEEDED:
        raise SystemExit(f"{handle} {state.name}")
    runner.delete(handle)
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--docker", metavar="IMAGE")
    parser.add_argument("--slurm", metavar="PARTITION")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHUNTER_HOME"] = f"{folder}/home"
        code = Path(folder, "code")
        code.mkdir()
        (code / "s.py").write_text(SCRIPT)
        os.chdir(code)
        places: list[tuple[str, dict[str, Any], list[str]]] = [("local_cwd", {}, [])]
        if args.docker:
            places.append(("local_docker", {}, ["--image", args.docker]))
        if args.slurm:
            options = {"partition": args.slurm, "time": "5", "shared_dir": f"{folder}/shared"}
            places.append(("slurm", options, ["--cpu", "1", "--memMB", "64"]))
        sides: dict[str, list[str]] = {"with": [], "without": ["--environment", "none"]}
        with get_runner() as runner:
            for place in places:
                times: dict[str, list[float]] = {side: [] for side in sides}
                for side in sides.values():
                    seconds(runner, *place, side)
                for _ in range(args.rounds):
                    for name, side in sides.items():
                        times[name].append(seconds(runner, *place, side))
                warm, bare = (statistics.median(times[side]) for side in sides)
                cost = f"{warm - bare:+.2f} s"
                print(f"{place[0]}: {warm:.2f} s with an environment, {bare:.2f} s without, {cost}")


if __name__ == "__main__":
    main()

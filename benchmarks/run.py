"""Compare shunter with TorchX 0.7.0, side by side in one run, and print a table of ratios.

    python benchmarks/run.py [--quick] [--only SUBJECT]... [--json FILE]

Below 1, shunter takes less. docs/benchmarks.md says how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import cli_start
import docker_images
import history_size
import local_jobs
import log_following
import many_replicas
import memory
import tools
from harness import Tool, Workplace, load
from report import Row, spread, table

SUBJECTS: dict[str, Any] = {
    "start": cli_start,
    "history": history_size,
    "jobs": local_jobs,
    "logs": log_following,
    "replicas": many_replicas,
    "memory": memory,
    "docker": docker_images,
}
NOISE_SAMPLES = 15


def main() -> int:
    args = _arguments()
    ours, other = tools.shunter(), tools.torchx()
    place = Workplace()
    started, load_before = time.perf_counter(), load()
    rows: list[Row] = []
    try:
        noise = _noise(place, ours)
        for name in args.only or SUBJECTS:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            rows += SUBJECTS[name].measure(place, ours, other, quick=args.quick)
        noise += _noise(place, ours)
    finally:
        place.close()
    about = _about(ours, other, args.quick, (load_before, load()), noise, time.perf_counter() - started)
    print(table(rows))
    print("\n" + _conditions(about))
    if args.json:
        document = {"about": about, "rows": [row.to_json() for row in rows]}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under two minutes")
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="a subject; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample too")
    return parser.parse_args()


def _noise(place: Workplace, tool: Tool) -> list[float]:
    """Return the cpu time of a command that does nothing, again and again: it should always be the same."""
    command = [str(tool.python), "-c", "pass"]
    return [place.run(command).cpu * 1000 for _ in range(NOISE_SAMPLES)]


def _about(
    ours: Tool, other: Tool, quick: bool, loads: tuple[float, float], noise: list[float], seconds: float
) -> dict[str, Any]:
    return {
        "shunter": ours.version,
        "torchx": other.version,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": len(os.sched_getaffinity(0)),
        "quick": quick,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 1),
        "load_before_and_after": loads,
        "cpu_ms_of_nothing": noise,
    }


def _conditions(about: dict[str, Any]) -> str:
    noise = about["cpu_ms_of_nothing"]
    before, after = about["load_before_and_after"]
    return (
        f"shunter {about['shunter']}, TorchX {about['torchx']}, Python {about['python']}, "
        f"{about['cpus']} cpus, {about['seconds']:.0f} s{' (quick)' if about['quick'] else ''}.\n"
        f"Noise: load average {before:.1f} before and {after:.1f} after; `python -c pass` took "
        f"{statistics.median(noise):.1f} ms of cpu (quartiles {spread(noise)}, most {max(noise):.1f})."
    )


if __name__ == "__main__":
    sys.exit(main())

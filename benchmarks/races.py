"""How often exactly one job of a race runs: `python benchmarks/races.py 100`, as root, with Docker and Slurm.

Four jobs take part in each race: one on this machine, one in a container, two on Slurm. In every other race
nobody looks, so that the losers find out at their own starts.
"""

from __future__ import annotations

import collections
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.race_tries import run_race
from tests.slurm_cluster import private_cluster
from tests.toolkit.image import docker, make_image


def main(tries: int) -> None:
    """Run that many races, and print who has won how often; an assertion fails if not exactly one ran."""
    tag = f"shunter-races-{os.getpid()}:1"
    make_image(tag)
    wins: collections.Counter[str] = collections.Counter()
    chance = random.Random(tries)
    began = time.time()
    try:
        with tempfile.TemporaryDirectory() as folder, private_cluster() as cluster:
            os.environ.update(cluster.environment, SHUNTER_HOME=f"{folder}/home")
            for number in range(tries):
                winner = run_race(Path(folder) / f"race-{number}", tag, chance, looks=number % 2 == 0)
                wins[winner.partition("://")[0]] += 1
                print(f"{number + 1}: {winner}", flush=True)
    finally:
        docker("rmi", "-f", tag, check=False)
    print(f"{tries} races, exactly one ran in each; winners: {dict(wins)}; {time.time() - began:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100)

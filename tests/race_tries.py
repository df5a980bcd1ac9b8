"""Races on a real Slurm, a real Docker daemon and this machine, which start at random times."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from shunter.backoff import polling
from shunter.runner import Runner, get_runner
from shunter.runner.races import await_winner, plan_race
from shunter.specs import AppDef, AppState, BindMount, Resource, Role, is_terminal
from shunter.specs.submission import Submission

PATIENCE = 90.0
#: Seconds by which each is submitted later, at most: what starts sooner gets more, so that starts collide.
DELAYS = {"local_cwd": 2.0, "local_docker": 1.5, "slurm": 0.5}
# It takes a moment, so that two would overlap.
_SCRIPT = 'echo "$TORCHX_JOB_ID" >>{0}/began; sleep 0.3; echo "$TORCHX_JOB_ID" >>{0}/ended'


def competitors(folder: Path, image: str) -> list[Submission]:
    """Return the same job for this machine, for Docker and for two partitions of Slurm."""
    script = _SCRIPT.format(folder)
    small = Resource(cpu=1, gpu=0, memMB=64)

    def job(**fields: object) -> AppDef:
        fields = {"image": "", "resource": small, **fields}
        return AppDef("try", [Role("r", entrypoint="sh", args=["-c", script], **fields)])  # type: ignore[arg-type]

    shared = {"shared_dir": str(folder.parent / "shared")}
    mount = BindMount(str(folder), str(folder), False)
    return [
        Submission(app=job(), scheduler="local_cwd"),
        Submission(app=job(image=image, mounts=[mount]), scheduler="local_docker"),
        *(
            Submission(app=job(), scheduler="slurm", options={"partition": partition, **shared})
            for partition in ("cpu", "gpu")
        ),
    ]


def run_race(folder: Path, image: str, chance: random.Random, *, looks: bool) -> str:
    """Run one race; returns its winner. Fails unless exactly one ran, and the others say so.

    Args:
        folder: where the jobs write, and below whose parent they share storage.
        image: for the container.
        chance: the delays.
        looks: whether somebody watches, and cancels the losers; or else each finds out at its start.
    """
    folder.mkdir()
    handles: list[str] = []
    with get_runner() as runner:
        race = plan_race(runner, competitors(folder, image))
        delays = [chance.uniform(0, DELAYS[info.scheduler]) for info in race.jobs]

        def submit(number: int) -> None:
            time.sleep(delays[number])
            with get_runner() as own:
                handles.append(own.schedule(race.jobs[number]))

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(len(race.jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(handles) == len(race.jobs)
        seen = await_winner(runner, race.id, handles) if looks else ""
        ends = _ends(runner, handles)
        began = (folder / "began").read_text().split()
        assert len(began) == 1, (began, ends)
        (winner,) = began
        assert (folder / "ended").read_text().split() == [winner]
        assert seen in ("", winner)
        assert ends.pop(winner) == (AppState.SUCCEEDED, "")
        assert set(ends.values()) == {(AppState.CANCELLED, f"race lost to {winner}")}, ends
        runner.delete_many(handles)
    return winner


def _ends(runner: Runner, handles: list[str]) -> dict[str, tuple[AppState, str]]:
    polls = polling(PATIENCE)
    while True:
        statuses = {handle: status for handle, status in runner.statuses(handles).items() if status}
        is_over = all(is_terminal(status.state) for status in statuses.values())
        if (is_over and len(statuses) == len(handles)) or not polls.pause():
            return {handle: (status.state, status.reason) for handle, status in statuses.items()}

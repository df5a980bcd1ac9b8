"""Try out how a job copes with a failure.

`shunter drill spot JOB` simulates a spot interruption of a job of `sagemaker_local`: SIGTERM, two minutes
to save its state, SIGKILL. Then the job starts again on new machines, with the checkpoints that it had saved.
"""

from __future__ import annotations

from argparse import Namespace

from shunter.cli.console import note
from shunter.cli.parser import Parser, add_handle_argument
from shunter.errors import ConfigError, UnknownAppException
from shunter.runner import Runner, get_runner
from shunter.schedulers.sagemaker_local_scheduler import SageMakerLocalScheduler
from shunter.specs.durations import parse_duration

SCHEDULER = "sagemaker_local"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("what", choices=["spot"], help="spot: the interruption of spot instances")
    add_handle_argument(parser)
    parser.add_argument(
        "--absence",
        default="0s",
        metavar="TIME",
        help="how long no other machines are available: 30s, 5m (default: 0s)",
    )


def run(args: Namespace) -> None:
    absence = parse_duration(args.absence)
    with get_runner() as runner:
        handle = _resolve(runner, args.handle)
        scheduler = runner.scheduler(handle.partition("://")[0])
        if not isinstance(scheduler, SageMakerLocalScheduler):
            raise ConfigError(f"{scheduler.backend} cannot simulate interruptions", hint=f"{SCHEDULER} can.")
        scheduler.interrupt(handle.rpartition("/")[2], absence)
    note(f"{handle.rpartition('/')[2]}: simulating a spot interruption")


def _resolve(runner: Runner, text: str | None) -> str:
    """Return a job's handle. Jobs that came in through the HTTP endpoint are in no history."""
    if text in (None, "-"):
        jobs = runner.list(SCHEDULER)
        if not jobs:
            raise UnknownAppException(f"{SCHEDULER} has no jobs, so there is no latest one")
        return max(jobs, key=lambda job: job.submitted_at or 0.0).app_handle
    if text and "://" not in text and runner.scheduler(SCHEDULER).exists(text):
        return f"{SCHEDULER}://{runner.name()}/{text}"
    return runner.resolve_handle(text)

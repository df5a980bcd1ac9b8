"""Try out what a job does when something happens to it.

`trainyard drill spot JOB` takes a spot job of `sagemaker_local` its machines away: SIGTERM, two minutes to
save what is to be saved, SIGKILL. Then it starts anew on other machines, with the checkpoints it had sent.
"""

from __future__ import annotations

from trainyard.cli.console import note
from trainyard.cli.parser import add_handle_argument
from trainyard.errors import EXIT_OK, BackendError, UnknownAppException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

SCHEDULER = "sagemaker_local"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("what", choices=["spot"], help="spot: the interruption of spot instances")
    add_handle_argument(parser)
    parser.add_argument(
        "--absence",
        default="0s",
        metavar="TIME",
        help="how long there are no other machines: 30s, 5m (default: 0s)",
    )


def run(args: Namespace) -> int:
    """Run the command."""
    from trainyard.cli.times import parse_duration
    from trainyard.schedulers.aws.sagemaker_local.training_job import TrainingJob
    from trainyard.schedulers.exec.process.recovery import current_state

    absence = parse_duration(args.absence)
    name = _app_id(args.handle)
    job = TrainingJob.find(name)
    state = None if job is None else current_state(job)
    if job is None or state is None:
        raise UnknownAppException(f"{SCHEDULER} knows no job {name!r}")
    try:
        job.interrupt(state, absence)
    except OSError as error:
        raise BackendError(f"cannot interrupt {job.name}: {error}") from error
    note(f"{job.name}: its machines are taken away")
    return EXIT_OK


def _app_id(text: str | None) -> str:
    """Return a job's name: as it is given, if it is one, or that of the handle that it stands for.

    The latest job is that of this scheduler, also one that came in through its API and is in no history.
    """
    from trainyard.schedulers.aws.sagemaker_local.training_job import TrainingJob

    if text in (None, "", "-"):
        states = [(job.read_state(), job.name) for job in TrainingJob.all()]
        latest = max(((state["created_at"], name) for state, name in states if state), default=None)
        if latest is None:
            raise UnknownAppException(f"{SCHEDULER} has no jobs, so there is no latest one")
        return latest[1]
    if text and TrainingJob.find(text) is not None:
        return text
    from trainyard.runner import get_runner

    with get_runner() as runner:
        handle = runner.resolve_handle(text)
    return handle.rpartition("/")[2]

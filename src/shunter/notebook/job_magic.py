"""The cell magic ``%%shunter``: the cell is the script of a job, which the notebook displays.

::

    %%shunter -s local_docker train.script --num-replicas 2 -- --lr 0.1
    import argparse
    ...

The line takes the arguments of ``shunter run``; the default component is ``train.script``. The cell becomes
a file in the notebook's workspace, next to those of ``%%workspacefile``, and is passed to the component as
``--script``.
"""

from __future__ import annotations

import shlex
import sys

from shunter.cli.commands import run
from shunter.cli.job_request import request_of
from shunter.cli.log_writers import LogWriter, bytes_of
from shunter.cli.parser import Parser
from shunter.cli.shown_status import status_of
from shunter.cli.watching import wait_for_end
from shunter.errors import ShunterError, UsageError
from shunter.functions.job_display import html_of
from shunter.notebook.workspace_files import get_workspace, write_workspace_file
from shunter.runner import get_runner
from shunter.schedulers.api import LogQuery
from shunter.specs.status import AppStatus
from shunter.why.explanation import Explanation, explain

CELL_FILE = "cell.py"
DEFAULT_COMPONENT = "train.script"


class CellJob:
    """A job in a notebook. As the value of a cell it is shown as a table of its replicas and log ends.

    Args:
        handle: the job, as `Runner.run_component` returns it.
    """

    def __init__(self, handle: str) -> None:
        self.handle = handle

    @property
    def status(self) -> AppStatus:
        """The job's state now.

        Raises:
            UnknownAppException: the job no longer exists.
            BackendError: its scheduler cannot be asked.
        """
        with get_runner() as runner:
            return status_of(runner, self.handle)

    def wait(self) -> AppStatus:
        """Print the logs until the job has ended; interrupting the kernel stops only that."""
        with get_runner() as runner:
            replicas = runner.replicas(self.handle)
            sys.stdout.flush()  # what was printed before comes first
            writer = LogWriter(bytes_of(sys.stdout), prefixes=len(replicas) > 1)
            writer.write_all(runner.log_blocks(self.handle, replicas, LogQuery(should_tail=True)))
            writer.finish()
            return wait_for_end(runner, self.handle, None)

    def cancel(self) -> None:
        """Stop the job."""
        with get_runner() as runner:
            runner.cancel(self.handle)

    def why(self) -> Explanation:
        """Return why the job failed, or why it waits, as ``shunter why`` finds it."""
        with get_runner() as runner:
            status = runner.status(self.handle)
            if status is None:
                raise ShunterError(f"{self.handle} no longer exists")
            return explain(runner, self.handle, status)

    def __repr__(self) -> str:
        return f"CellJob({self.handle!r})"

    def _repr_html_(self) -> str:
        return html_of(self.handle)


def shunter(line: str, cell: str) -> CellJob:
    """Run a cell as a job, and print its logs until it ends, unless the line has ``--detach``.

    Args:
        line: options of ``shunter run``, then the component (it takes ``--script``) with its arguments.
        cell: the script.

    Raises:
        ShunterError: the job cannot be submitted. In IPython its message is shown without a traceback.
    """
    try:
        job, follows = _submitted(line, cell)
    except ShunterError as error:
        raise _for_ipython(error) from None
    if follows:
        try:
            job.wait()
        except KeyboardInterrupt:
            print(f"{job.handle} keeps running; `job = _` is this job, and job.cancel() stops it")  # noqa: T201
        except ShunterError as error:
            raise _for_ipython(error) from None
    return job


def _submitted(line: str, cell: str) -> tuple[CellJob, bool]:
    parser = Parser("shunter run")
    run.add_arguments(parser)
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%%shunter cannot read {line.strip()!r}: {error}") from None
    args = run.parse(parser, words)
    for option in ("dryrun", "stdin", "json"):
        if getattr(args, option):
            raise UsageError(f"%%shunter does not support --{option}", hint="Use `!shunter run` for that.")
    if args.component is None:
        args.component, args.component_args = DEFAULT_COMPONENT, [*args.component_args]
    args.component_args = ["--script", CELL_FILE, *args.component_args]
    if args.workspace is not None:
        raise UsageError(
            "%%shunter uses the notebook's workspace, so it does not support --workspace",
            hint="Write files into it with %%workspacefile.",
        )
    write_workspace_file(CELL_FILE, cell)
    args.workspace = get_workspace()
    with get_runner() as runner:
        request = request_of(args, runner)
        return CellJob(runner.submit(request.submission)), request.follow.waits


def _for_ipython(error: ShunterError) -> Exception:
    """Return an error that IPython shows without a traceback; without IPython, the same error."""
    if "IPython" not in sys.modules or sys.modules["IPython"].get_ipython() is None:
        return error
    from IPython.core.error import UsageError as MessageOnly

    return MessageOnly(str(error))

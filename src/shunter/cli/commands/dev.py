"""Start an interactive job and open a shell in it, with the code, data and packages that a script would have.

shunter dev --gpu 1 --mem 16G -s slurm    start a job, wait until it runs, enter it
shunter dev JOB                           enter it again
shunter dev -- COMMAND                    run a command in it instead of a shell

Leaving the shell leaves the job running. It ends by itself when it has not been used for --idle: nobody
typed, and its processes used neither CPU nor GPU. `shunter forward JOB 8888` reaches a server in it.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from argparse import Namespace
from typing import Any

from shunter.cli.commands import exec as exec_command
from shunter.cli.console import ask, is_tty, note, out
from shunter.cli.job_request import add_job_words, add_placement_options, requested_job, submit
from shunter.cli.parser import Parser
from shunter.cli.replica_python import is_dev_job, session_words
from shunter.cli.shown_plan import show_plan
from shunter.cli.shown_status import exit_code_of, status_of
from shunter.cli.watching import Detached, Interrupts, StatusLines, show_end, watched_states
from shunter.errors import EXIT_OK, ConfigError, UsageError
from shunter.runner import Runner, get_runner
from shunter.runner.records import DEV_COMPONENT
from shunter.schedulers.capabilities import capabilities_of
from shunter.schedulers.joined_terminal import has_terminal
from shunter.specs.status import AppState, AppStatus

#: What a job of `utils.dev` can be given.
WORDS = (
    *("name", "image", "cpu", "gpu", "mem", "h", "time", "environment", "env", "mounts"),
    *("channel", "output", "checkpoints"),
)
#: Seconds that an idle job, which has ended its sessions, may take to end itself.
PATIENCE = 10.0
#: Options of `run` that have no meaning here.
_UNUSED: dict[str, Any] = {
    **dict.fromkeys(("retry", "hang_timeout", "on_hang", "exit_code_from", "parent_run_id")),
    **dict.fromkeys(("wait", "log", "json"), False),
    "metric": [],
    "misplaced": {},
}


def add_arguments(parser: Parser) -> None:
    add_placement_options(parser, "the current directory, if the scheduler ships code")
    parser.add_argument(
        "--idle",
        metavar="DURATION",
        help="end the job when it has not been used for this long; 0 for never (default: 30m)",
    )
    parser.add_flag("--detach", help="start the job and return; `shunter dev JOB` enters it")
    add_job_words(parser, parser.add_argument_group("options of the job"), WORDS)
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help="a dev job that runs, to enter it", completer="job_completer"
    )
    parser.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="program and arguments (default: a shell)"
    )


def parse(parser: Parser, argv: list[str]) -> Namespace:
    """Parse what is before ``--``, and leave what follows as it is.

    Raises:
        UsageError: options of a new job are given for one that runs.
    """
    args = exec_command.parse(parser, argv)
    before = argv[: argv.index("--")] if "--" in argv else argv
    options = [word for word in before if word.startswith("-") and word != "-"]
    if args.job and args.job.endswith((".py", ".sh")):
        raise UsageError(
            f"{parser.prog} opens a shell, and takes no script",
            hint=f"In the shell: python {args.job}. As a job: shunter run {args.job}",
        )
    if args.job and options:
        raise UsageError(
            f"{args.job} is a job that runs: {options[0]} is an option of a new one",
            hint=f"To enter it: {parser.prog} {args.job}. To name a new one: --name {args.job}",
        )
    args.component, args.component_args = DEV_COMPONENT, ["--idle", args.idle] if args.idle else []
    args.prog, args.before = parser.prog, before
    for name, value in _UNUSED.items():
        setattr(args, name, value)
    return args


def run(args: Namespace) -> int:
    if args.job:
        with get_runner() as runner:
            handle = runner.resolve_handle(args.job)
            if not is_dev_job(runner, handle):
                raise ConfigError(
                    f"{handle} is not a job of `shunter dev`", hint=f"To enter it: shunter exec {args.job}"
                )
            status = status_of(runner, handle)
            if status.is_terminal():
                raise ConfigError(
                    f"{handle} has ended: {status.state}",
                    hint=f"`shunter why {args.job}` says why; `shunter rerun {args.job}` starts it again.",
                )
            return _enter(runner, handle, args.command)
    with requested_job(args) as (runner, request):
        _check_can_be_entered(runner, request.submission.scheduler, args)
        info = runner.plan(request.submission)
        if args.dryrun:
            show_plan(runner, info, args.json)
            return EXIT_OK
        handle = submit(runner, lambda: runner.schedule(info), request.announcement)
        out(handle)
        return EXIT_OK if args.detach else _enter(runner, handle, args.command)


def _check_can_be_entered(runner: Runner, name: str, args: Namespace) -> None:
    scheduler = runner.scheduler(name)
    if not capabilities_of(scheduler)["exec"]:
        raise ConfigError(
            f"{name} cannot run a command in a job, so nobody could enter it",
            hint="`shunter schedulers` shows in its column exec which schedulers can.",
        )
    if not (scheduler.capabilities.pipes_streams or args.command or args.detach):
        raise ConfigError(
            f"{name} gives commands in a job no terminal, so there can be no shell",
            hint="Start it with --detach, then: shunter dev JOB -- COMMAND",
        )


def _enter(runner: Runner, handle: str, command: list[str]) -> int:
    """Run a command, or a shell, in a job once it runs; returns the exit code."""
    name, began = handle.rpartition("/")[2], time.time()
    try:
        status = _await_start(runner, handle)
    except Detached as detached:
        _settle(runner, handle, name)
        return detached.exit_code
    if status.is_terminal():
        show_end(runner, handle, status, time.time() - began)
        return exit_code_of(status, None)
    role, k = runner.replicas(handle)[0]
    try:
        code = runner.execute(handle, role, k, session_words(command), tty=has_terminal())
        if code == 128 + signal.SIGHUP:  # so the keeper ends sessions
            runner.wait(handle, timeout=PATIENCE)
    except ConfigError:  # it may have ended just now, and then its own end says more
        ended = runner.status(handle)
        if ended is None or not ended.is_terminal():
            raise
    else:
        ended = runner.status(handle)
    if ended is not None and ended.is_terminal():
        show_end(runner, handle, ended, time.time() - began)
        return exit_code_of(ended, None)
    note(
        f"{name} runs on until nobody uses it: `shunter dev {name}` enters it again, "
        f"`shunter cancel {name}` ends it"
    )
    return code


def _await_start(runner: Runner, handle: str) -> AppStatus:
    """Wait until a job runs, or has ended, and show what it waits for; returns its status.

    Raises:
        Detached: the user stopped waiting.
    """
    with Interrupts(None), contextlib.closing(StatusLines(handle)) as lines:
        for status in watched_states(runner, handle):
            if status.state == AppState.RUNNING or status.is_terminal():
                break
            lines.show(status)
    return status


def _settle(runner: Runner, handle: str, name: str) -> None:
    """Ask whether to cancel a job that nobody waits for any more, and say what becomes of it."""
    cancels = False
    if is_tty(sys.stdin) and is_tty(sys.stderr):
        with contextlib.suppress(KeyboardInterrupt):
            cancels = ask(f"\n{name} has not started. Cancel it?")
    if cancels:
        runner.cancel(handle)
        note(f"{name} is cancelled")
    else:
        note(
            f"\n{name} still waits to start: `shunter dev {name}` enters it, "
            f"`shunter cancel {name}` cancels it"
        )

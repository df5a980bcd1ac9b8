"""Run a command, or a shell, in a running replica of a job.

The command is connected to this terminal: it gets your keys, Ctrl-C included, and its exit code is returned.
Without a terminal stdin and stdout are piped: `shunter exec - -- cat results.json >here.json`.
"""

from __future__ import annotations

import shlex
from argparse import Namespace

from shunter.cli.console import OutputClosed
from shunter.cli.parser import Parser, add_handle_argument
from shunter.cli.replica_python import is_dev_job, session_words
from shunter.errors import UsageError
from shunter.runner import Runner, get_runner
from shunter.schedulers.joined_terminal import has_terminal
from shunter.specs.handles import parse_app_handle


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    parser.add_argument(
        "replica", nargs="?", metavar="ROLE/ID", help="the replica; not needed if the job has only one"
    )
    parser.add_flag("--no-tty", "-T", help="pipe stdin and stdout, even if they are a terminal")
    parser.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="program and arguments (default: a shell)"
    )


def parse(parser: Parser, argv: list[str]) -> Namespace:
    """Parse what is before ``--``, and leave what follows as it is."""
    end = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_arguments(argv[:end])
    if args.command:
        at = argv.index(args.command[0])
        raise UsageError(
            f"{parser.prog}: unexpected argument {args.command[0]!r}",
            hint=f"The command comes after `--`: `{shlex.join([*parser.prog.split(), *argv[:at]])} -- "
            f"{shlex.join(argv[at:end])}`.",
        )
    args.command = argv[end + 1 :]
    return args


def run(args: Namespace) -> int:
    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        role, k = _replica(runner, handle, args.replica)
        command = session_words(args.command) if is_dev_job(runner, handle) else args.command
        try:
            return runner.execute(handle, role, k, command, tty=has_terminal() and not args.no_tty)
        except BrokenPipeError:  # nobody reads the output any more
            raise OutputClosed from None


def _replica(runner: Runner, handle: str, text: str | None) -> tuple[str, int]:
    """Return role and index of the replica that is named, or of the only one."""
    if text is None:
        replicas = runner.replicas(handle)
        if len(replicas) != 1:
            names = ", ".join(f"{role}/{k}" for role, k in replicas[:20])
            raise UsageError(
                f"{handle} has {len(replicas)} replicas: name one", hint=f"ROLE/ID is one of: {names}"
            )
        return replicas[0]
    role, separator, index = text.rpartition("/")
    if not separator or not role or not index.isdecimal():
        raise UsageError(
            f"{text!r} does not name a replica",
            hint="Write ROLE/ID, such as trainer/0. For a command: "
            f"shunter exec {parse_app_handle(handle).app_id} -- {shlex.quote(text)}",
        )
    return role, int(index)

"""Run a command for a limited time, or until a file appears.

``--timeout 60 --exit_on_file done.txt -- COMMAND ...``

The exit code is the command's own if it ends by itself (128 + the signal that killed it), 0 if it is stopped
because of the time or the file, and 34 if the file to start on does not appear.
"""

from __future__ import annotations

import argparse
import functools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from .urls import exists, run_program

#: The exit code if the file to start on does not appear.
TIMEOUT_EXIT_CODE = 34
GRACE_SECONDS = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    args = _parse(argv)
    deadline = time.monotonic() + args.timeout if args.timeout > 0 else float("inf")
    if args.start_on_file and not _await_file(args.start_on_file, deadline, args.poll_rate):
        print(f"error: {args.start_on_file} did not appear in {args.timeout:g} s", file=sys.stderr)
        return TIMEOUT_EXIT_CODE
    try:
        process = subprocess.Popen(args.command)
    except OSError as error:
        print(f"error: cannot start {args.command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: process.send_signal(number))
    return _watch(
        process,
        lambda: time.monotonic() >= deadline or bool(args.exit_on_file and exists(args.exit_on_file)),
        args.poll_rate,
        args.kill_timeout,
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="process_monitor", description="Run a command for a time.")
    parser.add_argument("--timeout", type=float, default=0.0, help="seconds until it ends; 0: no limit")
    parser.add_argument("--poll_rate", type=float, default=1.0, help="seconds between checks of the files")
    parser.add_argument("--start_on_file", default="", help="wait until this file exists")
    parser.add_argument("--exit_on_file", default="", help="end when this file exists")
    parser.add_argument(
        "--kill_timeout", type=float, default=GRACE_SECONDS, help="seconds it has to end before it is killed"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    args = parser.parse_args(argv)
    if args.command[:1] == ["--"]:
        del args.command[0]
    if not args.command:
        parser.error("no command given")
    return args


def _await_file(url: str, deadline: float, poll_seconds: float) -> bool:
    while not exists(url):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(poll_seconds, left))
    return True


def _watch(
    process: subprocess.Popen[bytes], is_over: Callable[[], bool], poll_seconds: float, grace: float
) -> int:
    while True:
        try:
            code = process.wait(poll_seconds)
        except subprocess.TimeoutExpired:
            if is_over():
                _stop(process, grace)
                return 0
        else:
            return code if code >= 0 else 128 - code


def _stop(process: subprocess.Popen[bytes], grace: float) -> None:
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


run = functools.partial(run_program, main)

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

"""Say why a job failed or waits: the cause, the first failing replica, what changed, what to try."""

from __future__ import annotations

import sys

from trainyard.cli.console import BOLD, out, paint, paint_state, print_json
from trainyard.cli.jobstatus import status_of
from trainyard.cli.parser import add_handle_argument, add_json_option
from trainyard.errors import EXIT_BACKEND, EXIT_OK
from trainyard.specs.status import NONE, AppState, reason_text
from trainyard.terminal import clean, format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable, Iterator
    from typing import Any

    from trainyard.diagnosis.failures import Failure
    from trainyard.diagnosis.report import Report
    from trainyard.diagnosis.waiting import Waiting


def add_arguments(parser: ArgumentParser) -> None:
    add_handle_argument(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    from trainyard.diagnosis.report import explain
    from trainyard.runner import get_runner

    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        status = status_of(runner, handle)
        report = explain(runner, handle, status)
    if args.json:
        print_json(report.to_json())
    else:
        for line in _lines(report):
            out(line)
    return EXIT_BACKEND if status.state == AppState.UNREACHABLE else EXIT_OK


def _lines(report: Report) -> Iterator[str]:
    yield f"Job: {report.handle}"
    yield f"State: {paint_state(str(report.status.state), sys.stdout)}"
    if report.failure is not None:
        yield from _of_failure(report, report.failure)
    elif report.waiting is not None:
        yield from _of_waiting(report.waiting)
    elif report.status.msg and report.status.msg != NONE:
        yield f"Reason: {reason_text(report.status)}"
    if report.try_command:
        yield ""
        yield f"Try: {report.try_command}"


def _of_failure(report: Report, failure: Failure) -> Iterator[str]:
    yield ""
    yield paint(clean(report.headline), BOLD, sys.stdout)
    facts = _facts(failure)
    if facts:
        yield f"  {facts}"
    for line in failure.reason.splitlines():
        yield f"  {report.scheduler} says: {clean(line)}"
    if failure.problem:
        yield f"  its log cannot be read: {clean(failure.problem)}"
    yield from _section("Traceback", failure.traceback)
    yield from _section(f"Log of {failure.place}", failure.log if not failure.traceback else [])
    if report.changes:
        yield from _section(f"Changed since {report.last_good}, which succeeded", report.changes)
    elif report.last_good:
        yield ""
        yield f"Nothing that is recorded has changed since {report.last_good}, which succeeded."
    if failure.cause.advice:
        yield ""
        yield f"What helps: {failure.cause.advice}"


def _facts(failure: Failure) -> str:
    replica = failure.replica
    if replica is None:
        return ""
    facts = []
    if failure.failed > 1:
        facts.append(f"the first of {failure.failed} failed replicas (of {failure.replicas})")
    elif failure.replicas > 1:
        facts.append(f"1 of {failure.replicas} replicas")
    if replica.hostname:
        facts.append(f"on {clean(replica.hostname)}")
    if replica.exit_code is not None:
        facts.append(f"exit code {replica.exit_code}")
    if replica.restarts:
        facts.append(f"after {replica.restarts} restart{'s' if replica.restarts > 1 else ''}")
    if replica.started_at is not None and replica.ended_at is not None:
        facts.append(f"ran {format_duration(replica.ended_at - replica.started_at)}")
    return ", ".join(facts)


def _of_waiting(waiting: Waiting) -> Iterator[str]:
    yield ""
    yield paint(clean(f"The job waits: {waiting.text}"), BOLD, sys.stdout)
    if waiting.reason:
        yield f"  {clean(waiting.reason)}"
    if waiting.position:
        yield f"  {clean(waiting.position)}"
    if waiting.advice:
        yield ""
        yield f"What helps: {waiting.advice}"


def _section(title: str, lines: Iterable[Any]) -> Iterator[str]:
    texts = [clean(str(line)) for line in lines]
    if texts:
        yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in texts)

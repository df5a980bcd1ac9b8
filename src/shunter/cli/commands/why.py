"""Say why a job failed or waits: the cause, the first failing replica, what changed, what to try."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any

from shunter.cli.console import BOLD, counted, paint, paint_state, print_result
from shunter.cli.parser import Parser, add_handle_argument, add_json_option
from shunter.cli.shown_status import exit_code_of_look, status_of
from shunter.diagnosis.failures import Failure
from shunter.runner import get_runner
from shunter.specs.status import ReplicaStatus, reason_text
from shunter.terminal import clean, format_duration
from shunter.why.explanation import Explanation, explain


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        status = status_of(runner, handle)
        explanation = explain(runner, handle, status)
    print_result(args.json, explanation.to_json(), _lines(explanation))
    return exit_code_of_look(status)


def _lines(explanation: Explanation) -> Iterator[str]:
    status, waiting = explanation.status, explanation.waiting
    yield f"Job: {explanation.handle}"
    yield f"State: {paint_state(str(status.state), sys.stdout)}"
    if explanation.failure is not None:
        yield from _failure_lines(explanation, explanation.failure)
    elif waiting is not None:
        yield f"\n{paint(clean(f'The job waits: {waiting.text}'), BOLD, sys.stdout)}"
        yield from (f"  {clean(text)}" for text in (waiting.reason, waiting.position) if text)
        if waiting.advice:
            yield f"\nWhat helps: {waiting.advice}"
    else:
        if status.reason:
            yield f"Reason: {reason_text(status)}"
        for replica in status.replicas():
            yield from _section(f"What happened to {replica.role}/{replica.id}", replica.notes)
    if explanation.try_command:
        yield f"\nTry: {explanation.try_command}"


def _failure_lines(explanation: Explanation, failure: Failure) -> Iterator[str]:
    replica = failure.replica
    yield f"\n{paint(clean(explanation.headline), BOLD, sys.stdout)}"
    if replica is not None and (facts := list(_facts(failure, replica))):
        yield f"  {', '.join(facts)}"
    for line in failure.reason.splitlines():
        yield f"  {explanation.scheduler} says: {clean(line)}"
    yield from _section("What happened to it", replica.notes if replica else [])
    if failure.problem:
        yield f"  its log cannot be read: {clean(failure.problem)}"
    yield from _section("Traceback", failure.traceback)
    yield from _section(f"Log of {failure.place}", failure.log if not failure.traceback else [])
    if explanation.changes:
        yield from _section(f"Changed since {explanation.last_good}, which succeeded", explanation.changes)
    elif explanation.last_good:
        yield f"\nNothing that is recorded has changed since {explanation.last_good}, which succeeded."
    if failure.cause.advice:
        yield f"\nWhat helps: {failure.cause.advice}"


def _facts(failure: Failure, replica: ReplicaStatus) -> Iterator[str]:
    if failure.failed > 1:
        yield f"the first of {failure.failed} failed replicas (of {failure.replicas})"
    elif failure.replicas > 1:
        yield f"1 of {failure.replicas} replicas"
    if replica.hostname:
        yield f"on {clean(replica.hostname)}"
    if replica.exit_code is not None:
        yield f"exit code {replica.exit_code}"
    if replica.restarts:
        yield f"after {counted(replica.restarts, 'restart')}"
    if replica.started_at is not None and replica.ended_at is not None:
        yield f"ran {format_duration(replica.ended_at - replica.started_at)}"


def _section(title: str, lines: Iterable[Any]) -> Iterator[str]:
    texts = [f"  {clean(str(line))}" for line in lines]
    if texts:
        yield from (f"\n{title}:", *texts)

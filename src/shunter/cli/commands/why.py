"""Say why a job failed or waits: the cause, the first failing replica, what changed, what to try."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from typing import Any

from shunter.cli.console import BOLD, counted, paint, paint_state, print_result
from shunter.cli.parser import add_handle_argument, add_json_option
from shunter.cli.shown_status import exit_code_of_look, status_of
from shunter.diagnosis.failures import Failure
from shunter.diagnosis.waiting import Waiting
from shunter.runner import get_runner
from shunter.specs.status import reason_text
from shunter.terminal import clean, format_duration
from shunter.why.explanation import Explanation, explain


def add_arguments(parser: ArgumentParser) -> None:
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
    yield f"Job: {explanation.handle}"
    yield f"State: {paint_state(str(explanation.status.state), sys.stdout)}"
    if explanation.failure is not None:
        yield from _failure_lines(explanation, explanation.failure)
    elif explanation.waiting is not None:
        yield from _waiting_lines(explanation.waiting)
    else:
        if explanation.status.reason:
            yield f"Reason: {reason_text(explanation.status)}"
        for replica in explanation.status.replicas():
            yield from _section(f"What happened to {replica.role}/{replica.id}", replica.notes)
    if explanation.try_command:
        yield f"\nTry: {explanation.try_command}"


def _failure_lines(explanation: Explanation, failure: Failure) -> Iterator[str]:
    yield f"\n{paint(clean(explanation.headline), BOLD, sys.stdout)}"
    if facts := _facts(failure):
        yield f"  {', '.join(facts)}"
    for line in failure.reason.splitlines():
        yield f"  {explanation.scheduler} says: {clean(line)}"
    yield from _section("What happened to it", failure.replica.notes if failure.replica else [])
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


def _facts(failure: Failure) -> list[str]:
    replica = failure.replica
    if replica is None:
        return []
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
        facts.append(f"after {counted(replica.restarts, 'restart')}")
    if replica.started_at is not None and replica.ended_at is not None:
        facts.append(f"ran {format_duration(replica.ended_at - replica.started_at)}")
    return facts


def _waiting_lines(waiting: Waiting) -> Iterator[str]:
    yield f"\n{paint(clean(f'The job waits: {waiting.text}'), BOLD, sys.stdout)}"
    for text in filter(None, (waiting.reason, waiting.position)):
        yield f"  {clean(text)}"
    if waiting.advice:
        yield f"\nWhat helps: {waiting.advice}"


def _section(title: str, lines: Iterable[Any]) -> Iterator[str]:
    texts = [clean(str(line)) for line in lines]
    if texts:
        yield f"\n{title}:"
        yield from (f"  {line}" for line in texts)

"""The program that sends notifications of a job's end: ``python notifying.py DIRECTORY``.

`schedulers.supervisor.outbox` starts it as a separate process: its failures neither change the job nor delay
its end.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # run as a script; its folder holds modules of a package
    sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))

from typing import Any

from shunter._toolkit import notification
from shunter.errors import ShunterError
from shunter.redaction import Redactor, redact_text
from shunter.runner import get_runner
from shunter.runner.api import Runner
from shunter.schedulers.supervisor import outbox
from shunter.specs.status import AppState, AppStatus
from shunter.why.explanation import explain_failed


def main(directory: str) -> int:
    """Send the notifications of the job in this directory; returns an exit code."""
    box = notification.Outbox(
        os.path.join(directory, outbox.WAITING), os.path.join(directory, outbox.SETTLED)
    )
    if not box.claim():
        return 0
    handle = box.document["handle"]
    with get_runner() as runner:
        status = runner.status(handle)
        if status is None or not status.is_terminal():
            return 0
        message = box.document.get("message") or message_of(runner, handle, status)
    box.send(message)
    for target in box.document["targets"]:
        if target["state"] == notification.FAILED:
            sys.stderr.write(f"{redact_text(target['to'])} was not notified: {target['error']}\n")
    return 0


def message_of(runner: Runner, handle: str, status: AppStatus) -> dict[str, Any]:
    """Return the notification of a job that has ended, secrets masked."""
    message: dict[str, Any] = notification.end_message(
        handle,
        status.state.name,
        reason=status.reason,
        cause=_cause(runner, handle, status) if status.state == AppState.FAILED else None,
        restarts=status.num_restarts,
        started_at=status.started_at,
        ended_at=status.ended_at,
        results=status.results,
    )
    masked: dict[str, Any] = Redactor().json(message)
    return masked


def _cause(runner: Runner, handle: str, status: AppStatus) -> dict[str, Any] | None:
    try:
        failure = explain_failed(runner, handle, status)
    except (ShunterError, OSError):  # the notification is sent without the cause
        return None
    replica = failure.replica
    return {
        "name": failure.cause.name,
        "text": failure.cause.text,
        "evidence": failure.evidence,
        "replica": None if replica is None else f"{replica.role}/{replica.id}",
        "exit_code": None if replica is None else replica.exit_code,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Sends notifications of a job's end from its first host, on backends where only containers run our code.

The launcher passes what to send in variables, which the script does not get. It is sent when the results are
saved and the report is written, but not if the backend will restart the job.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
import zlib
from collections.abc import MutableMapping
from typing import Any

from . import failure_class, log, notification
from .failure import Report
from .masking import Masker

#: The targets and conditions, as JSON: ``targets``, ``again`` (see `is_final`), ``stopped`` (the state of a
#: job that was asked to stop; "" if the backend may restart such a job).
VARIABLE = notification.VARIABLE
#: The secret that signs what is sent to URLs.
SECRET_VARIABLE = "SHUNTER_NOTIFY_SECRET"
#: The launcher's table of causes: JSON, compressed, in base64.
CAUSES_VARIABLE = "SHUNTER_CAUSES"
#: Prefix of a target that is in a variable of the container, which the backend sets from its secrets.
IN_VARIABLE = "env:"
#: Seconds after which the container ends even if some targets were not notified.
MOST_SECONDS = 60.0


class GivenUp(Exception):
    """The time for notifications is over."""


class EndNotice:
    """The notification of one job's end.

    Args:
        environ: the environment of this process; the variables for notifications are removed from it.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._asked = environ.pop(VARIABLE, "")
        self._secret = environ.pop(SECRET_VARIABLE, "") if self._asked else ""
        self._causes = environ.pop(CAUSES_VARIABLE, "")
        self._environ = environ
        self._started = time.time()

    def send(self, report: Report | None, code: int, masker: Masker) -> None:
        """Notify all targets if this is the end of the job. Never raises: the job's result does not change.

        Args:
            report: of the failure; None after success.
            code: what this container ends with.
            masker: masks secrets in what is sent.
        """
        if not self._asked or self._environ.get("TORCHX_REPLICA_IDX", "0") not in ("", "0"):
            return
        try:
            asked = json.loads(self._asked)
            state = self._state(asked, report, code)
            if state:
                self._send(asked, masker.json(self._message(state, report, code)))
        except Exception as error:
            log.warning(f"Nobody was notified of the job's end: {masker.text(str(error))}")

    def _state(self, asked: dict[str, Any], report: Report | None, code: int) -> str:
        """Return the state that the job ends in; "" if it is not sent."""
        if report is None:
            return "SUCCEEDED"
        if report.stopped:
            state: str = asked.get("stopped", "")
            if not state:
                log.info("Nobody is notified: the job was asked to stop, and may be restarted.")
            return state
        if not is_final(asked.get("again") or {}, code, self._environ):
            log.info("Nobody is notified yet: the job may be restarted.")
            return ""
        return "FAILED"

    def _message(self, state: str, report: Report | None, code: int) -> dict[str, Any]:
        asked = self._environ
        cause = None
        if state == "FAILED" and report is not None:
            found = self._cause(report, code)
            name, index = asked.get("TORCHX_ROLE_NAME", ""), asked.get("TORCHX_REPLICA_IDX", "0") or "0"
            cause = {
                "name": found.name,
                "text": found.text,
                "evidence": found.evidence,
                "replica": f"{name}/{index}" if name else None,
                "exit_code": code,
            }
        return notification.end_message(
            asked.get("TORCHX_JOB_ID", ""),
            state,
            reason="" if report is None else str(report.fields["reason"]),
            cause=cause,
            restarts=attempt_of(json.loads(self._asked).get("again") or {}, asked) or 0,
            started_at=self._started,
            ended_at=time.time(),
        )

    def _cause(self, report: Report, code: int) -> failure_class.Found:
        """Return the cause, by the launcher's own table."""
        table = failure_class.Table(json.loads(zlib.decompress(base64.b64decode(self._causes))))
        fields = report.fields
        # the reason of a report with a class of its own counts like the words of a scheduler
        said = [fields["reason"]] if fields["class"] != "user_error" else []
        text = "\n".join(fields["stderr"])
        return table.cause_of(said, code, text, json.dumps({"message": fields["reason"]}))

    def _send(self, asked: dict[str, Any], message: dict[str, Any]) -> None:
        deadline = time.monotonic() + MOST_SECONDS

        def pause(seconds: float) -> None:
            if time.monotonic() + seconds > deadline:
                raise GivenUp
            time.sleep(seconds)

        targets = notification.new_targets([self._target(target) for target in asked["targets"]])
        with contextlib.suppress(GivenUp):
            notification.Outbox(document={"targets": targets, "secret": self._secret}).send(message, pause)
        for target in targets:
            if target["state"] != notification.TOLD:
                kind = "A URL" if notification.is_url(target["to"]) else "A command"
                log.warning(f"{kind} was not notified of the job's end: {target['error']}")

    def _target(self, target: str) -> str:
        if not target.startswith(IN_VARIABLE):
            return target
        name = target[len(IN_VARIABLE) :]
        if not self._environ.get(name):
            raise ValueError(f"the variable {name} is not set")
        return self._environ[name]


def attempt_of(again: dict[str, Any], environ: MutableMapping[str, str]) -> int | None:
    """Return how many times the backend has started the job before; None if it does not say."""
    text = environ.get(again.get("variable", ""), "")
    return int(text) - int(again["first"]) if text.isdigit() else None


def is_final(again: dict[str, Any], code: int, environ: MutableMapping[str, str]) -> bool:
    """Tell whether a failure now is final: the backend does not start the job again. False in doubt.

    Args:
        again: what the launcher knows of restarts: ``attempts`` (the most; default 1), ``variable`` and
            ``first`` (the variable with the number of this attempt, and the number of the first attempt),
            ``codes`` (rules, of which the first match counts: a code, or the beginning of one and ``*``, and
            whether the backend restarts it).
        code: the exit code.
        environ: of this process.
    """
    most = int(again.get("attempts", 1))
    if most <= 1:
        return True
    for pattern, may in again.get("codes", []):
        if str(code).startswith(pattern[:-1]) if pattern.endswith("*") else str(code) == pattern:
            if not may:
                return True
            break
    attempt = attempt_of(again, environ)
    return attempt is not None and attempt + 1 >= most

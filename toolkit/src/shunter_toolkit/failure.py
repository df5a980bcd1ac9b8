"""The failure report: ``output/failure`` for people and the platform, ``failure.json`` for programs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
from typing import Any

from . import errors, kernel, log, tracebacks
from .child_process import Outcome
from .layout import Layout
from .masking import Masker

REASON_LIMIT = 1024  # characters of `failure` that SageMaker keeps as FailureReason
STDERR_LINES = 20
LINE_LIMIT = 2000
_RESERVE = 32 * 1024
#: Names the file in which the platform looks for a program's final message.
TERMINATION_MESSAGE = "SHUNTER_TERMINATION_MESSAGE"
_MEMORY_TYPES = ("MemoryError", "OutOfMemoryError", "_ArrayMemoryError")
_DISK_FULL = ("No space left on device", "[Errno 28]", "Disk quota exceeded")


class Report:
    """What ended a job. ``fields`` is the content of ``failure.json``."""

    def __init__(self, failure_class: str, reason: str, exit_code: int) -> None:
        self.exit_code = exit_code
        self.fields: dict[str, Any] = {
            "outcome": "stopped" if failure_class == errors.PREEMPTED else "failed",
            "class": failure_class,
            "reason": reason,
            "exit_code": exit_code,
            "signal": None,
            "exception": None,
            "message": None,
            "traceback": [],
            "rank": None,
            "host": None,
            "command": None,
            "hint": None,
            "stderr": [],
        }

    @property
    def stopped(self) -> bool:
        """Whether the job was asked to stop; that is not a failure."""
        return bool(self.fields["outcome"] == "stopped")

    def brief(self) -> str:
        """The part of the report that the script's own output does not already show."""
        fields = self.fields
        lines = [] if fields["class"] == errors.USER_ERROR and fields["exception"] else [fields["reason"]]
        if fields["class"] in (errors.INSTALL_ERROR, errors.INTERNAL_ERROR):
            lines += fields["stderr"][-8:]
        return "\n".join([*lines, *([fields["hint"]] if fields["hint"] else [])])

    def text(self) -> str:
        """The plain text of ``output/failure``: the reason first, at most 1024 characters."""
        fields = self.fields
        rank = "" if fields["rank"] is None else f", rank {fields['rank']}"
        host = f" on {fields['host']}" if fields["host"] else ""
        lines = [_first_line(fields["reason"]), f"{fields['class']}, exit code {self.exit_code}{host}{rank}."]
        if fields["hint"]:
            lines.append(fields["hint"])
        for frame in reversed(fields["traceback"][-3:]):
            lines.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}')
            lines.append(f"    {frame['code']}")
        if not fields["traceback"]:
            lines += fields["stderr"][-8:]
        if fields["command"]:
            lines.append(f"Command: {fields['command']}")
        return "\n".join(lines)[:REASON_LIMIT]


def _first_line(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= 500 else line[:497] + "..."


def from_error(error: BaseException) -> Report:
    """The report on an error in the toolkit's own work: configuration, code, installation, stores, hosts."""
    if isinstance(error, errors.ToolkitError):
        report = Report(error.failure_class, str(error), error.exit_code)
        report.fields["exception"] = type(error).__name__
        output = getattr(error, "output", None) or ""
        text = output.decode("utf-8", "replace") if isinstance(output, bytes) else str(output)
        report.fields["stderr"] = text.splitlines()[-STDERR_LINES:]
        if isinstance(error, errors.StoppedError):
            report.fields["signal"] = signal.Signals(error.number).name
        return report
    if isinstance(error, OSError):
        number = error.errno if isinstance(error.errno, int) and 0 < error.errno < 126 else 1
        return Report(errors.CLIENT_ERROR, f"Cannot prepare or finish the job: {error}.", number)
    report = Report(errors.INTERNAL_ERROR, f"Fault in the toolkit: {type(error).__name__}: {error}", 1)
    report.fields["stderr"] = traceback.format_exc().splitlines()[-STDERR_LINES:]
    report.fields["hint"] = "This is not the script's fault. Please report it with failure.json."
    return report


def from_outcome(outcome: Outcome, name: str, memory_kills: int = 0) -> Report:
    """The report on a script that ran.

    Args:
        outcome: how it ended.
        name: the entry point, for the text.
        memory_kills: processes that the kernel killed for memory in this container during the run.
    """
    text = outcome.stderr.decode("utf-8", "replace")
    trace = tracebacks.find(text)
    first = tracebacks.elastic_failure(text) or tracebacks.mpi_failure(text)
    status = _status(outcome, first)
    lines = tracebacks.script_lines(text)
    report = Report(*_judge(outcome, status, trace, name, memory_kills, lines))
    fields = report.fields
    if status < 0 or outcome.stop_signal:
        fields["signal"] = _signal_name(-status if status < 0 else outcome.stop_signal or 0)
    if trace is not None:
        fields.update(exception=trace.kind, message=trace.message, traceback=trace.frames, rank=trace.rank)
    if "rank" in first:
        fields["rank"] = int(first["rank"])
    fields["stderr"] = [line[:LINE_LIMIT] for line in lines[-STDERR_LINES:]]
    fields["hint"] = _hint(fields["class"], text)
    return report


def from_hang(outcome: Outcome, name: str, reason: str) -> Report:
    """The report on a script that was stopped because it hung."""
    report = Report(errors.HUNG, f"{name} was {reason}", outcome.exit_code or 1)
    lines = outcome.stderr.decode("utf-8", "replace").splitlines()
    report.fields["stderr"] = [line[:LINE_LIMIT] for line in lines[-STDERR_LINES:]]
    report.fields["hint"] = "The log has the stacks of its processes: look for one that waits for another."
    return report


def _status(outcome: Outcome, first: dict[str, str]) -> int:
    """The script's own status: that of the first rank that failed, from the launcher's report.

    torchrun itself always ends with 1, and mpirun gives the signal that killed a rank as an exit code.
    """
    if "signal" in first:
        return -int(first["signal"])
    try:
        return int(first["exitcode"]) or outcome.status
    except (KeyError, ValueError):
        return outcome.status


def _judge(
    outcome: Outcome,
    status: int,
    trace: tracebacks.Trace | None,
    name: str,
    memory_kills: int,
    lines: list[str],
) -> tuple[str, str, int]:
    """Class, reason and exit code, by the first rule that fits."""
    code = 128 - status if status < 0 else status
    if outcome.stop_signal is not None:
        asked = _signal_name(outcome.stop_signal)
        return (
            errors.PREEMPTED,
            f"Stopped: {asked} was passed on and {name} ended with exit code {code}",
            code,
        )
    if outcome.timed_out:
        return errors.TIMEOUT, f"Timeout: {name} was stopped after {outcome.seconds:.0f} s", code or 124
    if memory_kills and code == 128 + signal.SIGKILL:
        return errors.OUT_OF_MEMORY, f"Out of memory: the kernel killed {name} at the container's limit", code
    if memory_kills and code:
        after = trace.summary() if trace is not None else f"exit code {code}"
        killed = f"the kernel killed a process of {name} at the container's limit"
        return errors.OUT_OF_MEMORY, f"Out of memory: {killed}; then {after}", code
    if trace is not None and (trace.short_kind in _MEMORY_TYPES or "CUDA out of memory" in trace.message):
        return errors.OUT_OF_MEMORY, f"Out of memory: {trace.summary()}", code
    if status < 0:
        return errors.SIGNAL, f"{name} was killed by {_signal_name(-status)}", code
    if trace is not None and code:
        ours = trace.kind.startswith("shunter_toolkit.errors.")  # in a framework's own code
        own_class = getattr(getattr(errors, trace.short_kind, None), "failure_class", None) if ours else None
        return own_class or errors.USER_ERROR, trace.message if own_class else trace.summary(), code
    return errors.USER_ERROR, f"{name} ended with exit code {code}{_last_words(lines)}", code


def _last_words(lines: list[str]) -> str:
    words = [line.strip() for line in lines if line.strip()]
    return f": {words[-1][:300]}" if words else ""


def _hint(failure_class: str, text: str) -> str | None:
    if any(words in text for words in _DISK_FULL):
        return "The disk is full: ask for a larger volume, or write less outside the model directory."
    if failure_class == errors.OUT_OF_MEMORY:
        return "Ask for more memory, or use smaller batches or fewer workers."
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Writer:
    """Writes the report, even if the disk is full: space for it is reserved before the script starts."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._reserve = os.path.join(layout.output, ".failure.reserve")

    def prepare(self) -> None:
        """Remove what an earlier attempt left, and reserve room. A read-only directory is accepted."""
        for path in (self.layout.failure, self.layout.failure_json, self.layout.success):
            _remove(path)
        try:
            os.makedirs(self.layout.output, exist_ok=True)
            with open(self._reserve, "wb") as file:
                kernel.reserve_space(file.fileno(), _RESERVE)
        except OSError:
            _remove(self._reserve)

    def succeed(self) -> None:
        """Write the empty ``success`` file."""
        _remove(self._reserve)
        _write(self.layout.success, "")

    def fail(self, report: Report, masker: Masker | None) -> None:
        """Write ``failure.json``, and ``failure`` unless the script wrote one or the job was only stopped."""
        _remove(self._reserve)
        if masker is not None:  # before the text is shortened: half a secret would not be recognised
            report.fields = masker.json(report.fields)
        fields = {**report.fields, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        text = report.text()
        own = _read(self.layout.failure)
        if own.strip():
            fields["reason"] = own.strip().splitlines()[0][:REASON_LIMIT]
        if masker is not None:
            fields = masker.json(fields)
        document = json.dumps(fields, indent=1, ensure_ascii=False) + "\n"
        if not own and not report.stopped:
            _write(self.layout.failure, text)
        _write(self.layout.failure_json, document)
        _leave_message(fields)


def _leave_message(fields: dict[str, Any]) -> None:
    """Write the report's most important fields to the file that the platform keeps longest, if it names one.

    Kubernetes keeps 4096 bytes of its ``terminationMessagePath`` with the pod.
    """
    path = os.environ.get(TERMINATION_MESSAGE)
    if not path:
        return
    wanted = ("class", "exit_code", "signal", "exception", "rank", "host", "time")
    message = {"message": _first_line(str(fields["reason"]))}
    message.update({key: fields[key] for key in wanted if fields.get(key) is not None})
    text = json.dumps(message, ensure_ascii=False)
    if len(text.encode("utf-8", "replace")) > REASON_LIMIT:
        text = json.dumps({"message": message["message"][:200]}, ensure_ascii=False)
    _write(path, text)


def _write(path: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        log.error(f"Cannot write {path}: {error}")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(64 * 1024)
    except OSError:
        return ""


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)

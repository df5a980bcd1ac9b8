"""The metrics of a job: values that regular expressions find in its logs.

A regular expression such as ``(a+)+$`` can take forever on a line that it does not match. So they run in
another process, this file as a script, which gives up those that take too long.
"""

from __future__ import annotations

import json
import re
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO, Any

    from trainyard.schedulers.aws.sagemaker_local.training_job import TrainingJob

#: CPU seconds that an expression may take on one line.
LIMIT = 2.0


def final_metrics(
    job: TrainingJob, request: dict[str, Any], state: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the last value of every metric in the last attempt's logs, and what went wrong, in words."""
    found: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    streams = [stream for host in state["hosts"] for stream in host["streams"][-1:]]
    for name, moment, value in metric_values(job, request, streams, problems):
        if moment >= found.get(name, {}).get("Timestamp", 0):
            found[name] = {"MetricName": name, "Value": value, "Timestamp": moment}
    definitions = request["AlgorithmSpecification"].get("MetricDefinitions") or ()
    return [found[each["Name"]] for each in definitions if each["Name"] in found], problems


def metric_values(
    job: TrainingJob, request: dict[str, Any], streams: list[str], problems: list[str]
) -> Iterator[tuple[str, float, float]]:
    """Yield metrics that logs show: name, time in seconds since the epoch, and value; a log at a time.

    Args:
        job: the job's directory.
        request: the job's request.
        streams: names of its logs.
        problems: receives why a metric is not complete.
    """
    definitions = request.get("AlgorithmSpecification", {}).get("MetricDefinitions") or ()
    pairs = [(each["Name"], each["Regex"]) for each in definitions]
    if not pairs or not streams:
        return
    import contextlib
    import subprocess
    import threading

    from trainyard.schedulers.aws.sagemaker_local.logs import Log, log_path

    times: list[float] = []

    def feed(pipe: IO[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError), pipe:
            pipe.write(json.dumps(pairs).encode() + b"\n")
            for stream in streams:
                for event in Log(log_path(job, stream)).events(0, is_complete=True):
                    times.append(event.time_ms / 1000)
                    pipe.write(event.data.rstrip(b"\n") + b"\n")

    command = [sys.executable, "-SP", __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as search:
        assert search.stdin is not None
        assert search.stdout is not None
        feeder = threading.Thread(target=feed, args=(search.stdin,), name="metrics", daemon=True)
        feeder.start()
        for line in search.stdout:
            index, at, value = json.loads(line)
            name, regex = pairs[index]
            if value is None:
                problems.append(
                    f"the metric {name} is not complete: its regular expression {regex!r} took more than "
                    f"{LIMIT:g} s on one line"
                )
            else:
                yield name, times[at], value
        feeder.join()


def _search(pairs: list[tuple[str, str]], lines: Iterable[bytes]) -> Iterator[tuple[int, int, float | None]]:
    """Yield what is found: numbers of the pair and the line, and the value; None for a pair given up."""
    patterns: dict[int, re.Pattern[str]] = {}
    for index, (_, regex) in enumerate(pairs):
        try:
            patterns[index] = re.compile(regex)
        except re.error:  # refused before; Java's dialect is not quite Python's
            continue
    for at, data in enumerate(lines):
        line = data.rstrip(b"\n").decode("utf-8", "replace")
        for index in list(patterns):
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
            try:
                value = _value(patterns[index], line)
            except TimeoutError:
                del patterns[index]
                yield index, at, None
            else:
                if value is not None:
                    yield index, at, value
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _value(pattern: re.Pattern[str], line: str) -> float | None:
    """Return the last number that a pattern finds in a line."""
    value = None
    for match in pattern.finditer(line):
        text = match.group(1) if pattern.groups else match.group()
        try:
            value = float(text)
        except (TypeError, ValueError):
            continue
    return value


def _stop(signum: int, frame: object) -> None:
    raise TimeoutError


def _main() -> None:
    signal.signal(signal.SIGVTALRM, _stop)
    pairs = json.loads(sys.stdin.buffer.readline())
    for found in _search(pairs, sys.stdin.buffer):
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    _main()

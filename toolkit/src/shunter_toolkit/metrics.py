"""MetricDefinitions: finds values in the script's output as it passes, and appends them to ``metrics.jsonl``.

A regex such as ``(a+)+$`` can take forever on a line that it does not match, and would keep the toolkit from
passing on output and signals. A regex that takes too long is no longer used.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from typing import Any, Optional

from . import log, metric_shapes
from .errors import ConfigError

_LONGEST_LINE = 1024 * 1024
#: CPU seconds that a regex may take on one block of output.
LIMIT = 2.0
# With these in a regex, searching many lines differs from searching each line, even with MULTILINE.
_LINE_BOUND = re.compile(rb"\\[AZ]|\(\?(?![:P])|\(\?P=")


class Definition:
    """One metric: a name, and a regular expression whose first group is the number.

    Without an expression, the metric is found by its name, see `metric_shapes`.
    """

    def __init__(self, name: str, regex: str = "") -> None:
        self.name = name
        self.block: Optional[re.Pattern[bytes]]
        self._shape: Optional[re.Pattern[str]] = None
        if not regex:
            self._shape = re.compile(metric_shapes.expression(name))
            self.block = re.compile(re.escape(name.split()[-1]).encode("utf-8"), re.IGNORECASE)
            return
        pattern = regex.encode("utf-8")
        try:
            self._line = re.compile(pattern)
            self.block = None if _LINE_BOUND.search(pattern) else re.compile(pattern, re.MULTILINE)
        except re.error as error:
            raise ConfigError(
                f"Cannot use the metric {name!r}: its regex {regex!r} is wrong ({error})."
            ) from None
        if self._line.groups < 1:
            raise ConfigError(
                f"Cannot use the metric {name!r}: its regex {regex!r} has no group. "
                f"Put the number in parentheses, or leave the regex out: the name is enough."
            )

    def value(self, line: bytes) -> Optional[float]:
        """Return the value in a line, if there is one."""
        if self._shape is not None:
            return metric_shapes.value_of(self._shape, line.decode("utf-8", "replace"))
        match = self._line.search(line)
        try:
            return float(match.group(1) or b"") if match else None
        except ValueError:
            return None


def parse_definitions(value: Any) -> list[Definition]:
    """Read ``[{"Name": ..., "Regex": ...}, ...]``; the keys may be in lower case, and the regex left out.

    Raises:
        ConfigError: the list has another shape, or a regex is wrong.
    """
    try:
        return [
            Definition(item.get("Name") or item["name"], item.get("Regex") or item.get("regex") or "")
            for item in value
        ]
    except (TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"Cannot use the metric definitions {value!r}: "
            f'write [{{"Name": "loss"}}], or [{{"Name": "loss", "Regex": "loss is (.*)"}}].'
        ) from None


class Recorder:
    """Matches the lines of one stream. One line gives at most one value per metric, as on SageMaker.

    A regex searches a block of many lines at once, and then each line in which it was found, so that lines
    without metrics cost next to nothing.
    """

    def __init__(self, definitions: list[Definition], path: str, stream: str) -> None:
        self._definitions = definitions
        self._path = path
        self._stream = stream
        self._rest = b""

    def observe(self, data: bytes) -> None:
        """Process the next bytes of the stream."""
        block = self._rest + data
        if b"\r" in block:
            block = block.replace(b"\r", b"\n")  # progress bars redraw a line: each version is read
        end = block.rfind(b"\n") + 1
        if end == 0 and len(block) < _LONGEST_LINE:
            self._rest = block
            return
        end = end or len(block)
        self._rest = block[end:]
        self._record(block[:end])

    def close(self) -> None:
        """Process the rest as a last line without a line feed."""
        if self._rest:
            self._record(self._rest)
            self._rest = b""

    def _record(self, block: bytes) -> None:
        now = round(time.time(), 3)
        hits: list[tuple[int, str, float]] = []
        for definition in self._definitions:
            try:
                hits += [(position, definition.name, value) for position, value in _values(definition, block)]
            except TimeoutError:
                log.warning(
                    f"Cannot record the metric {definition.name!r}: its regex took more than {LIMIT:g} s on "
                    f"the script's output. No more of it is recorded."
                )
                self._definitions = [other for other in self._definitions if other is not definition]
        hits.sort()
        lines = [
            json.dumps({"time": now, "name": name, "value": value, "stream": self._stream})
            for _, name, value in hits
        ]
        if lines:
            self._append("\n".join(lines) + "\n")

    def _append(self, text: str) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:  # a full disk must not end the training
            log.warning(f"Cannot record metrics in {self._path}: {error}. No more are recorded.")
            self._definitions = []


def _values(definition: Definition, block: bytes) -> list[tuple[int, float]]:
    """(position, value) of each line that has one.

    Raises:
        TimeoutError: that took too long. Only the main thread has a limit.
    """
    try:
        before = signal.signal(signal.SIGVTALRM, _give_up)
    except ValueError:  # not the main thread
        return list(_search(definition, block))
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
        return list(_search(definition, block))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _give_up(number: int, frame: object) -> None:
    raise TimeoutError


def _search(definition: Definition, block: bytes) -> Iterator[tuple[int, float]]:
    for start, end in _hit_lines(definition, block):
        value = definition.value(block[start:end])
        if value is not None:
            yield start, value


def _hit_lines(definition: Definition, block: bytes) -> Iterator[tuple[int, int]]:
    position = 0
    while position < len(block):
        if definition.block is None:
            start = position
        else:
            hit = definition.block.search(block, position)
            if hit is None:
                return
            start = max(block.rfind(b"\n", position, hit.start()) + 1, position)
        end = block.find(b"\n", start)
        end = len(block) if end < 0 else end
        yield start, end
        position = end + 1

"""MetricDefinitions: finds values in the script's output as it passes, and writes them to a file of lines."""

from __future__ import annotations

import json
import re
import time
from typing import Any, Optional

from . import log, metric_shapes
from .errors import ConfigError

_LONGEST_LINE = 1024 * 1024


class Definition:
    """One metric: a name, and a regular expression whose first group is the number.

    Without an expression, the metric is found by its name, see `metric_shapes`.
    """

    def __init__(self, name: str, regex: str = "") -> None:
        self.name = name
        self._regex: Optional[re.Pattern[bytes]] = None
        if not regex:
            self._shape = re.compile(metric_shapes.expression(name))
            self._word = name.split()[-1].lower().encode()
            return
        try:
            self._regex = re.compile(regex.encode("utf-8"))
        except re.error as error:
            raise ConfigError(
                f"Cannot use the metric {name!r}: its regex {regex!r} is wrong ({error})."
            ) from None
        if self._regex.groups < 1:
            raise ConfigError(
                f"Cannot use the metric {name!r}: its regex {regex!r} has no group. "
                f"Put the number in parentheses, or leave the regex out: the name is enough."
            )

    def value(self, line: bytes) -> Optional[float]:
        """Return the value in a line, if there is one."""
        if self._regex is None:
            if self._word not in line.lower():
                return None
            return metric_shapes.value_of(self._shape, line.decode("utf-8", "replace"))
        match = self._regex.search(line)
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
    """Matches the lines of one stream. One line gives at most one value per metric, as on SageMaker."""

    def __init__(self, definitions: list[Definition], path: str, stream: str) -> None:
        self._definitions = definitions
        self._path = path
        self._stream = stream
        self._rest = b""

    def observe(self, data: bytes) -> None:
        """Process the next bytes of the stream. Progress bars redraw a line: each version of it is read."""
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) >= _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        self._record(lines)

    def close(self) -> None:
        """Process the rest as a last line without a line feed."""
        self._record([self._rest])
        self._rest = b""

    def _record(self, lines: list[bytes]) -> None:
        now = round(time.time(), 3)
        rows = [
            {"time": now, "name": definition.name, "value": value, "stream": self._stream}
            for line in lines
            for definition in self._definitions
            if (value := definition.value(line)) is not None
        ]
        if not rows:
            return
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))
        except OSError as error:  # a full disk must not end the training
            log.warning(f"Cannot record metrics in {self._path}: {error}. No more are recorded.")
            self._definitions = []

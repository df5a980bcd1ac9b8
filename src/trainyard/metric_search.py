"""The search for metric values in lines of output, by regular expressions.

A regular expression such as ``(a+)+$`` can take forever on a line that it does not match. So they run in
another process, this file as a script, which drops those that take too long.

A line gives at most one value for each expression: its last match, the first group of it if there is one.
Blocks of lines are searched whole, and a line is looked at by itself only where that finds something, so that
lines without metrics cost next to nothing.
"""

from __future__ import annotations

import json
import re
import signal
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from subprocess import Popen
    from typing import Self

#: CPU seconds that an expression may take on one line.
LIMIT = 2.0
# With these, a search over many lines can miss what a search of each line finds, even with MULTILINE.
_LINE_BOUND = re.compile(r"\\[AZ]|\(\?(?![:P])|\(\?P=|[*+?}]\+")
_LENGTH = struct.Struct("<Q")

Hit = tuple[int, int, float]

_EXAMPLE = "An example: --metric 'loss=loss: ([0-9.]+)'"


def parse_definitions(texts: Iterable[str]) -> dict[str, str]:
    """Read ``NAME=REGEX`` texts.

    Raises:
        UsageError: one has another shape, or a metric is given twice.
        ConfigError: a regular expression is not valid, or has no group.
    """
    from trainyard.errors import UsageError

    found: dict[str, str] = {}
    for text in texts:
        name, separator, regex = text.partition("=")
        name = name.strip()
        if not separator or not name or not regex:
            raise UsageError(f"--metric {text!r} is not NAME=REGEX", hint=_EXAMPLE)
        if name in found:
            raise UsageError(f"--metric: the metric {name!r} is given twice")
        check_definition(name, regex)
        found[name] = regex
    return found


def check_definition(name: str, regex: str) -> None:
    """Check that an expression is valid and has a group around the value.

    Raises:
        ConfigError: it is not, or has none.
    """
    from trainyard.errors import ConfigError

    try:
        groups = re.compile(regex).groups
    except re.error as error:
        raise ConfigError(
            f"metric {name!r}: the regular expression {regex!r} is not valid: {error}", hint=_EXAMPLE
        ) from None
    if not groups:
        raise ConfigError(f"metric {name!r}: {regex!r} has no parentheses around the value", hint=_EXAMPLE)


class MetricSearch:
    """Searches blocks of lines for the values of metrics, in a separate process. A context manager.

    Args:
        pairs: names and regular expressions. Those that are not valid find nothing.

    Attributes:
        problems: why a metric is not complete, in words.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._pairs = list(pairs)
        self._process: Popen[bytes] | None = None
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def search(self, block: bytes) -> list[Hit]:
        """Return where lines with values begin in a block, the number of the pair, and the value."""
        if not self._pairs or not block:
            return []
        search = self._process or self._start()
        assert search.stdin is not None
        assert search.stdout is not None
        search.stdin.write(_LENGTH.pack(len(block)) + block)
        search.stdin.flush()
        hits: list[Hit] = []
        for line in search.stdout:
            found = json.loads(line)
            if found is None:
                return hits
            at, index, value = found
            if value is None:
                name, regex = self._pairs[index]
                self.problems.append(
                    f"the metric {name} is not complete: its regular expression {regex!r} took more than "
                    f"{LIMIT:g} s on one line"
                )
            else:
                hits.append((at, index, value))
        raise RuntimeError("the process that searches for metrics has ended")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _start(self) -> Popen[bytes]:
        import subprocess

        command = [sys.executable, "-SPE", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([regex for _, regex in self._pairs]).encode() + b"\n")
        return self._process


class _Expression:
    """An expression that is searched for in single lines or, if that finds the same, in many at once."""

    def __init__(self, regex: str) -> None:
        self.line = re.compile(regex)
        self.block = None if _LINE_BOUND.search(regex) else re.compile(regex, re.MULTILINE)

    def hits(self, text: str) -> Iterator[tuple[int, float]]:
        """Yield where lines with a value begin, and the values.

        Raises:
            TimeoutError: one line took too long.
        """
        position = 0
        while position < len(text):
            if self.block is not None:
                try:
                    with _limit():
                        match = self.block.search(text, position)
                except TimeoutError:
                    self.block = None  # a single line may still be quick
                    continue
                if match is None:
                    return
                start = max(text.rfind("\n", position, match.start()) + 1, position)
            else:
                start = position
            end = text.find("\n", start)
            end = len(text) if end < 0 else end
            with _limit():
                value = _last_value(self.line, text[start:end])
            if value is not None:
                yield start, value
            position = end + 1


def _last_value(pattern: re.Pattern[str], line: str) -> float | None:
    """Return the last number that a pattern finds in a line."""
    value = None
    for match in pattern.finditer(line):
        text = match.group(1) if pattern.groups else match.group()
        try:
            value = float(text)
        except (TypeError, ValueError):
            continue
    return value


class _limit:
    """Raises TimeoutError in its body when that takes too long."""

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)

    def __exit__(self, *exception: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _stop(signum: int, frame: object) -> None:
    raise TimeoutError


def _search_block(expressions: dict[int, _Expression], block: bytes) -> list[tuple[int, int, float | None]]:
    """Return what is found in a block; the value is None for an expression that was dropped."""
    # a progress bar draws over its line: each drawing is a line
    text = block.decode("utf-8", "surrogateescape").replace("\r", "\n")
    is_ascii = len(text) == len(block)
    found: list[tuple[int, int, float | None]] = []
    for index in list(expressions):
        done, offset = 0, 0
        try:
            for start, value in expressions[index].hits(text):
                if is_ascii:
                    offset = start
                else:
                    offset += len(text[done:start].encode("utf-8", "surrogateescape"))
                    done = start
                found.append((offset, index, value))
        except TimeoutError:
            del expressions[index]
            found.append((len(block), index, None))
    return sorted(found, key=lambda hit: hit[0])


def _main() -> None:
    signal.signal(signal.SIGVTALRM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its input does
    source, target = sys.stdin.buffer, sys.stdout
    expressions = {}
    for index, regex in enumerate(json.loads(source.readline())):
        try:
            expressions[index] = _Expression(regex)
        except re.error:  # refused before; Java's dialect, which SageMaker reads, is not quite Python's
            continue
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        for found in _search_block(expressions, source.read(_LENGTH.unpack(head)[0])):
            target.write(json.dumps(found) + "\n")
        target.write("null\n")
        target.flush()


if __name__ == "__main__":
    _main()

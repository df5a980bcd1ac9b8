"""The search for metrics in lines of output: by their names, by regular expressions, or whatever is there.

How programs print metrics is in the toolkit's `metric_shapes`. A metric is declared by its name alone, or by
its name and a regular expression; in dicts of metrics the expression is then empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from shunter._toolkit import metric_shapes
from shunter.errors import ConfigError, UsageError

_EXAMPLE = "An example: --metric loss. Or with a regular expression: --metric 'loss=loss is (.*)'"
#: These are in a regular expression, and in no name.
_NOT_IN_NAMES = re.compile(r"[\\*+?^$|{}\[\]:;,]")
#: A number in a line; a sign after a letter or a digit does not belong to it.
_WHOLE = re.compile(r"(?:(?<![\w.])[-+])?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

# ---- what is found without any declaration

_NAME = r"[A-Za-z][\w./@-]*"
# the words before a colon in "| learning rate: 1e-4 |"
_TITLE = r"(?<=\|)[ \t]*[A-Za-z][\w./()%-]*(?: [\w./()%-]+)*(?=[ \t]*:)"
_PAIR = re.compile(
    rf"{metric_shapes.BEFORE}(?:(?P<title>{_TITLE})|(?P<name>{_NAME}))"
    rf"(?P<between>{metric_shapes.BETWEEN}){metric_shapes.OPENING}(?P<number>{metric_shapes.NUMBER})"
    r"""(?!%\|)(?=[%a-zA-Z/]{0,5}\.?(?:[\s,;)\]}|"'│]|:\s|$))"""  # "train:  12%|█" is a progress bar
)
_DECIMAL = re.compile(r"[.eEnN]")
#: Names of numbers that are not measured.
_OTHER = re.compile(
    r"(?:(?:global_|_)?steps?|iter(?:ation)?s?|epochs?|batch(?:es)?)(?: \d+)?"
    r"|(?:local_)?rank|world_size|pid|seed|port|eta|line|ts|timestamp|debug|info|warn(?:ing)?",
    re.IGNORECASE,
)
#: Words, not names, before a number without ``=`` or ``:``.
_WORDS = re.compile(
    r"a|about|after|and|at|by|every|for|from|in|into|is|it|of|on|or|over|reached|than|the|to|took|until|version|was|with",
    re.IGNORECASE,
)
# "valid_0's l2: 0.2" of LightGBM
_OWNER = re.compile(r"(?:^|\s)([\w.-]{1,60}'s)[ \t]+$")
# what a name before a column's line is, if a number stands before it: "26.5 ms | 45.1%"
_AMOUNT = re.compile(r"\d[ \t]+$")


def parse_definitions(texts: Iterable[str]) -> dict[str, str]:
    """Read ``NAME`` and ``NAME=REGEX`` texts; the expression of a name alone is empty.

    Raises:
        UsageError: one has another shape, or a metric is given twice.
        ConfigError: a regular expression is not valid, or has no group.
    """
    definitions: dict[str, str] = {}
    for text in texts:
        name, separator, regex = text.partition("=")
        name = name.strip()
        if not name or (separator and not regex) or (not separator and _NOT_IN_NAMES.search(name)):
            raise UsageError(f"--metric {text!r} is neither NAME nor NAME=REGEX", hint=_EXAMPLE)
        if name in definitions:
            raise UsageError(f"--metric: the metric {name!r} is given twice")
        check_definition(name, regex)
        definitions[name] = regex
    return definitions


def check_definition(name: str, regex: str) -> None:
    """Check that an expression is valid and has a group around the value; an empty one is.

    Raises:
        ConfigError: it is not, or has none.
    """
    try:
        groups = re.compile(regex).groups
    except re.error as error:
        raise ConfigError(
            f"metric {name!r}: the regular expression {regex!r} is not valid: {error}", hint=_EXAMPLE
        ) from None
    if regex and not groups:
        raise ConfigError(f"metric {name!r}: {regex!r} has no parentheses around the value", hint=_EXAMPLE)


class MetricSearch:
    """Searches lines for the values of metrics.

    A line gives at most one value for each metric: the first that a name finds, the last that an expression
    finds.

    Args:
        pairs: names and regular expressions, see `parse_definitions`. Those that are not valid find nothing.

    Attributes:
        problems: which values are not what the job printed, in words.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.problems: list[str] = []
        self._warned: set[str] = set()
        self._named: list[tuple[str, re.Pattern[str]]] = []
        self._given: list[tuple[str, re.Pattern[str]]] = []
        for name, regex in pairs:
            shape = metric_shapes.expression(name)
            if regex in ("", shape):
                self._named.append((name, re.compile(shape)))
                continue
            try:
                self._given.append((name, re.compile(regex)))
            except re.error:  # refused before; Java's dialect, which SageMaker reads, is not quite Python's
                continue

    @property
    def names(self) -> list[str] | None:
        """The names of which one is in each line that has a value; None if an expression decides."""
        return None if self._given else [name for name, _ in self._named]

    def values(self, line: str) -> Iterator[tuple[str, float]]:
        """Yield the names and values of the metrics in a line."""
        for name, pattern in self._named:
            value = metric_shapes.value_of(pattern, line)
            if value is not None:
                yield name, value
        for name, pattern in self._given:
            value = self._last_value(name, pattern, line)
            if value is not None:
                yield name, value

    def _last_value(self, name: str, pattern: re.Pattern[str], line: str) -> float | None:
        value = None
        for match in pattern.finditer(line):
            group = 1 if pattern.groups else 0
            try:
                value = float(match.group(group))
            except (TypeError, ValueError):
                continue
            if name not in self._warned:
                self._check(name, pattern.pattern, line, *match.span(group))
        return value

    def _check(self, name: str, regex: str, line: str, start: int, end: int) -> None:
        """Say of the first value that is only a part of a number, that it is."""
        around = line[max(start - 1, 0) : start] + line[end : end + 1]
        if not any(sign in "0123456789.eE+-" for sign in around):
            return
        for match in _WHOLE.finditer(line):
            if match.start() <= start and end <= match.end() and match.end() - match.start() > end - start:
                self._warned.add(name)
                self.problems.append(
                    f"the regular expression {regex!r} of {name} reads {line[start:end]} of {match.group()}; "
                    f"`--metric {name}` without an expression reads all of it"
                )


def lines_with(names: Sequence[str], block: bytes) -> Iterator[tuple[int, str]]:
    """Yield those lines of `lines_of` in which one of these names may have a value: much faster."""
    first_words = {re.escape(word.encode()) for name in names for word in name.split()[:1]}
    if not first_words:
        return
    pattern = re.compile(b"|".join(sorted(first_words)), re.IGNORECASE)
    block = block.replace(b"\r", b"\n")
    match = pattern.search(block)
    while match:
        start = block.rfind(b"\n", 0, match.start()) + 1
        end = block.find(b"\n", match.end())
        end = len(block) if end < 0 else end
        yield start, block[start:end].decode("utf-8", "replace")
        match = pattern.search(block, end)


def lines_of(block: bytes) -> Iterator[tuple[int, str]]:
    """Yield where the lines of a block begin, and their text."""
    start = 0
    # a progress bar draws over its line: each drawing is a line
    for line in block.replace(b"\r", b"\n").split(b"\n"):
        if line:
            yield start, line.decode("utf-8", "replace")
        start += len(line) + 1


def pairs_in(line: str) -> Iterator[tuple[str, float, bool, bool]]:
    """Yield what may be metrics in a line: name, value, and two facts.

    The first is whether ``=`` or ``:`` stands between, the second whether the number is whole. Steps, times,
    addresses and versions are left out. Of several values of a name the first counts.
    """
    seen: set[str] = set()
    if "\x1b" in line:
        line = metric_shapes.without_colours(line)
    for match in _PAIR.finditer(line):
        text, between = match["number"], match["between"]
        is_whole = not _DECIMAL.search(text)
        is_separated = "=" in between or ":" in between
        if between == ":" and is_whole:  # cuda:0, localhost:8080, train.py:12
            continue
        name = match["name"] or match["title"].strip()
        if _OTHER.fullmatch(name) or (not is_separated and (is_whole or _WORDS.fullmatch(name))):
            continue
        if metric_shapes.is_unclear(text, line, match.end("number")):
            continue
        if match["name"]:
            start = match.start("name")
            before = line[max(start - 64, 0) : start]
            if "=" not in between and "|" in between and _AMOUNT.search(before):
                continue
            owner = _OWNER.search(before)
            word = owner.group(1) if owner else metric_shapes.qualifier(line, start)
            name = f"{word} {name}" if word else name
        if name not in seen:
            seen.add(name)
            yield name, metric_shapes.number(text), is_separated, is_whole

"""Whether a document shows what a command really prints. What differs from run to run is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

ALPHABET = "23456789bcdfghjkmnpqrtvwxyz"
JOB_ID = re.compile(
    rf"(?<![A-Za-z0-9-])[a-z0-9]+(?:-[a-z0-9]+)*-[{ALPHABET[8:]}][{ALPHABET}]{{9}}(?![a-z0-9])"
)
ID_BEGINNING = re.compile(rf"(?<![A-Za-z0-9-])[a-z0-9]+(?:-[a-z0-9]+)*-[{ALPHABET}]{{3,10}}(?![a-z0-9-])")
ELLIPSIS = "..."

_VARIABLE = [
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?"), "<time>"),
    (re.compile(r"\b\d+(?:\.\d+)? s\b|\b\d+:\d\d min\b|\b\d+:\d\d:\d\d h\b"), "<duration>"),
    (re.compile(r"\b\d+(?:\.\d)? (?:B|KiB|MiB|GiB)\b"), "<size>"),
    (re.compile(r"\b1\d{9}\.\d+\b"), "<seconds>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<hex>"),
    (re.compile(r"\b[0-9a-f]{64}\b|(?<=@)[0-9a-f]{12}\b|(?<=sha256:)[0-9a-f]{12}\b"), "<fingerprint>"),
    # a job that was started a moment ago may not have got any further
    (re.compile(r"\b(?:SUBMITTED|PENDING)\b"), "RUNNING"),
    # columns are as wide as what stands in them
    (re.compile(r"(?<=\S) {2,}"), "  "),
]
_REPLICA = re.compile(r"^(\S+/\d+) ")


class Ids:
    """The ids of a document's jobs, and those that the same jobs have here."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def learn(self, shown: str, real: str) -> bool:
        """Take two lines for the same; tells whether what is known of their ids allows that."""
        for there, here in zip(JOB_ID.findall(shown), JOB_ID.findall(real), strict=False):
            if self._real.get(there, here) != here:
                return False
            if there not in self._real and here in self._real.values():
                return False
            self._real[there] = here
        return True

    def translate(self, command: str) -> str:
        """Replace the document's ids, or beginnings of them, by ours."""

        def here(match: re.Match[str]) -> str:
            known = [real for shown, real in self._real.items() if shown.startswith(match[0])]
            return known[0][: len(match[0])] if len(known) == 1 else match[0]

        return ID_BEGINNING.sub(here, command)


def differences(shown: list[str], real: list[str], ids: Ids) -> list[str]:
    """Return what is wrong with the lines shown; nothing if they are what was printed.

    ``...`` stands for any number of lines.
    """
    wanted, found = _by_replica(shown), _by_replica(real)
    matched = _align([plain(line) for line in wanted], [plain(line) for line in found])
    if matched is None:
        return ["shown:", *(f"    {line}" for line in shown), "printed:", *(f"    {line}" for line in real)]
    return [
        f"another job: shown {wanted[i]!r}, printed {found[j]!r}"
        for i, j in matched
        if not ids.learn(wanted[i], found[j])
    ]


def plain(line: str) -> str:
    """Return a line without what differs from run to run."""
    line = JOB_ID.sub("<id>", line.rstrip())
    for pattern, name in _VARIABLE:
        line = pattern.sub(name, line)
    return line


def _by_replica(lines: list[str]) -> list[str]:
    """Put neighbouring log lines in the order of their replicas, which among each other have none."""

    def groups() -> Iterator[list[str]]:
        group: list[str] = []
        for line in lines:
            if group and not (_REPLICA.match(line) and _REPLICA.match(group[-1])):
                yield group
                group = []
            group.append(line)
        yield group

    def replica(line: str) -> str:
        match = _REPLICA.match(line)
        return match[1] if match else ""

    return [line for group in groups() for line in sorted(group, key=replica)]


def _align(wanted: list[str], found: list[str]) -> list[tuple[int, int]] | None:
    """Return which line shown is which line printed; None if they do not agree."""

    def match(i: int, j: int) -> list[tuple[int, int]] | None:
        if i == len(wanted):
            return [] if j == len(found) else None
        if wanted[i] == ELLIPSIS:
            return next((m for k in range(j, len(found) + 1) if (m := match(i + 1, k)) is not None), None)
        if j < len(found) and wanted[i] == found[j]:
            rest = match(i + 1, j + 1)
            return None if rest is None else [(i, j), *rest]
        return None

    return match(0, 0)

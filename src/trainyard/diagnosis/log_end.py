"""What the end of a log tells: the tracebacks of each process, and the first line that names an error."""

from __future__ import annotations

import re

from trainyard.lazy_dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Prefixes of lines when several processes write one log: torchrun's ``[0]:``, ``[trainer0]:``, torch's
#: ``[rank0]:``, and ``[1,0]<stderr>:`` of Open MPI (--tag-output).
_PREFIX = re.compile(r"(?:\[(?:[a-z_]*(?P<rank>\d+)|\d+,(?P<mpi>\d+))\](?:<\w+>)?:\s?)+")
_TRACEBACK = re.compile(r"\s*Traceback \(most recent call last\):")
_CHAINED = re.compile(
    r"During handling of the above exception|The above exception was the direct cause of the following"
)
#: Exceptions that only report how a child process ended.
_WRAPPER = re.compile(
    r"ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException|SystemExit"
)
_ERROR = re.compile(
    r"\b(error|fatal|exception|panic|abort(ed|ing)?|segmentation fault|killed|cannot|failed|failure)\b",
    re.IGNORECASE,
)
_ROOT_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank")
_ROOT_SIGNAL = re.compile(r"^\s*exitcode\s*: -(\d+) \(pid")
#: How many lines are shown, of a traceback and around an error.
TRACEBACK_LINES = 10
BEFORE, AFTER = 3, 6


@dataclass
class Traceback:
    """A traceback of Python, with those that it was caused by.

    Args:
        at: index of its first line.
        rank: number of the process among those that write the log; "" if there is one.
        lines: without prefixes.
        exceptions: the lines that name the exceptions, the original one first.
    """

    at: int
    rank: str
    lines: list[str]
    exceptions: list[str]

    @property
    def is_wrapper(self) -> bool:
        """Whether it says only that a child process failed."""
        return bool(_WRAPPER.search(self.exceptions[-1]))

    def shown(self) -> list[str]:
        """Return its last lines."""
        return self.lines[-TRACEBACK_LINES:]


def without_prefix(line: str) -> tuple[str, str]:
    """Split a line into the rank of the process that wrote it ("" if not said) and the text."""
    match = _PREFIX.match(line)
    if match is None:
        return "", line
    return match["rank"] or match["mpi"] or "", line[match.end() :]


def tracebacks(lines: Sequence[str]) -> list[Traceback]:
    """Return the tracebacks of a log in the order of their beginnings, those of each rank by itself."""
    by_rank: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(lines):
        rank, text = without_prefix(line)
        by_rank.setdefault(rank, []).append((number, text))
    found = [each for rank, numbered in by_rank.items() for each in _of_one_process(rank, numbered)]
    return sorted(found, key=lambda each: each.at)


def _of_one_process(rank: str, numbered: Sequence[tuple[int, str]]) -> list[Traceback]:
    found: list[Traceback] = []
    is_chained = False
    index = 0
    while index < len(numbered):
        at, text = numbered[index]
        index += 1
        if _CHAINED.search(text):
            is_chained = bool(found)
        if not _TRACEBACK.match(text):
            continue
        indent = len(text) - len(text.lstrip())
        lines, exception = [text], ""
        while index < len(numbered):
            line = numbered[index][1]
            index += 1
            lines.append(line)
            if (
                line.strip()
                and len(line) - len(line.lstrip()) <= indent
                and not line.lstrip().startswith("+")
            ):
                exception = line.strip()
                break
        if not exception:
            continue
        if is_chained:
            last = found[-1]
            last.lines += lines
            last.exceptions.append(exception)
        else:
            found.append(Traceback(at, rank, lines, [exception]))
        is_chained = False
    return found


def decisive(found: Sequence[Traceback]) -> Traceback | None:
    """Return the traceback that a program ended with.

    Of each process the last one that does not only report a child's end; of several processes the one that
    began first, since the others mostly fail for want of it.
    """
    own = [each for each in found if not each.is_wrapper] or list(found)
    last = {each.rank: each for each in own}
    return min(last.values(), key=lambda each: each.at) if last else None


def root_of_torchrun(lines: Sequence[str]) -> tuple[str, int]:
    """Return the rank that torchrun's summary names as the root cause, and its signal, or "" and 0."""
    rank, signal = "", 0
    is_root = False
    for line in lines:
        _, text = without_prefix(line)
        if "Root Cause (first observed failure)" in text:
            is_root, rank, signal = True, "", 0
        elif is_root and (match := _ROOT_RANK.match(text)):
            rank = match[1]
        elif is_root and (match := _ROOT_SIGNAL.match(text)):
            signal = int(match[1])
    return rank, signal


def around(lines: Sequence[str], needle: str = "") -> list[str]:
    """Return the lines around ``needle``, or the first that names an error, or else the last ones."""
    at = next(
        (n for n, line in enumerate(lines) if (needle in line if needle else _ERROR.search(line))), None
    )
    if at is None:
        return list(lines[-(BEFORE + AFTER) :])
    return list(lines[max(0, at - BEFORE) : at + AFTER])

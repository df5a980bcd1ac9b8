"""The end of a log: the tracebacks of each process, and the first line that names an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: Prefixes of lines when several processes write one log: torchrun's ``[0]:``, ``[trainer0]:``, torch's
#: ``[rank0]:``, and ``[1,0]<stderr>:`` of Open MPI (--tag-output).
_PREFIX = re.compile(r"(?:\[(?:[a-z_]*(?P<rank>\d+)|\d+,(?P<mpi>\d+))\](?:<\w+>)?:\s?)+")
_TRACEBACK = re.compile(r"\s*(?P<group>\+ Exception Group )?(Original )?Traceback \(most recent call last\):")
#: Of an exception group: the lines of its tree, and those that name an exception in it.
_GROUP_LINE = re.compile(r"\s*[|+]")
_IN_GROUP = re.compile(r"\s*\|\s(?P<exception>(\w+\.)*[A-Z]\w+(: .*)?)$")
_CHAINED = re.compile(
    r"During handling of the above exception|The above exception was the direct cause of the following|"
    r"^Original Traceback "  # torch, of a worker of its DataLoader
)
_FRAME = re.compile(r'\s+File ".*", line \d+')
NAMES_EXCEPTION = re.compile(r"(\w+\.)*[A-Z]\w*(Error|Exception|Exit|Interrupt|Iteration|Group|Warning)(:|$)")
#: How many lines of stdout in the middle of a traceback are recognised.
MOST_FOREIGN = 20
#: Exceptions that only report how a child process ended.
_WRAPPER = re.compile(
    r"ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException|SystemExit"
)
_ERROR = re.compile(
    r"\b(error|fatal|exception|panic(ked)?|abort(ed|ing)?|segmentation fault|killed|cannot|failed|failure|"
    r"not enough|unable to)\b",
    re.IGNORECASE,
)
_ROOT_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank")
_ROOT_SIGNAL = re.compile(r"^\s*exitcode\s*: -(\d+) \(pid")
#: How many lines are shown, of a traceback and around an error.
TRACEBACK_LINES = 10
BEFORE, AFTER = 3, 6
#: A line that names an error counts as the reason if it is within this many lines of the end.
NEAR_THE_END = 60


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
        return is_wrapper(self.exceptions[-1])

    def shown(self) -> list[str]:
        """Return its last lines."""
        return self.lines[-TRACEBACK_LINES:]


def is_wrapper(exception: str) -> bool:
    """Return whether an exception says only that a child process failed."""
    return bool(_WRAPPER.search(exception))


def without_prefix(line: str) -> tuple[str, str]:
    """Split a line into the rank of the process that wrote it ("" if not said) and the text."""
    match = _PREFIX.match(line)
    if match is None:
        return "", line
    return match["rank"] or match["mpi"] or "", line[match.end() :]


def tracebacks(lines: Sequence[str]) -> list[Traceback]:
    """Return the tracebacks of a log in the order of their beginnings; those of each rank separately."""
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
        begin = _TRACEBACK.match(text)
        if begin is None:
            continue
        if begin["group"]:
            group = [text]
            while index < len(numbered) and _GROUP_LINE.match(numbered[index][1]):
                group.append(numbered[index][1])
                index += 1
            named = [match["exception"] for line in group if (match := _IN_GROUP.match(line))]
            if named:  # the group itself, then those in it, the first of them last: it is shown
                found.append(Traceback(at, rank, group, [named[0], *reversed(named[1:])]))
            continue
        indent = _indent(text)
        lines, exception = [text], ""
        while index < len(numbered):
            line = numbered[index][1]
            index += 1
            if line.strip() and _indent(line) <= indent and not line.lstrip().startswith("+"):
                if _is_foreign(numbered, index, indent):
                    continue
                exception = line.strip()
            lines.append(line)
            if exception:
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


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_foreign(numbered: Sequence[tuple[int, str]], after: int, indent: int) -> bool:
    """Return whether the line before ``after`` belongs to stdout and only interrupts a traceback.

    The line that really names the exception is not followed by more frames or by a clearer exception line.
    """
    if NAMES_EXCEPTION.match(numbered[after - 1][1].strip()):
        return False
    for _, line in numbered[after : after + MOST_FOREIGN]:
        if _TRACEBACK.match(line):
            return False
        if _FRAME.match(line) or (_indent(line) == indent and NAMES_EXCEPTION.match(line.strip())):
            return True
    return False


def decisive(found: Sequence[Traceback]) -> Traceback | None:
    """Return the traceback that a program ended with.

    For each process, this is the last one that reports more than a child's end; among several processes, the
    one that began first, since the other processes usually fail as a consequence.
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


def last_words(lines: Sequence[str]) -> str:
    """Return the most telling line of a program that gives no reason: the last that names an error."""
    texts = [text for line in lines[-NEAR_THE_END:] if (text := without_prefix(line)[1].strip())]
    return next((text for text in reversed(texts) if _ERROR.search(text)), texts[-1] if texts else "")


def around(lines: Sequence[str], needle: str = "") -> list[str]:
    """Return the lines around ``needle``, or the first that names an error, or else the last ones."""
    at = next(
        (n for n, line in enumerate(lines) if (needle in line if needle else _ERROR.search(line))), None
    )
    if at is None:
        return list(lines[-(BEFORE + AFTER) :])
    return list(lines[max(0, at - BEFORE) : at + AFTER])

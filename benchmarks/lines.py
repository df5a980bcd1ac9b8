"""Numbered lines for a job to write, and a count of what became of them on the way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

#: What the commands say themselves, beside the lines of the job.
_MESSAGE = re.compile(rb"torchx \d{4}-|local_cwd://shunter/\S+ SUCCEEDED after")


@dataclass(frozen=True)
class Verdict:
    """What arrived of the lines that one replica wrote."""

    written: int
    lost: int
    doubled: int
    torn: int
    misplaced: int

    @property
    def is_perfect(self) -> bool:
        return self.lost == self.doubled == self.torn == self.misplaced == 0


def write_lines(path: Path, count: int, width: int) -> None:
    """Write so many different lines of so many bytes each, the line feed among them."""
    padding = b"x" * (width - 9)
    with path.open("wb") as file:
        for start in range(0, count, 10_000):
            stop = min(start + 10_000, count)
            file.writelines(b"%08d%s\n" % (number, padding) for number in range(start, stop))


def judge(output: Path, written: Path, replicas: int = 1) -> list[Verdict]:
    """Return, replica by replica, what became of the lines in a log that names the replica in each line."""
    expected = written.read_bytes().splitlines()
    got: dict[int, list[bytes]] = {replica: [] for replica in range(replicas)}
    torn = 0
    line_of = re.compile(rb"[\w-]+/(\d+) (.*)")
    with output.open("rb") as file:
        for line in file:
            match = line_of.fullmatch(line.rstrip(b"\n"))
            if match is not None and int(match[1]) in got:
                got[int(match[1])].append(match[2])
            elif not _MESSAGE.match(line):
                torn += 1
    return [_judge(got[replica], expected, torn if replica == 0 else 0) for replica in got]


def _judge(got: list[bytes], expected: list[bytes], torn: int) -> Verdict:
    if got == expected:
        return Verdict(len(expected), 0, 0, torn, 0)
    known = set(expected)
    whole = [line for line in got if line in known]
    distinct = set(whole)
    misplaced = sum(1 for before, after in pairwise(whole) if after < before)
    return Verdict(
        written=len(expected),
        lost=len(known) - len(distinct),
        doubled=len(whole) - len(distinct),
        torn=torn + len(got) - len(whole),
        misplaced=misplaced,
    )

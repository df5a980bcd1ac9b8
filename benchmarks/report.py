"""Rows of results: a table for people, JSON for machines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from harness import Usage

TORCHX = "TorchX"
FLOOR = "python -c pass"

T = TypeVar("T")


@dataclass(frozen=True)
class Goal:
    """What a row should reach: at most so much, of the ratio or of shunter's own value."""

    at_most: float
    of: str = "ratio"

    def __str__(self) -> str:
        return f"<= {self.at_most:g}" + ("" if self.of == "ratio" else f" {self.of}")


@dataclass(frozen=True)
class Row:
    """One comparison. Sample i of both sides was taken in the same round.

    Attributes:
        subject: what was done.
        measure: what was measured, with its unit.
        ours: shunter's samples.
        other: the samples compared with; empty if that side cannot do it.
        against: whose they are.
        goal: what should be reached.
        note: what has to be known to read it.
    """

    subject: str
    measure: str
    ours: Sequence[float]
    other: Sequence[float] = ()
    against: str = TORCHX
    goal: Goal | None = None
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """shunter's value through the other's, round by round."""
        return [mine / theirs for mine, theirs in zip(self.ours, self.other, strict=False) if theirs]

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached; None if there is none."""
        if self.goal is None:
            return None
        values = self.ratios if self.goal.of == "ratio" else self.ours
        return bool(values) and statistics.median(values) <= self.goal.at_most

    def to_json(self) -> dict[str, Any]:
        ratios = self.ratios
        return {
            **asdict(self),
            "ratios": ratios,
            "median_ratio": statistics.median(ratios) if ratios else None,
            "met": self.is_met,
        }


def row_of(
    subject: str,
    measure: str,
    done: Mapping[str, Sequence[T]],
    value: Callable[[T], float],
    goal: Goal | None = None,
    note: str = "",
) -> Row:
    """Return a row against TorchX from the results of `alternate` for the sides "ours" and "other"."""
    ours, other = ([value(one) for one in done[side]] for side in ("ours", "other"))
    return Row(subject, measure, ours, other, goal=goal, note=note)


def usage_rows(
    subject: str,
    ours: Sequence[Usage],
    other: Sequence[Usage],
    against: str = TORCHX,
    goal: Goal | None = None,
    note: str = "",
) -> list[Row]:
    """Return a row of cpu, which may have a goal, and one of wall time from what commands used."""
    rows = []
    for measure in ("cpu", "wall"):
        mine, theirs = ([getattr(usage, measure) * 1000 for usage in side] for side in (ours, other))
        aim = goal if measure == "cpu" else None
        rows.append(Row(subject, f"{measure} ms", mine, theirs, against, aim, note))
    return rows


def spread(values: Sequence[float]) -> str:
    """Return the quartiles, or the extremes of fewer than four values."""
    if len(values) < 4:
        low, high = min(values), max(values)
    else:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{low:.2f}-{high:.2f}"


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown."""
    head = ("what", "measure", "shunter", "other", "whose", "ratio", "spread", "n", "goal")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruled = [head, tuple("-" * width for width in widths), *lines[1:]]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in ruled
    ]
    notes = dict.fromkeys(f"* {row.subject}: {row.note}" for row in rows if row.note)
    return "\n".join([*text, *notes])


def _cells(row: Row) -> tuple[str, ...]:
    ratios = row.ratios
    met = {True: " met", False: " MISSED", None: ""}[row.is_met]
    return (
        row.subject + ("*" if row.note else ""),
        row.measure,
        number(statistics.median(row.ours)),
        number(statistics.median(row.other)) if row.other else "n/a",
        row.against,
        f"{statistics.median(ratios):.2f}" if ratios else "n/a",
        spread(ratios) if ratios else "",
        str(len(row.ours)),
        f"{row.goal}{met}" if row.goal else "",
    )


def number(value: float) -> str:
    """Return a number with three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

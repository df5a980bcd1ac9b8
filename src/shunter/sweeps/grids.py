"""The points of a sweep: from a grid in Python, or from words such as ``--lr 1e-3,1e-4 --seed 0..9``."""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shunter.components.component import Component
from shunter.errors import UsageError
from shunter.specs.sweep_points import Point

MOST_POINTS = 10_000
_RANGE = re.compile(r"(-?\d{1,15})\.\.(-?\d{1,15})(?:\.\.(\d{1,15}))?")
_ASSIGNMENT = re.compile(r"[+~]{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_OPENING, _CLOSING = "([{", ")]}"


def grid(axes: Mapping[str, Iterable[Any]], **fixed: Any) -> list[Point]:
    """Return the points of a grid, for `run_sweep`; the last axis varies fastest.

    Args:
        axes: values by parameter of the component.
        fixed: parameters with one value for all points.
    """
    lists = {name: list(values) for name, values in axes.items()}
    _check_number(lists)
    chosen = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    return [Point({name: str(value) for name, value in each.items()}, {**fixed, **each}) for each in chosen]


def points_from_words(
    component: Component, words: Sequence[str], sample: int | None, seed: int
) -> list[Point]:
    """Return the points that a command line describes.

    Values of options (``--lr 1e-3,1e-4``, ``--lr=1e-3,1e-4``) and of assignments (``lr=1e-3,1e-4``) are
    lists, see `values_of`. Those of parameters that are lists or dicts themselves are left alone.

    Raises:
        UsageError: nothing varies, an option's values are given twice, or there are too many points.
    """
    axes: dict[int, tuple[str, str, list[str]]] = {}
    for index, name, before, value in _values(component, words):
        found = values_of(value)
        if found != [value]:
            axes[index] = (name, before, found)
    names = [name for name, _, values in axes.values() if len(values) > 1]
    if not names:
        raise UsageError(
            "nothing varies: no option has several values",
            hint="Write them with commas, or a range: --lr 1e-3,1e-4 --seed 0..9",
        )
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"the values of {name} are given {names.count(name)} times",
                hint=f"Give all of them at once: --{name} A,B,C",
            )
    total = _check_number({index: values for index, (_, _, values) in axes.items()}, sample)
    chosen: Iterable[int] = range(total)
    if sample is not None and sample < total:
        generator, numbers = random.Random(seed), set[int]()
        while len(numbers) < sample:  # `sample` takes no range of more than 2^63 numbers
            numbers.add(generator.randrange(total))
        chosen = sorted(numbers)
    return [_point(words, axes, number) for number in chosen]


def _point(words: Sequence[str], axes: Mapping[int, tuple[str, str, list[str]]], number: int) -> Point:
    """Return a point of the grid by its number, in which the last axis varies fastest."""
    own, values = list(words), {}
    for index, (name, before, choices) in reversed(list(axes.items())):
        number, position = divmod(number, len(choices))
        own[index] = before + choices[position]
        if len(choices) > 1:
            values[name] = choices[position]
    return Point(dict(reversed(list(values.items()))), own)


def values_of(text: str) -> list[str]:
    """Return the values in a text such as ``1,2`` or ``0..9``.

    Commas separate them, outside of quotes and brackets; quotes around a value are removed. ``0..9`` are all
    whole numbers from 0 to 9, ``0..9..3`` every third; ``@FILE`` is the lines of a file.
    """
    values: list[str] = []
    for item in _split(text):
        found = _RANGE.fullmatch(item)
        if found:
            first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
            if step < 1 or abs(last - first) // step >= MOST_POINTS:
                raise UsageError(f"{item}: a range has from 1 to {MOST_POINTS:,} numbers")
            way = 1 if last >= first else -1
            values += map(str, range(first, last + way, way * step))
        elif len(item) > 1 and item[0] == "@" and os.path.isfile(item[1:]):
            values += _lines_of(item[1:])
        elif len(item) > 1 and item[0] == item[-1] and item[0] in "'\"":
            values.append(item[1:-1])
        else:
            values.append(item)
    return values


def _lines_of(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the values in {path} cannot be read: {error}") from None
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise UsageError(f"there are no values in {path}", hint="Write one value per line.")
    return found


def _split(text: str) -> list[str]:
    items, depth, quote, start = [], 0, "", 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and (position == start or depth):
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth = max(depth - 1, 0)
        elif char == "," and not depth:
            items.append(text[start:position])
            start = position + 1
    if quote or depth:  # not meant as quotes or brackets
        return text.split(",") if quote and not depth else [text]
    return [*items, text[start:]]


def _values(component: Component, words: Sequence[str]) -> Iterable[tuple[int, str, str, str]]:
    """Yield index, name, what precedes it in the word, and text of every value that may be a list."""
    options = None if component.preset else component.options
    index = 0
    while index < len(words):
        word, at = words[index], index
        index += 1
        if word == "--" and options is not None:
            options = None  # the rest is the script's
            continue
        matched = None if options is None else options.match(word)
        if matched is not None or word.startswith("--"):
            parameter, attached = (None, None) if matched is None else matched[:2]
            name, equals, value = word.partition("=")
            before = f"{name}="
            if not equals:
                is_alone = parameter is not None and (parameter.is_flag or attached is not None)
                if is_alone or index == len(words) or words[index].startswith("--"):
                    continue
                at, before, value = index, "", words[index]
                index += 1
            if parameter is None or not parameter.is_repeatable:
                yield at, name.lstrip("-"), before, value
            continue
        if options is not None and options.varargs is not None:
            options = None  # the first word that is not an option begins the rest
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment:
            yield at, assignment[1], word[: assignment.start(2)], assignment[2]


def _check_number(axes: Mapping[Any, Sequence[Any]], sample: int | None = None) -> int:
    total = 1
    for name, values in axes.items():
        if not values:
            raise UsageError(f"{name} has no values")
        total *= len(values)
    if min(total, sample or total) > MOST_POINTS:
        raise UsageError(
            f"the sweep has {total:,} points, and at most {MOST_POINTS:,} are possible",
            hint="Run some of them: --sample N.",
        )
    return total

r"""Metrics in lines that are an object of numbers with a step: ``{"step": 10, "loss": 0.31}``.

The keys of the step are those that training loops use. Where there is more than one, the first of `STEPS`
counts, and an epoch is then a metric. What is not a number (a phase, a time as text) is passed over. A prefix
before the object, such as that of torchrun or of a logger, does no harm; the rank that it names is kept.
Python's notation counts too, since `transformers` prints it: ``{'loss': 0.31, 'epoch': 0.1}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from shunter._toolkit.log_end import without_prefix

#: The keys of a step, by rank.
STEPS = ("step", "global_step", "_step", "iteration", "iter", "epoch")
#: Longer lines are ignored.
LONGEST_LINE = 64 << 10
LONGEST_PREFIX = 200
_KEY = re.compile(rb"""["'](?:_?step|global_step|iteration|iter|epoch)["']\s*:""")
_NAN = re.compile(r"(?<=[:\s])(-?)(nan|inf)(?=[,}\s])")


def find_objects(block: bytes) -> Iterator[tuple[int, str, float, dict[str, float]]]:
    """Yield where such a line begins in a block of lines, its rank ("" if unnamed), step and metrics."""
    position = 0
    while (brace := block.find(b"{", position)) >= 0:
        start = block.rfind(b"\n", position, brace) + 1 or position
        end = block.find(b"\n", brace)
        end = len(block) if end < 0 else end
        position = end + 1
        if end - start > LONGEST_LINE or brace - start > LONGEST_PREFIX:
            continue
        line = block[brace:end].rstrip()
        if not line.endswith(b"}") or _KEY.search(line) is None:
            continue
        numbers = _numbers(line.decode("utf-8", "replace"))
        key = next((name for name in STEPS if name in numbers), "")
        if not key:
            continue
        step = numbers.pop(key)
        if numbers:
            rank, _ = without_prefix(block[start:brace].decode("utf-8", "replace"))
            yield start, rank, step, numbers


def _numbers(text: str) -> dict[str, float]:
    """Return the members of an object that are numbers; nothing if the text is not an object."""
    if '"' not in text:
        text = _NAN.sub(lambda match: match[1] + {"nan": "NaN", "inf": "Infinity"}[match[2]], text)
        text = text.replace("'", '"')
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    numbers = {}
    for key, member in value.items():
        if isinstance(member, (int, float)) and not isinstance(member, bool):
            try:
                numbers[key] = float(member)
            except OverflowError:  # an integer of many digits
                continue
    return numbers

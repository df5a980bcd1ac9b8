"""How programs print metrics, so that the name of a metric is enough to read its values from lines of output.

A name is followed by ``=``, ``:``, a column's line or spaces, and a number: ``loss=0.5``, ``loss: 5e-05``,
``"loss": 0.5``, ``loss 0.5``, ``loss = tensor(0.5)``, ``lr=[1e-05]``. What follows the number, such as a unit
or ``%``, is not looked at. The launcher reads logs with this module too.
"""

from __future__ import annotations

import re
from typing import Optional

#: A number in a regular expression; thousands may be separated by commas or underscores.
NUMBER = (
    r"[-+]?(?:[1-9]\d{0,2}(?:[,_]\d{3})+\b(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    r"|[-+]?(?i:nan|inf(?:inity)?)\b"
)
#: What stands before a name, between it and a number, and around the number.
BEFORE = r"""(?:^|[^\w./-])"""
BETWEEN = r"""["']?(?:[ \t]*(?:[=:|]|│)[ \t]*|[ \t]+)"""
OPENING = r"""["']?(?:(?:[A-Za-z][\w.]*)?[(\[]){0,2}"""
# "val loss 0.5" is a value of "val loss", "test set loss 0.5" one of "test set loss", neither of "loss"
_QUALIFIER = re.compile(
    r"(?:^|[^\w./-])((?:train|training|val|valid|validation|test|testing|eval|evaluation|dev"
    r"|avg|average|mean|best|min|max)\.?(?:[ \t]set)?)[ \t]+$",
    re.IGNORECASE,
)
_LONGEST_QUALIFIER = 16
# "0,5" and "1,23": it is not clear what they mean
_UNCLEAR = re.compile(r"(?<=\d),\d")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def expression(name: str) -> str:
    """Return a regular expression that finds a metric of this name; its first group is the number.

    A name in lower case is found in any case, every other name only as it is. The expression has no
    lookaround, so that SageMaker reads it whatever its dialect, and at most 500 characters if the name has
    no more than 200.
    """
    words = r"[ \t]+".join(re.escape(word) for word in name.split())
    if name == name.lower():
        words = "(?i:%s)" % words
    return BEFORE + words + BETWEEN + OPENING + "(" + NUMBER + ")"


def value_of(pattern: re.Pattern[str], line: str) -> Optional[float]:
    """Return the first value that the `expression` of a name finds in a line."""
    if "\x1b" in line:
        line = without_colours(line)
    for match in pattern.finditer(line):
        start = match.start()
        if line[start] in " \t" and qualifier(line, start + 1):
            continue
        if not is_unclear(match.group(1), line, match.end(1)):
            return number(match.group(1))
    return None


def is_unclear(text: str, line: str, end: int) -> bool:
    """Return whether a number, which ends there in its line, is only the first part of one like ``-0,5``."""
    return text.lstrip("+-").isdigit() and bool(_UNCLEAR.match(line, end))


def without_colours(line: str) -> str:
    """Return a line without escape sequences for colours."""
    return _COLOUR.sub(" ", line)


def qualifier(line: str, start: int) -> str:
    """Return the word before a name that makes it another: ``val`` in ``val loss``; "" if there is none."""
    match = _QUALIFIER.search(line[max(start - _LONGEST_QUALIFIER, 0) : start])
    return match.group(1) if match else ""


def number(text: str) -> float:
    """Return the value of a number.

    Raises:
        ValueError: it is none.
    """
    return float(text.replace(",", ""))

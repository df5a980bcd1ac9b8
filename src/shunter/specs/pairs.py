"""The one grammar of ``key=value`` lists: ``-cfg`` options, dict arguments and ``.torchxconfig`` values.

Both ``,`` and ``;`` separate pairs and the items of a list; the last one before the next ``=`` separates
pairs, so ``FOO=a,b,BAR=c`` reads FOO = "a,b" and BAR = "c". A ``;`` separates pairs only if a name and ``=``
follow it; every other ``;`` belongs to the value, as in ``LOSS=loss=(.*);``. An ``=`` without a separator
before it belongs to the value: ``URL=http://h?a=1`` is one pair. Quotes protect separators, and so do the
brackets of a value that begins with ``[`` or ``{`` (JSON, with its backslash escapes).
"""

from __future__ import annotations

import itertools
import re

from shunter.errors import OptionParseError

_DELIMITERS = ",;"
_EXAMPLE = "Example: queue=gpu,tags='a=b,c=d',items=x,y (quote a value that holds both ',' and '=')."


def parse_pairs(text: str) -> dict[str, str]:
    """Split ``k=v,k2=v2`` into raw values; quotes are kept for `split_items` and `unquote`.

    Raises:
        OptionParseError: a key or a separator is missing, a quote is open, or a key stands twice.
    """
    if not text.strip():
        return {}
    equals, delimiters = _scan(text)
    if not equals:
        raise OptionParseError(f"{text!r} holds no '='", hint=_EXAMPLE)
    pairs: dict[str, str] = {}
    key_start = 0
    for index, position in enumerate(equals):
        if position < key_start:
            continue  # of the value before it
        key = text[key_start:position].strip()
        key_start = end = len(text)
        for following in equals[index + 1 :]:
            between = [d for d in delimiters if position < d < following]
            if between and (text[between[-1]] == "," or _is_name(text[between[-1] + 1 : following])):
                end = between[-1]
                key_start = end + 1
                break
        if not key or any(d in key for d in _DELIMITERS):
            raise OptionParseError(f"{text!r}, character {position + 1}: no key before '='", hint=_EXAMPLE)
        if key in pairs:
            raise OptionParseError(f"{text!r}: {key!r} is given twice", hint=_EXAMPLE)
        pairs[key] = text[position + 1 : end].strip()
    return pairs


def parse_dict(text: str) -> dict[str, str]:
    """Read the pairs of one dict, ``k=v,k2=v2``; values may hold ``=``, pairs and the whole may be quoted.

    Raises:
        OptionParseError: a key or a separator is missing, a quote is open, or a key stands twice.
    """
    stripped = text.strip()
    parts = split_items(stripped) if stripped[:1] in ("'", '"') else [stripped]
    pairs: dict[str, str] = {}
    for part in parts:
        for key, value in parse_pairs(part).items():
            if key in pairs:
                raise OptionParseError(f"{text!r}: {key!r} is given twice", hint=_EXAMPLE)
            pairs[key] = unquote(value)
    return pairs


def split_items(text: str, separators: str = _DELIMITERS) -> list[str]:
    """Split ``a,b;c`` into its items, unquoted; empty items are left out.

    Of ``,`` and ``;``, what is not among the separators belongs to the items.

    Raises:
        OptionParseError: a quote is open.
    """
    delimiters = [position for position in _scan(text)[1] if text[position] in separators]
    bounds = itertools.pairwise([-1, *delimiters, len(text)])
    items = [text[before + 1 : after].strip() for before, after in bounds]
    return [unquote(item) for item in items if item]


def unquote(text: str) -> str:
    """Remove the quotes around a text, if it has any."""
    if len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1]
    return text


def _is_name(text: str) -> bool:
    """Tell whether a text is a plain name of a pair: letters, digits and ``_-./:``."""
    return re.fullmatch(r"[\w./:-]+", text.strip()) is not None


def _scan(text: str) -> tuple[list[int], list[int]]:
    """Return the positions of the unprotected ``=`` and of the unprotected delimiters."""
    equals: list[int] = []
    delimiters: list[int] = []
    quote, opened, depth, previous, is_escaped = "", 0, 0, "=", False
    for position, char in enumerate(text):
        if is_escaped:
            is_escaped = False
        elif quote:
            is_escaped = char == "\\" and depth > 0  # of a string in JSON
            quote = "" if char == quote else quote
        elif char in "'\"" and (depth or previous in "=,;:"):  # not the apostrophe in "don't"
            quote, opened = char, position
        elif depth:
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(char, 0)
        elif char in "[{" and previous == "=":
            depth = 1
        elif char == "=":
            equals.append(position)
        elif char in _DELIMITERS:
            delimiters.append(position)
        if not char.isspace():
            previous = char
    if quote:
        raise OptionParseError(f"{text!r}, character {opened + 1}: the quote is never closed", hint=_EXAMPLE)
    return equals, delimiters

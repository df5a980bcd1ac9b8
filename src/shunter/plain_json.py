"""JSON by the C functions of the standard library alone.

`json` imports `re` and compiles five patterns, which takes a supervisor, or `shunter status`, longer than
all the documents that it reads and writes. The results are the same.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

functions: Any
try:
    import _json

    functions = _json
except ImportError:  # an interpreter without them
    functions = None


class _Strict:
    """What the scanner wants to know: how JSON's values become Python's."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float, parse_int, parse_constant = float, int, float
    memo: dict[str, str] = {}


_QUOTE: Any = getattr(functions, "encode_basestring_ascii", None)


def _make_scanner() -> Any:
    try:
        return functions.make_scanner(_Strict)
    except (AttributeError, TypeError):  # not the functions that this was written for: 3.11 to 3.15 have them
        return None


def _make_encoder(default: Callable[[Any], Any]) -> Any:
    try:
        return functions.make_encoder({}, default, _QUOTE, None, ": ", ", ", False, False, True)
    except (AttributeError, TypeError):
        return None


_scan = _make_scanner()


def loads(text: str) -> Any:
    """Return the value that a JSON text stands for.

    Raises:
        ValueError: it is not JSON.
    """
    stripped = text.strip(" \t\n\r")
    try:
        if _scan is not None:
            value, end = _scan(stripped, 0)
            if end == len(stripped):
                return value
    except (StopIteration, SystemError):  # not valid; `json` says below what is wrong
        pass
    import json

    return json.loads(text)


def dumps(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON text, in one line; ``default`` replaces what JSON lacks.

    Raises:
        TypeError: JSON has no such value.
    """
    encode = _make_encoder(default or _refuse)
    if encode is None:
        import json

        return json.dumps(value, default=default)
    return "".join(encode(value, 0))


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def pretty(value: Any, default: Callable[[Any], Any] | None = None, margin: str = "\n") -> str:
    """Return a value as JSON text, indented by two blanks for each level below ``margin``."""
    inner = margin + "  "
    if isinstance(value, dict) and value:
        lines = [
            f"{dumps(key if isinstance(key, str) else dumps(key))}: {pretty(item, default, inner)}"
            for key, item in value.items()
        ]
        return f"{{{inner}{f',{inner}'.join(lines)}{margin}}}"
    if isinstance(value, (list, tuple)) and value:
        lines = [pretty(item, default, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(lines)}{margin}]"
    if default is None or isinstance(value, (str, int, float, dict, list, tuple, type(None))):
        return dumps(value)
    return pretty(default(value), default, margin)

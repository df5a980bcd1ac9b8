"""JSON by the C functions of the standard library alone.

`json` imports `re` and compiles five patterns, which takes a supervisor, or `trainyard status`, longer than
all the documents that it reads and writes. The results are the same.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner
except ImportError:  # an interpreter that has no such functions
    from json import dumps as _dumps
    from json import loads
else:
    _SPACE = " \t\n\r"

    class _Strict:
        """What `make_scanner` wants to know: how JSON's values become Python's."""

        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int, parse_constant = float, int, float
        memo: dict[str, str] = {}  # noqa: RUF012 - read by the scanner, never shared

    _scan = make_scanner(_Strict)

    def loads(text: str) -> Any:
        """Return the value that a JSON text stands for.

        Raises:
            ValueError: it is not JSON.
        """
        stripped = text.strip(_SPACE)
        try:
            value, end = _scan(stripped, 0)
        except StopIteration as stop:
            raise ValueError(f"no JSON value at character {stop.value}") from None
        if end != len(stripped):
            raise ValueError(f"more than one JSON value: character {end}")
        return value

    def _dumps(value: Any, default: Any = None) -> str:
        encode = make_encoder({}, default or _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)
        return "".join(encode(value, 0))

    def _refuse(value: object) -> NoReturn:
        raise TypeError(f"JSON has nothing for a {type(value).__name__}")


def dumps(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON text, in one line; ``default`` replaces what JSON lacks.

    Raises:
        TypeError: JSON has no such value.
    """
    return _dumps(value, default=default)


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

"""Encodes a prediction as the body of an answer: JSON, CSV and NPY."""

from __future__ import annotations

import io
import json
from typing import Any

from ..errors import ClientError, UnsupportedFormatError
from . import content_types


def encode(array: Any, content_type: str) -> bytes:
    """Encode an array, or anything nested like one, for an answer.

    Raises:
        UnsupportedFormatError: another content type (HTTP 406).
    """
    kind = content_type.split(";")[0].strip().lower()
    if kind not in _ENCODERS:
        raise UnsupportedFormatError(content_type, tuple(_ENCODERS))
    return _ENCODERS[kind](array)


def array_to_json(array: Any) -> bytes:
    """Nested lists as JSON; NumPy's arrays and numbers too."""
    return json.dumps(array, default=_plain_json).encode("utf-8")


def array_to_csv(array: Any) -> bytes:
    """One line per row, with commas between values, which are quoted if necessary."""
    import csv

    rows = _plain(array)
    if not isinstance(rows, (list, tuple)):
        rows = [rows]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([row if isinstance(row, (list, tuple)) else [row] for row in map(_plain, rows)])
    return out.getvalue().encode("utf-8")


def array_to_npy(array_like: Any) -> bytes:
    """An NPY file."""
    try:
        import numpy as np  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise ClientError("Cannot encode NPY without NumPy. Add it to the image.") from None
    out = io.BytesIO()
    np.save(out, np.asarray(array_like), allow_pickle=False)
    return out.getvalue()


_ENCODERS = {
    content_types.JSON: array_to_json,
    content_types.CSV: array_to_csv,
    content_types.NPY: array_to_npy,
}


def _plain_json(value: Any) -> Any:
    plain = _plain(value)
    if plain is value:
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    return plain


def _plain(value: Any) -> Any:
    """NumPy's arrays and numbers as Python lists and numbers; any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value

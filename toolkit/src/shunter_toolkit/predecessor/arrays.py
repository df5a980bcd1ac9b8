"""Arrays to and from the bytes of content types: what callers of the predecessors' ``encoders`` use."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from ..errors import UnsupportedFormatError
from ..serving import content_types, encoders
from ..serving.decoders import csv_to_numpy, json_to_numpy, npy_to_numpy

__all__ = ["csv_to_numpy", "json_to_numpy", "npy_to_numpy"]


def array_to_npy(array_like: Any) -> bytes:
    """An NPY file; Python objects are pickled, and our own decoder does not read those."""
    import numpy as np  # type: ignore[import-not-found, unused-ignore]

    out = io.BytesIO()
    np.save(out, np.asarray(array_like), allow_pickle=True)
    return out.getvalue()


def array_to_json(array_like: Any) -> str:
    """Nested lists as JSON text; NumPy's arrays and numbers too."""
    return encoders.array_to_json(array_like).decode("utf-8")


def array_to_csv(array_like: Any) -> str:
    """One line per row, with commas between values."""
    return encoders.array_to_csv(array_like).decode("utf-8")


encoders_map: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: array_to_npy,
    content_types.CSV: array_to_csv,
    content_types.JSON: array_to_json,
}
_encoders_map = encoders_map
_decoders_map: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: npy_to_numpy,
    content_types.CSV: csv_to_numpy,
    content_types.JSON: json_to_numpy,
}


def encode(array_like: Any, content_type: str) -> Any:
    """Encode an array: text for JSON and CSV, bytes for NPY.

    Raises:
        UnsupportedFormatError: another content type.
    """
    if content_type not in encoders_map:
        raise UnsupportedFormatError(content_type, tuple(encoders_map))
    return encoders_map[content_type](array_like)


def decode(obj: Any, content_type: str) -> Any:
    """Decode to an array.

    Raises:
        UnsupportedFormatError: another content type.
        ClientError: CSV that cannot be read.
        ValueError: other content that is not of that type.
    """
    if content_type not in _decoders_map:
        raise UnsupportedFormatError(content_type, tuple(_decoders_map))
    return _decoders_map[content_type](obj)

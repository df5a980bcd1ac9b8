"""Decodes the body of a request to an array: JSON, CSV and NPY.

NumPy has to be in the image.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from ..errors import ClientError, UnsupportedFormatError
from . import content_types


def decode(data: str | bytes, content_type: str) -> Any:
    """Decode a request's body to a NumPy array.

    Raises:
        UnsupportedFormatError: another content type (HTTP 415).
        ClientError: the body is not of that type, or NumPy is missing.
    """
    kind = content_type.split(";")[0].strip().lower()
    if kind not in _DECODERS:
        raise UnsupportedFormatError(content_type, tuple(_DECODERS))
    try:
        return _DECODERS[kind](data)
    except (ValueError, RecursionError) as error:
        raise ClientError(f"Cannot read the request as {kind}: {error}.") from None


def json_to_numpy(string_like: str | bytes, dtype: Any = None) -> Any:
    """``[[1, 2], [3, 4]]`` to an array of that shape."""
    return _numpy().array(json.loads(string_like), dtype=dtype)


def csv_to_numpy(string_like: str | bytes, dtype: Any = None) -> Any:
    """Decode CSV to an array of shape (rows, columns), squeezed. Empty lines are skipped.

    Without ``dtype``, it is of floats if every value is a number, else of text.

    Raises:
        ClientError: rows of different lengths, quotes that do not end, or values that are not of ``dtype``.
    """
    try:
        return _csv_to_numpy(string_like, dtype)
    except ValueError as error:
        raise ClientError(f"Cannot read the request as {content_types.CSV}: {error}.") from None


def _csv_to_numpy(string_like: str | bytes, dtype: Any) -> Any:
    import csv

    np = _numpy()
    text = string_like.decode("utf-8") if isinstance(string_like, bytes) else string_like
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error as error:
        raise ValueError(str(error)) from None
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise ValueError(
            f"its rows have from {lengths[0]} to {lengths[-1]} values; all must have as many as the first"
        )
    values = np.array(rows, dtype=str).squeeze() if rows else np.array([], dtype=float)
    if dtype is not None:
        return values.astype(dtype)
    try:
        return values.astype(float)
    except ValueError:
        return values


def npy_to_numpy(npy_array: bytes) -> Any:
    """An NPY file to its array.

    Arrays of Python objects are refused: reading them would run code from the sender.

    Raises:
        ValueError: it is no NPY file, or a damaged one.
        ClientError: NumPy is missing.
    """
    np = _numpy()
    try:
        array = np.load(io.BytesIO(npy_array), allow_pickle=False)
    except Exception as error:  # also EOFError, tokenize.TokenError, MemoryError: of a damaged header
        raise ValueError(str(error) or type(error).__name__) from None
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of arrays (NPZ), not one array")  # noqa: TRY004 - of its content
    return array


_DECODERS: dict[str, Callable[[Any], Any]] = {
    content_types.JSON: json_to_numpy,
    content_types.CSV: csv_to_numpy,
    content_types.NPY: npy_to_numpy,
}


def _numpy() -> Any:
    try:
        import numpy as np  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise ClientError(
            "Cannot decode without NumPy. Add it to the image, "
            "or define input_fn, which gets the bytes as they are."
        ) from None
    return np

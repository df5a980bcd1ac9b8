"""Arrays to and from the bytes of requests and answers: JSON, CSV and NPY.

NumPy has to be in the image. The names are those of the predecessors' ``encoders``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from ..errors import ClientError, UnsupportedFormatError
from . import content_types


def decode(obj: str | bytes, content_type: str) -> Any:
    """Decode the body of a request to a NumPy array.

    Raises:
        UnsupportedFormatError: another content type (HTTP 415).
        ClientError: the body is not of that type, or NumPy is missing.
    """
    kind = _kind(content_type)
    if kind not in _decoders_map:
        raise UnsupportedFormatError(content_type, tuple(_decoders_map))
    try:
        return _decoders_map[kind](obj)
    except (ValueError, RecursionError) as error:
        raise ClientError(f"Cannot read the request as {kind}: {error}.") from None


def encode(array_like: Any, content_type: str) -> Any:
    """Encode an array, or anything nested like one: text for JSON and CSV, bytes for NPY.

    Raises:
        UnsupportedFormatError: another content type (HTTP 406).
    """
    kind = _kind(content_type)
    if kind not in encoders_map:
        raise UnsupportedFormatError(content_type, tuple(encoders_map))
    return encoders_map[kind](array_like)


def _kind(content_type: str) -> str:
    return content_type.split(";")[0].strip().lower()


# ---- decoding


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
    except (ValueError, csv.Error) as error:
        raise ClientError(f"Cannot read the request as {content_types.CSV}: {error}.") from None


def _csv_to_numpy(string_like: str | bytes, dtype: Any) -> Any:
    np = _numpy()
    text = string_like.decode("utf-8") if isinstance(string_like, bytes) else string_like
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
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


# ---- encoding


def array_to_json(array_like: Any) -> str:
    """Nested lists as JSON; NumPy's arrays and numbers too."""
    return json.dumps(array_like, default=_plain_json)


def array_to_csv(array_like: Any) -> str:
    """One line per row, with commas between values, which are quoted if necessary."""
    rows = _plain(array_like)
    if not isinstance(rows, (list, tuple)):
        rows = [rows]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([row if isinstance(row, (list, tuple)) else [row] for row in map(_plain, rows)])
    return out.getvalue()


def array_to_npy(array_like: Any) -> bytes:
    """An NPY file; arrays of Python objects are refused, as `npy_to_numpy` does."""
    np = _numpy()
    out = io.BytesIO()
    np.save(out, np.asarray(array_like), allow_pickle=False)
    return out.getvalue()


def _plain_json(value: Any) -> Any:
    plain = _plain(value)
    if plain is value:
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    return plain


def _plain(value: Any) -> Any:
    """NumPy's arrays and numbers as Python lists and numbers; any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def _numpy() -> Any:
    try:
        import numpy as np  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise ClientError(
            "Cannot convert arrays without NumPy. Add it to the image, or define input_fn and output_fn, "
            "which get and return the bytes as they are."
        ) from None
    return np


encoders_map: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: array_to_npy,
    content_types.CSV: array_to_csv,
    content_types.JSON: array_to_json,
}
_encoders_map = encoders_map
_decoders_map: dict[str, Callable[[Any], Any]] = {
    content_types.JSON: json_to_numpy,
    content_types.CSV: csv_to_numpy,
    content_types.NPY: npy_to_numpy,
}

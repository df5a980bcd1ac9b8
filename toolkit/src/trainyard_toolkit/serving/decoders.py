"""Bytes of a request to an array: JSON, CSV and NPY.

NumPy has to be in the image, as it is where models are.
"""

from __future__ import annotations

import io
import json

from trainyard_toolkit.errors import ClientError, UnsupportedFormatError
from trainyard_toolkit.serving import content_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


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
    except ValueError as error:
        raise ClientError(f"Cannot read the request as {kind}: {error}.") from None


def json_to_numpy(data: str | bytes, dtype: Any = None) -> Any:
    """``[[1, 2], [3, 4]]`` to an array of that shape."""
    return _numpy().array(json.loads(data), dtype=dtype)


def csv_to_numpy(data: str | bytes, dtype: Any = None) -> Any:
    """Lines of numbers with commas to an array of shape (rows, columns), squeezed; ``dtype``: default
    float.
    """
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    return _numpy().genfromtxt(io.StringIO(text), dtype=dtype or float, delimiter=",", comments=None)


def npy_to_numpy(data: bytes) -> Any:
    """An NPY file to its array.

    Arrays of Python objects are refused: reading them would run code of the sender's.
    """
    return _numpy().load(io.BytesIO(data), allow_pickle=False)


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

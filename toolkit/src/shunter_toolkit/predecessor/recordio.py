"""RecordIO-protobuf: the format of SageMaker's built-in algorithms, written without a protobuf library.

A file is a row of frames: magic number and length (4 bytes each, little-endian), a ``Record``, zeros
up to a multiple of 4. A ``Record`` maps ``values`` to a tensor of the row's features, and to its label's.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import IO, Any

_MAGIC = 0xCED7230A
padding = {count: b"\x00" * count for count in range(4)}
_VALUES = "values"
# dtype -> field of Value that holds the tensor
_TENSOR_FIELDS = {"float32": 2, "float64": 3, "int32": 7}


def encode(array: Any, labels: Any = None) -> bytes:
    """A matrix, dense or of SciPy's sparse ones, as records.

    Raises:
        ValueError: not one row per label, or neither a vector nor a matrix.
    """
    out = io.BytesIO()
    if hasattr(array, "tocsr"):
        write_sparse(out, array, labels)
    else:
        import numpy as np  # type: ignore[import-not-found, unused-ignore]

        write_dense(out, np.atleast_2d(np.asarray(array)), labels)
    return out.getvalue()


def write_dense(file: IO[bytes], array: Any, labels: Any = None) -> None:
    """Write each row of an array as a record.

    Args:
        file: open for writing bytes.
        array: shape (rows, columns), of int, float32 or float64.
        labels: one number per row.

    Raises:
        ValueError: another shape or type.
    """
    if len(array.shape) == 1:
        array = array.reshape(1, -1)
    if len(array.shape) != 2:
        raise ValueError(f"Cannot write an array of shape {array.shape} as records: it must be a matrix.")
    _check_labels(array.shape[0], labels)
    dtype = _tensor_type(array.dtype)
    for number, row in enumerate(array):
        features = _tensor(dtype, row.tolist(), None, None)
        _write_frame(file, _record(features, _label(labels, number)))


def write_sparse(file: IO[bytes], array: Any, labels: Any = None) -> None:
    """Write each row of a sparse matrix of SciPy as a record with keys.

    Raises:
        ValueError: not one label per row.
    """
    _check_labels(array.shape[0], labels)
    matrix = array.tocsr()
    dtype = _tensor_type(matrix.dtype)
    for number in range(matrix.shape[0]):
        row = matrix.getrow(number)
        features = _tensor(dtype, row.data.tolist(), row.indices.tolist(), matrix.shape[1])
        _write_frame(file, _record(features, _label(labels, number)))


def read_frames(file: IO[bytes]) -> Iterator[bytes]:
    """The messages of a file of records, one after the other.

    Raises:
        ValueError: it is not such a file.
    """
    while True:
        head = file.read(8)
        if len(head) < 8:
            return
        magic, length = struct.unpack("<II", head)
        if magic != _MAGIC:
            raise ValueError("Cannot read records: the magic number is missing.")
        yield file.read(length)
        file.read(-length % 4)


def _check_labels(rows: int, labels: Any) -> None:
    if labels is not None and (len(labels.shape) != 1 or labels.shape[0] != rows):
        raise ValueError(f"Cannot label {rows} rows with labels of shape {labels.shape}: one number per row.")


def _tensor_type(dtype: Any) -> str:
    if dtype.kind == "i" or dtype.name in _TENSOR_FIELDS:
        return "int32" if dtype.kind == "i" else str(dtype.name)
    raise ValueError(f"Unsupported dtype {dtype} on array: records hold int, float32 and float64.")


def _label(labels: Any, number: int) -> bytes | None:
    if labels is None:
        return None
    return _tensor(_tensor_type(labels.dtype), [labels[number].item()], None, None)


def _tensor(dtype: str, values: list[Any], keys: list[int] | None, width: int | None) -> bytes:
    """A ``Value`` message: its one field is a tensor with values, and keys and shape if it is sparse."""
    if dtype == "int32":
        packed = b"".join(_varint(value & 0xFFFFFFFFFFFFFFFF) for value in values)
    else:
        packed = struct.pack(f"<{len(values)}{'f' if dtype == 'float32' else 'd'}", *values)
    tensor = _field(1, packed) if values else b""
    if keys:
        tensor += _field(2, b"".join(map(_varint, keys)))
    if width is not None:
        tensor += _field(3, _varint(width))
    return _field(_TENSOR_FIELDS[dtype], tensor)


def _record(features: bytes, label: bytes | None) -> bytes:
    record = _field(1, _field(1, _VALUES.encode()) + _field(2, features))
    if label is not None:
        record += _field(2, _field(1, _VALUES.encode()) + _field(2, label))
    return record


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes of a protobuf message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _write_frame(file: IO[bytes], message: bytes) -> None:
    file.write(struct.pack("<II", _MAGIC, len(message)) + message + padding[-len(message) % 4])


# The predecessors' names, which their users know in spite of the underscore.
_write_numpy_to_dense_tensor = write_dense
_write_spmatrix_to_sparse_tensor = write_sparse
_read_recordio = read_frames
_kmagic = _MAGIC

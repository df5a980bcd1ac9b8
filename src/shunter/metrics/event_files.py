"""Scalars in TensorBoard's event files, read with the standard library, from where the last read ended.

A file is a sequence of records (TensorFlow's "TFRecord"): the length of the data (u64), a checksum of the
length, the data, a checksum of the data; checksums are CRC-32C, rotated and offset. The data are messages of
protocol buffers (https://protobuf.dev/programming-guides/encoding/) of the type ``Event`` of TensorFlow's
``event.proto``. Of its fields these are read, and all others passed over: the time (1), the step (2), and of
a summary (5) the values (1) with their tag (1) and their number, which is a float (2) or a tensor (8) of one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

#: Longer records hold images, audio or histograms, never a scalar: they are skipped.
LONGEST_RECORD = 64 << 10
READ_SIZE = 1 << 20
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TABLE: list[int] = []

Field = tuple[int, int, "int | bytes"]


@dataclass
class Scalar:
    """A value: its tag, step, time in seconds since the epoch, and number."""

    tag: str
    step: int
    time: float
    value: float


class DamagedFile(Exception):
    """The rest of a file cannot be read."""


def read_scalars(path: str, offset: int) -> Iterator[tuple[int, list[Scalar]]]:
    """Yield the scalars of each record from an offset, and where the next record begins.

    A record that is still being written ends the reading; the next one begins there.

    Raises:
        DamagedFile: a length does not have its checksum.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        file.seek(offset)
        while len(head := file.read(_HEADER.size)) == _HEADER.size:
            length, check = _HEADER.unpack(head)
            if masked_crc(head[:8]) != check:
                raise DamagedFile(f"{path} is damaged at byte {offset}")
            end = offset + _HEADER.size + length + _CRC.size
            if length > LONGEST_RECORD:
                if file.seek(0, 2) < end:
                    return
                file.seek(end)
                offset = end
                yield offset, []
                continue
            data = file.read(length + _CRC.size)
            if len(data) < length + _CRC.size:
                return
            offset = end
            if masked_crc(data[:length]) != _CRC.unpack_from(data, length)[0]:
                raise DamagedFile(f"{path} is damaged before byte {offset}")
            try:
                yield offset, _scalars(data[:length])
            except (IndexError, struct.error, UnicodeDecodeError):
                raise DamagedFile(
                    f"{path} contains something other than events before byte {offset}"
                ) from None


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of some bytes, masked as records have it."""
    if not _TABLE:
        for number in range(256):
            entry = number
            for _ in range(8):
                entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
            _TABLE.append(entry)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _scalars(data: bytes) -> list[Scalar]:
    time, step, summaries = 0.0, 0, []
    for number, kind, value in _fields(data):
        if (number, kind) == (1, _FIXED64):
            (time,) = struct.unpack("<d", _raw(value))
        elif (number, kind) == (2, _VARINT):
            assert isinstance(value, int)
            step = value - (1 << 64) if value >> 63 else value
        elif (number, kind) == (5, _BYTES):
            summaries.append(_raw(value))
    found = []
    for summary in summaries:
        for number, kind, value in _fields(summary):
            if (number, kind) == (1, _BYTES):
                tag, scalar = _tagged(_raw(value))
                if tag and scalar is not None:
                    found.append(Scalar(tag, step, time, scalar))
    return found


def _tagged(data: bytes) -> tuple[str, float | None]:
    tag: str = ""
    scalar: float | None = None
    for number, kind, value in _fields(data):
        if (number, kind) == (1, _BYTES):
            tag = _raw(value).decode()
        elif (number, kind) == (2, _FIXED32):
            (scalar,) = struct.unpack("<f", _raw(value))
        elif (number, kind) == (8, _BYTES):
            scalar = _of_tensor(_raw(value))
    return tag, scalar


def _of_tensor(data: bytes) -> float | None:
    """Return the number that a tensor holds, if it is one float or double.

    A ``TensorProto`` has a type (1: 1 float, 2 double), the numbers in memory order (4), or as floats (5) or
    doubles (6), which are packed or not.
    """
    kinds = {1: "<f", 2: "<d"}
    form, numbers = "", b""
    for number, kind, value in _fields(data):
        if (number, kind) == (1, _VARINT):
            form = kinds.get(value if isinstance(value, int) else 0, "")
        elif number in (4, 5, 6) and kind != _VARINT:
            numbers += _raw(value)
    if not form or len(numbers) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, numbers)[0])


def _raw(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


def _fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message: number, wire type, and value.

    Raises:
        IndexError: it ends within a field, or a field has a wire type that does not exist.
    """
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == _VARINT:
            number, position = _varint(data, position)
            yield key >> 3, kind, number
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _BYTES:
            length, position = _varint(data, position)
        elif not length:
            raise IndexError("wire type")
        if position + length > len(data):
            raise IndexError("length")
        yield key >> 3, kind, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, position
        shift += 7
        if shift > 63:
            raise IndexError("varint")

"""Formats other than JSON: CBOR (RFC 8949), as SDKs use it with CloudWatch, and event streams.

In an event stream (``vnd.amazon.eventstream``) an answer comes in parts:
https://smithy.io/2.0/aws/amazon-eventstream.html
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from typing import Any

DEEPEST = 32
_BREAK = object()


class Timestamp(float):
    """A time in seconds since the epoch, which is marked as one."""


def encode_cbor(value: Any) -> bytes:
    """Write a document."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return _cbor_head(0, value) if value >= 0 else _cbor_head(1, -1 - value)
    if isinstance(value, Timestamp):
        return b"\xc1\xfb" + struct.pack(">d", value)
    if isinstance(value, float):
        return b"\xfb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return _cbor_head(3, len(data)) + data
    if isinstance(value, (list, tuple)):
        return _cbor_head(4, len(value)) + b"".join(map(encode_cbor, value))
    if isinstance(value, dict):
        return _cbor_head(5, len(value)) + b"".join(encode_cbor(k) + encode_cbor(v) for k, v in value.items())
    raise TypeError(f"no CBOR for {type(value).__name__}")


def _cbor_head(kind: int, number: int) -> bytes:
    if number < 24:
        return bytes([kind << 5 | number])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([kind << 5 | code]) + number.to_bytes(size, "big")
    raise ValueError(f"{number} is too large")


def decode_cbor(data: bytes) -> Any:
    """Read a document.

    Raises:
        ValueError: it is none, or more than one.
    """
    reader = _CborReader(data)
    value = reader.item(0)
    if value is _BREAK or reader.place != len(data):
        raise ValueError("this is not one CBOR document")
    return value


class _CborReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def _read(self, count: int) -> bytes:
        data = self._data[self.place : self.place + count]
        if len(data) < count:
            raise ValueError("the CBOR document ends too early")
        self.place += count
        return data

    def item(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError("the CBOR document is too deep")
        first = self._read(1)[0]
        kind, code = first >> 5, first & 31
        if kind == 7:
            return self._simple(code)
        if code == 31 and kind in (2, 3, 4, 5):
            return self._open_ended(kind, depth)
        if code > 27:
            raise ValueError("the CBOR document has an invalid length")
        number = code if code < 24 else int.from_bytes(self._read(1 << code - 24), "big")
        if kind in (0, 1):
            return number if kind == 0 else -1 - number
        if kind in (2, 3):
            data = self._read(number)
            return data if kind == 2 else data.decode()
        if kind == 4:
            return [self._value(depth) for _ in range(number)]
        if kind == 5:
            return dict(self._pair(depth) for _ in range(number))
        return self._value(depth)  # the tag is ignored: the member's model gives the type too

    def _value(self, depth: int) -> Any:
        value = self.item(depth + 1)
        if value is _BREAK:
            raise ValueError("the CBOR document has a break in place of a value")
        return value

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self._value(depth)
        if not isinstance(key, str):
            raise ValueError("the CBOR document has a key that is not text")  # noqa: TRY004 of the document
        return key, self._value(depth)

    def _open_ended(self, kind: int, depth: int) -> Any:
        found = []
        while (value := self.item(depth + 1)) is not _BREAK:
            found.append(value)
        if kind == 4:
            return found
        if kind == 5:
            if len(found) % 2 or not all(isinstance(key, str) for key in found[::2]):
                raise ValueError("the CBOR document has an invalid map")
            return dict(zip(found[::2], found[1::2], strict=True))
        empty: Any = b"" if kind == 2 else ""
        if not all(isinstance(part, type(empty)) for part in found):
            raise ValueError("the CBOR document has a text with parts of another type")
        return empty.join(found)

    def _simple(self, code: int) -> Any:
        if code == 31:
            return _BREAK
        if code in (20, 21):
            return code == 21
        if code in (22, 23):
            return None
        if code in (25, 26, 27):
            form = {25: ">e", 26: ">f", 27: ">d"}[code]
            value = struct.unpack(form, self._read(struct.calcsize(form)))[0]
            if not math.isfinite(value):
                raise ValueError("the CBOR document has a number of indefinite length")
            return value
        raise ValueError("the CBOR document has a value of an unknown type")


# ---- event streams

EVENT_STREAM_TYPE = "application/vnd.amazon.eventstream"
#: What comes before the first event.
INITIAL_RESPONSE = "initial-response"
_TEXT = 7
_CHECKSUM = 4


def event_message(kind: str, content: dict[str, Any]) -> bytes:
    """Return an event, encoded."""
    return _message({":event-type": kind, ":message-type": "event"}, content)


def exception_message(kind: str, text: str) -> bytes:
    """Return an exception, with which a stream ends, encoded."""
    return _message({":exception-type": kind, ":message-type": "exception"}, {"message": text})


def _message(headers: dict[str, str], content: dict[str, Any]) -> bytes:
    payload = json.dumps(content).encode()
    block = b"".join(_header(*pair) for pair in {**headers, ":content-type": "application/json"}.items())
    lengths = struct.pack("!II", 8 + _CHECKSUM + len(block) + len(payload) + _CHECKSUM, len(block))
    whole = lengths + struct.pack("!I", zlib.crc32(lengths)) + block + payload
    return whole + struct.pack("!I", zlib.crc32(whole))


def _header(name: str, value: str) -> bytes:
    raw_name, raw_value = name.encode(), value.encode()
    return bytes([len(raw_name)]) + raw_name + struct.pack("!BH", _TEXT, len(raw_value)) + raw_value

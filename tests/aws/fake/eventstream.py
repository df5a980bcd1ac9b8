"""Messages of the event stream format (``application/vnd.amazon.eventstream``), as a server writes them."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any


def message(headers: dict[str, str], payload: bytes) -> bytes:
    """Return one message: prelude, headers, payload, and the two checksums."""
    block = b"".join(_header(name, value) for name, value in headers.items())
    prelude = struct.pack("!II", 12 + len(block) + len(payload) + 4, len(block))
    body = prelude + struct.pack("!I", zlib.crc32(prelude)) + block + payload
    return body + struct.pack("!I", zlib.crc32(body))


def event(kind: str, content: dict[str, Any]) -> bytes:
    """Return an event, or the ``initial-response`` that comes before all events."""
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return message(headers, json.dumps(content).encode())


def exception(kind: str, text: str) -> bytes:
    """Return an exception that ends the stream."""
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return message(headers, json.dumps({"message": text}).encode())


def _header(name: str, value: str) -> bytes:
    text = value.encode()
    return struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(text)) + text

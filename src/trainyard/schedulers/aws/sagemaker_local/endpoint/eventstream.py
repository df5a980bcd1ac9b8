"""Messages of the event stream format, in which an answer comes in parts (``vnd.amazon.eventstream``).

https://smithy.io/2.0/aws/amazon-eventstream.html
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

CONTENT_TYPE = "application/vnd.amazon.eventstream"
#: What comes before the first event.
INITIAL_RESPONSE = "initial-response"
_TEXT = 7
_CHECKSUM = 4


def event(kind: str, content: dict[str, Any]) -> bytes:
    """Return an event, encoded."""
    return _message({":event-type": kind, ":message-type": "event"}, content)


def exception(kind: str, text: str) -> bytes:
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

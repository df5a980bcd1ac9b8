"""Reading text messages from a web socket (RFC 6455), over a connection of `shunter.http.connections`."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping

from shunter.http.connections import Connection, ConnectionLost, NotHttpError
from shunter.http.url_client import UrlClient

# RFC 6455, 1.3 and 5.2
_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE, _PING, _PONG = 0x8, 0x9, 0xA
_LONGEST_MESSAGE = 64 << 20


class NotUpgradedError(Exception):
    """The server answered the request for a web socket with something else, such as 404."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status


class WebSocket:
    """The reading end of a web socket. `open` makes one.

    Its connection has been upgraded, is closed with it, and may be silent for ``timeout`` seconds.
    """

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._buffer = bytearray(connection.buffered())
        self._message = bytearray()

    @classmethod
    def open(cls, urls: UrlClient, url: str, headers: Mapping[str, str], timeout: float) -> WebSocket:
        """Open the web socket at a URL of http or https; it may be silent for ``timeout`` seconds.

        Raises:
            NotUpgradedError: the server has no web socket at this URL.
            OSError: there was no answer.
        """
        key = base64.b64encode(os.urandom(16)).decode()
        asked = {"Upgrade": "websocket", "Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"}
        status, answered, connection = urls.upgrade(url, {**headers, **asked}, timeout)
        accepted = base64.b64encode(hashlib.sha1((key + _MAGIC).encode()).digest()).decode()
        if status == 101 and answered.get("sec-websocket-accept", "") == accepted:
            return cls(connection, timeout)
        connection.close()
        if status != 101:
            raise NotUpgradedError(status)
        raise NotHttpError

    def receive(self) -> bytes | None:
        """Return the next message; None when the server has closed the socket in order.

        After a TimeoutError it may be called again: nothing is lost.

        Raises:
            OSError: the connection broke, or was silent for too long.
        """
        while True:
            final, kind, data = self._frame()
            if kind == _CLOSE:
                self._send(_CLOSE, data[:2])
                return None
            if kind == _PING:
                self._send(_PONG, data)
            elif kind != _PONG:
                self._message += data
                if final:
                    message, self._message = bytes(self._message), bytearray()
                    return message

    def _frame(self) -> tuple[bool, int, bytes]:
        """Return the next frame: whether it ends its message, its kind, and its content."""
        first, second = self._beginning(2)
        at, length = 2, second & 0x7F
        if length >= 126:
            at = 4 if length == 126 else 10
            length = int.from_bytes(self._beginning(at)[2:], "big")
        if length > _LONGEST_MESSAGE:
            raise ConnectionLost(f"a message of {length} bytes arrived")
        mask = b""
        if second & 0x80:
            mask = self._beginning(at + 4)[at:]
            at += 4
        data = self._beginning(at + length)[at:]
        del self._buffer[: at + length]
        return bool(first & 0x80), first & 0x0F, _masked(data, mask) if mask else data

    def _beginning(self, count: int) -> bytes:
        """Wait for the first ``count`` bytes and return them, but leave them in the buffer."""
        while len(self._buffer) < count:
            piece = self._connection.read_some()
            if not piece:
                raise ConnectionLost("the connection was closed")
            self._buffer += piece
        return bytes(self._buffer[:count])

    def _send(self, kind: int, data: bytes) -> None:
        """Send a control frame, which has less than 126 bytes."""
        mask = os.urandom(4)
        try:
            self._connection.send_now(bytes([0x80 | kind, 0x80 | len(data)]) + mask + _masked(data, mask))
        except OSError:  # the next reading shows whether the connection is broken
            pass
        self._connection.set_timeout(self._timeout)

    def interrupt(self) -> None:
        """End a read that another thread waits in."""
        self._connection.interrupt()

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        self._connection.close()


def _masked(data: bytes, mask: bytes) -> bytes:
    return bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))

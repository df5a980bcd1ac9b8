r"""What a container wrote, as the daemon sends it: frames, cut from lines, put together to lines again.

A frame is a byte for the stream (1 stdout, 2 stderr, 3 an error of the daemon's), three zeros, the length in
four bytes, and that many bytes. They hold a line, or a piece of at most 16 KiB of a longer one, then without
``\n``. Where times are asked for, each frame begins with one.
https://docs.docker.com/reference/api/engine/version/v1.47/#tag/Container/operation/ContainerAttach
"""

from __future__ import annotations

from trainyard.errors import BackendError
from trainyard.schedulers.exec.container.times import format_time, parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = 8
DAEMON_ERROR = 3
#: Longer lines are cut into pieces of this many bytes.
PIECE_LENGTH = 16384
#: Length of ``2026-11-21T18:49:14.260944552Z``.
TIME_LENGTH = 30


class FrameReader:
    """Cuts frames out of the bytes of an answer, however those come."""

    def __init__(self) -> None:
        self._pending = b""

    def frames(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the frames that are complete now: pairs of stream and content.

        Raises:
            BackendError: the daemon could not read its own log.
        """
        if self._pending:
            data = self._pending + data
        found: list[tuple[int, bytes]] = []
        append = found.append
        position, end = 0, len(data)
        from_bytes = int.from_bytes
        while position + HEADER <= end:
            start = position + HEADER
            following = start + from_bytes(data[position + 4 : start], "big")
            if following > end:
                break
            stream = data[position]
            if stream == DAEMON_ERROR:
                words = data[start:following].decode("utf-8", "replace").strip()
                raise BackendError(f"the Docker daemon cannot read the log: {words}")
            append((stream, data[start:following]))
            position = following
        self._pending = data[position:]
        return found

    @property
    def is_complete(self) -> bool:
        """Whether no part of a frame is left."""
        return not self._pending


class LineJoiner:
    """Puts pieces together to lines, of each stream on its own, so that no line breaks into another.

    The driver ``local`` forgets the line feed of lines that it had to cut. A piece that is shorter than it
    had to be was the last one of its line, or the last that a program wrote: what follows is a new line.
    """

    def __init__(self) -> None:
        self._pieces: dict[int, list[bytes]] = {}

    def add(self, stream: int, piece: bytes) -> bytes:
        """Take a piece; returns the lines that are complete now, b"" if none is."""
        pieces = self._pieces.get(stream)
        if not pieces and piece.endswith(b"\n"):
            return piece
        ended = self.end_of_cut_line(stream)
        pieces = self._pieces.setdefault(stream, [])
        pieces.append(piece)
        if piece.endswith(b"\n"):
            ended += b"".join(pieces)
            pieces.clear()
        return ended

    def end_of_cut_line(self, stream: int) -> bytes:
        """Return the line that the next piece does not belong to any more, b"" if there is none."""
        pieces = self._pieces.get(stream)
        if not pieces or len(pieces[-1]) >= PIECE_LENGTH:
            return b""
        line = b"".join(pieces) + b"\n"
        pieces.clear()
        return line

    def rest(self) -> Iterator[bytes]:
        """Yield the last lines, which have no end."""
        for pieces in self._pieces.values():
            line = b"".join(pieces)
            pieces.clear()
            if line:
                yield line


def split_time(content: bytes) -> tuple[bytes, bytes]:
    """Split a frame's content into its time, as a text that sorts like the times do, and the rest."""
    if content[TIME_LENGTH - 1 : TIME_LENGTH + 1] == b"Z ":
        return content[:TIME_LENGTH], content[TIME_LENGTH + 1 :]
    stamp, _, rest = content.partition(b" ")
    return _in_utc(stamp), rest


def time_ns(stamp: bytes) -> int:
    """Return nanoseconds since the epoch."""
    return parse_time(stamp.decode("ascii"))


def since_text(stamp: bytes) -> str:
    """Return a time as ``since`` takes it."""
    return format_time(time_ns(stamp))


def _in_utc(stamp: bytes) -> bytes:
    """Rewrite the time of a daemon that does not live in UTC."""
    return stamp_of(time_ns(stamp))


def stamp_of(nanoseconds: int) -> bytes:
    """Return a time as frames begin with it."""
    import time

    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09d}Z".encode()

"""What is uploaded: content that can be opened anew at any offset, to go on after a broken connection."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, BinaryIO, Protocol

from trainyard.errors import ConfigError
from trainyard.image_registry.registry_errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Source = Callable[[int], "Readable"]

BLOCK = 1 << 18


class Readable(Protocol):
    """An open stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, b"" at the end."""

    def close(self) -> None:
        """End it."""


def as_source(source: Source | str | os.PathLike[str] | bytes) -> Source:
    """Return a function that opens a file, bytes, or whatever the function that is given opens."""
    if callable(source):
        return source
    if isinstance(source, bytes):
        return lambda offset: io.BytesIO(source[offset:])
    path = os.fspath(source)

    def opened(offset: int) -> BinaryIO:
        try:
            file = open(path, "rb")  # noqa: SIM115 - closed by `Position`
        except OSError as error:
            raise ConfigError(f"cannot read {path}, which was to be uploaded: {error.strerror}") from error
        file.seek(offset)
        return file

    return opened


class Position:
    """One place in a source, from which pieces are read."""

    def __init__(self, source: Source, size: int) -> None:
        self._source = source
        self._size = size
        self._stream: Readable | None = None
        self._at = 0
        #: What the source itself failed with: none of the connection's, or the other side's, doing.
        self.failure: RegistryError | None = None

    def piece(self, start: int, length: int, advance: Callable[[int], None]) -> Iterator[bytes]:
        """Yield ``length`` bytes from ``start`` on, in blocks; tell ``advance`` how far that is.

        Raises:
            RegistryError: the content ends too early.
        """
        if self._stream is None or self._at != start:
            self.close()
            self._stream = self._source(start)
            self._at = start
        end = start + length
        while self._at < end:
            block = self._read(min(BLOCK, end - self._at))
            self._at += len(block)
            yield block
            advance(self._at)

    def _read(self, size: int) -> bytes:
        assert self._stream is not None
        try:
            block = self._stream.read(size)
            if block:
                return block
            self.failure = RegistryError(
                f"what was to be uploaded ends at {self._at:,} bytes, but was {self._size:,} bytes long",
                hint="It was changed in the meantime; try again.",
            )
        except RegistryError as error:
            self.failure = error
        except OSError as error:
            # an OSError would be taken for one of the connection
            self.failure = RegistryError(f"cannot read what was to be uploaded: {error.strerror or error}")
        raise self.failure

    def close(self) -> None:
        """End the stream."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

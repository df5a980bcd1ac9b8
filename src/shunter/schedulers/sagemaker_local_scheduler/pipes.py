"""Pipe channels: a fifo ``CHANNEL_EPOCH`` for every epoch, created before the previous epoch ends."""

from __future__ import annotations

import errno
import os
import select
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from shunter._toolkit import store

#: What a pipe brings at a time: a text as it is, or the content of an object.
Piece = bytes | store.Item

#: https://mxnet.apache.org/versions/master/architecture/note_data_loading - the magic number of RecordIO
_MAGIC = 0xCED7230A
_LONGEST_RECORD = (1 << 29) - 1
_OPEN_PAUSE = 0.02


class PipeFeeder(threading.Thread):
    """Writes what a channel brings into its fifos, one epoch after the other, for as long as a program reads.

    Args:
        path: of the fifos, without ``_EPOCH``.
        pieces_of: gives the objects and texts of an epoch, in order.
        data_store: where the objects come from.
        is_gzip: whether the objects are decompressed on their way.
        is_record_io: whether each object and each text is wrapped as a record.
    """

    def __init__(
        self,
        path: str,
        pieces_of: Callable[[int], Sequence[Piece]],
        data_store: store.Store,
        *,
        is_gzip: bool = False,
        is_record_io: bool = False,
    ) -> None:
        super().__init__(name=f"pipe-{os.path.basename(path)}", daemon=True)
        self._path = path
        self._pieces_of = pieces_of
        self._store = data_store
        self._is_gzip = is_gzip
        self._is_record_io = is_record_io
        self._stopping = threading.Event()
        #: What went wrong; "" so far.
        self.problem = ""
        self._make(0)

    def _make(self, epoch: int) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        fifo = f"{self._path}_{epoch}"
        if os.path.lexists(fifo):
            os.unlink(fifo)
        os.mkfifo(fifo)
        os.chmod(fifo, 0o666)  # the container may run as anybody

    def stop(self) -> None:
        """Stop feeding."""
        self._stopping.set()

    def run(self) -> None:
        """Feed."""
        epoch = 0
        try:
            while not self._stopping.is_set():
                fd = self._open(epoch)
                if fd < 0:
                    return
                self._make(epoch + 1)
                try:
                    self._write(fd, self._content(epoch))
                except (store.StoreError, OSError) as error:
                    self.problem = str(error)  # before the program sees the end of the fifo, and ends
                    return
                finally:
                    os.close(fd)
                    os.unlink(f"{self._path}_{epoch}")
                epoch += 1
        except (store.StoreError, OSError) as error:
            self.problem = str(error)
        except store.Cancelled:
            pass

    def _open(self, epoch: int) -> int:
        """Open a fifo once a program has opened it for reading; -1 if none will."""
        while not self._stopping.is_set():
            try:
                return os.open(f"{self._path}_{epoch}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
            self._stopping.wait(_OPEN_PAUSE)
        return -1

    def _write(self, fd: int, pieces: Iterable[bytes]) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        for piece in pieces:
            view = memoryview(piece)
            while view:
                if self._stopping.is_set():
                    return
                if not poll.poll(200):
                    continue
                try:
                    view = view[os.write(fd, view) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:  # it has read enough of this epoch
                    return

    def _content(self, epoch: int) -> Iterator[bytes]:
        for piece in self._pieces_of(epoch):
            chunks: Iterable[bytes] = [piece] if isinstance(piece, bytes) else self._object(piece)
            if self._is_record_io:
                chunks = _record(b"".join(chunks), piece)
            yield from chunks

    def _object(self, item: store.Item) -> Iterator[bytes]:
        chunks = self._store.chunks(item.place)
        return _gunzip(chunks, item) if self._is_gzip else chunks


def _gunzip(chunks: Iterable[bytes], item: store.Item) -> Iterator[bytes]:
    decoder = zlib.decompressobj(31)
    try:
        for chunk in chunks:
            while chunk:
                yield decoder.decompress(chunk)
                chunk = decoder.unused_data
                if decoder.eof:
                    decoder = zlib.decompressobj(31)
    except zlib.error as error:
        raise store.StoreError(f"{item.place.uri} is not gzip: {error}") from None


def _record(data: bytes, piece: Piece) -> Iterator[bytes]:
    if len(data) > _LONGEST_RECORD:
        where = "a text" if isinstance(piece, bytes) else piece.place.uri
        raise store.StoreError(f"{where} has {len(data)} bytes, a record takes {_LONGEST_RECORD}")
    yield struct.pack("<II", _MAGIC, len(data))
    yield data
    yield b"\0" * (-len(data) % 4)

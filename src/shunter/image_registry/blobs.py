"""Reading and uploading blobs, in pieces, over connections that may break.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pushing-blobs
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Protocol, Self
from urllib.parse import quote

from shunter.backoff import Backoff
from shunter.errors import ConfigError
from shunter.image_registry.image_manifest import hasher
from shunter.image_registry.registry_errors import (
    ContentMismatchError,
    Purpose,
    RegistryAuthError,
    RegistryError,
    RegistryUnavailableError,
    Trouble,
    connection_trouble,
)
from shunter.url_client import Response

if TYPE_CHECKING:
    from shunter.image_registry.client import Body, RegistryClient

Source = Callable[[int], "Readable"]

BLOCK = 1 << 18
DEFAULT_CHUNK = 64 << 20
#: Up to this size a blob is sent together with the request that ends its upload.
SMALL = 1 << 20
SMALLEST_CHUNK = 1 << 20
MOST_RESTARTS = 4
#: After this many answers of 500 without progress, the upload starts over: a registry that was killed may
#: have left empty files behind, and then permanently answers 500 to every request about that upload or blob.
MOST_INTERNAL_ERRORS = 3
#: The last request has the registry verify the whole content.
FINISH_TIMEOUT = 300.0
#: Answers that say that the upload is not in the state that we assume.
_LOST = frozenset({400, 404, 416})
_RANGE = re.compile(r"(?:bytes=)?0-(?P<last>\d+)")


class BlobStream:
    """A blob as it arrives. Continues where it was after a broken connection.

    If it is read from its beginning, the end of the stream is only reported when the content has the digest.
    """

    def __init__(
        self, client: RegistryClient, repository: str, digest: str, offset: int, scopes: tuple[str, ...]
    ) -> None:
        self._client = client
        self._purpose = Purpose("pull", client.registry, repository)
        self._path = f"/v2/{repository}/blobs/{digest}"
        self._digest = digest
        self._hash = hasher(digest) if offset == 0 else None
        self._scopes = scopes
        self._at = offset
        self._end: int | None = None
        self._answer: Response | None = None
        self._backoff = client.new_backoff()

    def read(self, size: int = BLOCK, /) -> bytes:
        """Return at most ``size`` bytes; b"" at the end.

        Raises:
            ContentMismatchError: the content is not that of the digest.
            RegistryError: the blob is not there, or cannot be read.
        """
        while True:
            try:
                block = self._block(size)
            except Trouble as trouble:
                self.close()
                self._client.wait(self._backoff, trouble, self._purpose)
                continue
            if block:
                self._backoff.reset()
                self._at += len(block)
                if self._hash is not None:
                    self._hash.update(block)
            else:
                self._verify()
            return block

    def close(self) -> None:
        """Close the stream, even before its end."""
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _block(self, size: int) -> bytes:
        if self._end is not None and self._at >= self._end:
            return b""
        block = self._read_some(self._answer or self._open(), size)
        if not block and self._end is not None:
            raise Trouble(f"the transfer of a blob was cut off at {self._at:,} of {self._end:,} bytes")
        return block

    def _open(self) -> Response:
        headers = {"Range": f"bytes={self._at}-"} if self._at else {}
        answer = self._client.attempt(
            "GET", self._path, self._purpose, self._scopes, headers, ok=(200, 206, 404)
        )
        self._answer = answer
        if answer.status == 404:
            self.close()
            raise RegistryError(
                f"cannot {self._purpose}: it has no blob {self._digest}",
                hint="The image is damaged or was deleted in the meantime; push it again.",
                status=404,
            )
        if answer.length is not None:
            self._end = answer.length + (self._at if answer.status == 206 else 0)
        if answer.status == 200:  # the registry has no ranges: read past what we have
            left = self._at
            while left:
                block = self._read_some(answer, min(BLOCK, left))
                if not block:
                    raise Trouble("the transfer of a blob was cut off")
                left -= len(block)
        return answer

    def _read_some(self, answer: Response, size: int) -> bytes:
        try:
            return answer.read1(size)
        except OSError as error:
            raise connection_trouble(error, self._purpose, insecure=False) from error

    def _verify(self) -> None:
        self.close()
        if self._hash is not None and self._hash.hexdigest() != self._digest.partition(":")[2]:
            raise ContentMismatchError(
                f"cannot {self._purpose}: the content of the blob {self._digest} does not match its digest",
                hint="The registry or a proxy in between damages what it sends.",
            )


class Readable(Protocol):
    """An open stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, b"" at the end."""

    def close(self) -> None:
        """End it."""


class _SourceReader:
    """Reads pieces of what is uploaded: a path, bytes, or a function that opens the content at an offset."""

    def __init__(self, source: Source | str | os.PathLike[str] | bytes, size: int) -> None:
        self._source = source
        self._size = size
        self._stream: Readable | None = None
        self._at = 0
        #: What the source itself failed with, rather than the connection or the other side.
        self.failure: RegistryError | None = None

    def piece(self, start: int, length: int, advance: Callable[[int], None]) -> Iterator[bytes]:
        """Yield ``length`` bytes from ``start`` on, in blocks; report to ``advance`` how far that is.

        Raises:
            RegistryError: the content ends too early.
        """
        if self._stream is None or self._at != start:
            self.close()
            self._stream = self._open(start)
            self._at = start
        end = start + length
        while self._at < end:
            block = self._read(self._stream, min(BLOCK, end - self._at))
            self._at += len(block)
            yield block
            advance(self._at)

    def _open(self, offset: int) -> Readable:
        source = self._source
        if callable(source):
            return source(offset)
        if isinstance(source, bytes):
            return io.BytesIO(source[offset:])
        try:
            file: BinaryIO = open(source, "rb")  # noqa: SIM115
        except OSError as error:
            raise ConfigError(
                f"cannot read {os.fspath(source)}, which was to be uploaded: {error.strerror}"
            ) from error
        file.seek(offset)
        return file

    def _read(self, stream: Readable, size: int) -> bytes:
        try:
            block = stream.read(size)
            if block:
                return block
            self.failure = RegistryError(
                f"what was to be uploaded ends at {self._at:,} bytes, but was {self._size:,} bytes long",
                hint="It was changed in the meantime; try again.",
            )
        except RegistryError as error:
            self.failure = error
        except OSError as error:
            # an OSError would be mistaken for one of the connection
            self.failure = RegistryError(f"cannot read what was to be uploaded: {error.strerror or error}")
        raise self.failure

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _UploadLostError(Exception):
    """The registry no longer knows an upload, or disagrees about its state."""

    def __init__(self, error: RegistryError, *, counts: bool = True) -> None:
        super().__init__(error.message)
        self.error = error
        self.counts = counts


class BlobUpload:
    """The upload of one blob. The arguments are those of `RegistryClient.upload_blob`."""

    def __init__(
        self,
        client: RegistryClient,
        repository: str,
        source: Source | str | os.PathLike[str] | bytes,
        digest: str,
        size: int,
        *,
        scopes: tuple[str, ...],
        chunk_size: int,
        advance: Callable[[int], None],
        mount_from: str = "",
    ) -> None:
        self._client = client
        self._repository = repository
        self._digest = digest
        self._size = size
        self._scopes = scopes
        self._chunk = chunk_size
        self._advance = advance
        self._mount_from = mount_from if mount_from != repository else ""
        self._purpose = Purpose("push", client.registry, repository)
        self._reader = _SourceReader(source, size)
        self._location = ""
        self._offset = 0
        self._most = 0  # the most that the registry is known to have had
        self._restarts = 0
        self._internal_errors = 0
        self._limited = False  # whether something on the way limits the size of requests

    def run(self) -> bool:
        """Upload; False if the blob was there already, or could be mounted.

        Raises:
            RegistryError: the registry refuses, or cannot be reached for too long.
        """
        try:
            return self._run()
        finally:
            self._reader.close()

    def _run(self) -> bool:
        backoff = self._client.new_backoff()
        unsure = False
        while True:
            try:
                if unsure:
                    self._ask_how_far()
                    self._note_progress(backoff)
                unsure = False
                if not self._location and not self._begin():
                    self._advance(self._size)
                    return False
                while self._location and self._offset < self._size and self._size > SMALL:
                    self._send_piece()
                    self._note_progress(backoff)
                self._finish()
            except Trouble as trouble:
                self._client.wait(backoff, trouble, self._purpose)
                self._note_internal_error(trouble)
                unsure = bool(self._location)
            except _UploadLostError as lost:
                self._restart(lost)
                unsure = False
            else:
                self._advance(self._size)
                return True

    def _begin(self) -> bool:
        """Open an upload; False if none is needed."""
        if self._internal_errors < MOST_INTERNAL_ERRORS and self._client.ask_for_blob(
            self._repository, self._digest, self._purpose, self._scopes
        ):
            return False
        answer = self._mounted() if self._mount_from else None
        if answer is None:
            path = f"/v2/{self._repository}/blobs/uploads/"
            answer = self._client.attempt("POST", path, self._purpose, self._scopes, body=b"", ok=(202,))
        self._client.document(answer)
        if answer.status == 201:
            return False
        self._note_location(answer)
        least = answer.headers.get("oci-chunk-min-length", "")
        if least.isdigit():
            self._chunk = max(self._chunk, int(least))
        self._offset = 0
        return True

    def _mounted(self) -> Response | None:
        try:
            return self._client.begin_mount(self._repository, self._digest, self._mount_from, self._scopes)
        except RegistryUnavailableError:
            raise
        except RegistryError as error:
            if not 400 <= error.status < 500:
                raise
            return None  # it does not mount; an ordinary upload shows whether we may push at all

    def _note_internal_error(self, trouble: Trouble) -> None:
        """Abandon an upload that the registry keeps answering with 500; the next one begins at 0."""
        if trouble.status != 500:
            return
        self._internal_errors += 1
        if self._internal_errors % MOST_INTERNAL_ERRORS == 0:
            self._location, self._offset = "", 0

    def _send_piece(self) -> None:
        start, length = self._offset, min(self._chunk, self._size - self._offset)
        # one request with everything is sent the way Docker does it, which every registry takes
        headers = {"Content-Range": f"{start}-{start + length - 1}"} if length != self._size else {}
        answer = self._send("PATCH", self._location, start, length, headers, ok=(201, 202, 204))
        self._note_location(answer)
        reached = _reached(answer)
        self._offset = start + length if reached is None else reached
        if not start < self._offset <= self._size:
            raise _UploadLostError(
                RegistryError(f"cannot {self._purpose}: it reports {self._offset:,} uploaded bytes")
            )

    def _note_progress(self, backoff: Backoff) -> None:
        """Forget the failures once the registry has more than ever before."""
        if self._offset > self._most:
            self._most = self._offset
            self._internal_errors = 0
            backoff.reset()

    def _finish(self) -> None:
        joint = "&" if "?" in self._location else "?"
        url = f"{self._location}{joint}digest={quote(self._digest, safe='')}"
        length = self._size - self._offset
        self._send("PUT", url, self._offset, length, {}, ok=(201, 204), timeout=FINISH_TIMEOUT)

    def _ask_how_far(self) -> None:
        """Ask how much of an upload has arrived, after its connection broke."""
        answer = self._in_session("GET", self._location, {}, None, ok=(204, 200))
        reached = _reached(answer)
        if reached is None or reached > self._size:
            raise _UploadLostError(
                RegistryError(f"cannot {self._purpose}: it does not say how far an upload is")
            )
        self._note_location(answer)
        self._offset = reached

    def _restart(self, lost: _UploadLostError) -> None:
        self._restarts += lost.counts
        if self._restarts > MOST_RESTARTS:
            raise lost.error from None
        if self._restarts == 2 and not self._limited:
            self._chunk = max(self._chunk, self._size)  # some registries take no pieces
        self._location, self._offset = "", 0

    def _send(
        self,
        method: str,
        url: str,
        start: int,
        length: int,
        headers: dict[str, str],
        *,
        ok: tuple[int, ...],
        timeout: float | None = None,
    ) -> Response:
        """Send a piece of the content."""
        own = {"Content-Type": "application/octet-stream", "Content-Length": str(length), **headers}
        body: Body = (lambda: self._reader.piece(start, length, self._advance)) if length else b""
        return self._in_session(method, url, own, body, ok=ok, timeout=timeout)

    def _in_session(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: Body,
        *,
        ok: tuple[int, ...],
        timeout: float | None = None,
    ) -> Response:
        """Send a request of an upload that is open, and read the answer to its end."""
        try:
            answer = self._client.attempt(
                method, url, self._purpose, self._scopes, headers, body, ok=ok, timeout=timeout
            )
        except RegistryAuthError:
            raise
        except RegistryError as error:
            if error is self._reader.failure:
                raise
            if error.status == 413 and min(self._chunk, self._size) > SMALLEST_CHUNK:
                self._limited = True
                self._chunk = max(SMALLEST_CHUNK, min(self._chunk, self._size) // 4)
                raise _UploadLostError(error, counts=False) from error
            if error.status in _LOST:
                raise _UploadLostError(error) from error
            raise
        self._client.document(answer)
        return answer

    def _note_location(self, answer: Response) -> None:
        location = answer.headers.get("location")
        if location:
            self._location = self._client.absolute(answer.url, location)
        elif not self._location:
            raise RegistryError(f"cannot {self._purpose}: it opened an upload without saying where")


def _reached(answer: Response) -> int | None:
    """Return how many bytes have arrived; None if unknown. ``0-0`` means 0: no piece is one byte long."""
    match = _RANGE.fullmatch(answer.headers.get("range", "").strip())
    if match is None:
        return None
    last = int(match["last"])
    return last + 1 if last else 0

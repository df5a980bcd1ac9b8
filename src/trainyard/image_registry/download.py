"""Reading blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.image_registry.digests import hasher
from trainyard.image_registry.registry_errors import (
    ContentMismatchError,
    Purpose,
    RegistryError,
    Trouble,
    connection_trouble,
)
from trainyard.image_registry.transport import BROKEN

if TYPE_CHECKING:
    from typing import Self

    from trainyard.image_registry.session import RegistrySession
    from trainyard.image_registry.transport import Answer

BLOCK = 1 << 18


class BlobStream:
    """A blob as it arrives. Goes on where it was after a broken connection.

    If it is read from its beginning, the end of the stream is only reported when the content has the digest.
    """

    def __init__(
        self, session: RegistrySession, repository: str, digest: str, offset: int, scopes: tuple[str, ...]
    ) -> None:
        self._session = session
        self._purpose = Purpose("pull", session.registry, repository)
        self._path = f"/v2/{repository}/blobs/{digest}"
        self._digest = digest
        self._hash = hasher(digest) if offset == 0 else None
        self._scopes = scopes
        self._at = offset
        self._end: int | None = None
        self._answer: Answer | None = None
        self._backoff = session.new_backoff()

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
                self._session.wait(self._backoff, trouble, self._purpose)
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
        """End it, wherever it is."""
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
        answer = self._answer or self._open()
        try:
            block = answer.read(size)
        except BROKEN as error:
            raise connection_trouble(error, self._purpose, insecure=False) from error
        if not block and self._end is not None and self._at < self._end:
            raise Trouble(f"a blob broke off at {self._at:,} of {self._end:,} bytes")
        return block

    def _open(self) -> Answer:
        headers = {"Range": f"bytes={self._at}-"} if self._at else {}
        answer = self._session.attempt(
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
        if answer.status == 200:
            self._skip(answer, self._at)
        return answer

    def _skip(self, answer: Answer, left: int) -> None:
        """Read past what we have, where a registry has no ranges."""
        while left:
            try:
                block = answer.read(min(BLOCK, left))
            except BROKEN as error:
                raise connection_trouble(error, self._purpose, insecure=False) from error
            if not block:
                raise Trouble("a blob broke off")
            left -= len(block)

    def _verify(self) -> None:
        self.close()
        if self._hash is not None and self._hash.hexdigest() != self._digest.partition(":")[2]:
            raise ContentMismatchError(
                f"cannot {self._purpose}: the content of the blob {self._digest} is not what its digest says",
                hint="The registry damages what it sends, or something on the way does.",
            )

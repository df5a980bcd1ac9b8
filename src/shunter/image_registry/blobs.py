"""Reading and uploading blobs. A transfer whose connection breaks begins again, as Docker's do.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pushing-blobs
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Self
from urllib.parse import quote

from shunter.errors import ConfigError
from shunter.image_registry.image_manifest import hasher
from shunter.image_registry.registry_errors import (
    ContentMismatchError,
    Purpose,
    RegistryError,
    RegistryUnavailableError,
    Trouble,
    connection_trouble,
)
from shunter.url_client import Response

if TYPE_CHECKING:
    from shunter.image_registry.client import RegistryClient

BLOCK = 1 << 18
#: At the end of an upload the registry verifies the whole content.
FINISH_TIMEOUT = 300.0


class BlobStream:
    """A blob as it arrives. The end is only reported when the content has the digest.

    Raises:
        Trouble: the connection broke.
        RegistryError: the blob is not there, or cannot be read.
    """

    def __init__(self, client: RegistryClient, repository: str, digest: str) -> None:
        self._purpose = Purpose("pull", client.registry, repository)
        self._digest = digest
        self._hash = hasher(digest)
        path = f"/v2/{repository}/blobs/{digest}"
        self._answer = client.attempt("GET", path, self._purpose, ok=(200, 404))
        if self._answer.status == 404:
            self.close()
            raise RegistryError(
                f"cannot {self._purpose}: it has no blob {digest}",
                hint="The image is damaged or was deleted in the meantime; push it again.",
                status=404,
            )

    def read(self, size: int = BLOCK, /) -> bytes:
        """Return at most ``size`` bytes; b"" at the end.

        Raises:
            Trouble: the connection broke.
            ContentMismatchError: the content is not that of the digest.
        """
        try:
            block = self._answer.read1(size)
        except OSError as error:
            raise connection_trouble(error, self._purpose, insecure=False) from error
        self._hash.update(block)
        if not block and self._hash.hexdigest() != self._digest.partition(":")[2]:
            raise ContentMismatchError(
                f"cannot {self._purpose}: the content of the blob {self._digest} does not match its digest",
                hint="The registry or a proxy in between damages what it sends.",
            )
        return block

    def close(self) -> None:
        """Close the stream, even before its end."""
        self._answer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: What is uploaded: a file's path, bytes, or a function that opens a blob of another repository.
Source = Callable[[], BlobStream] | str | bytes


class BlobUpload:
    """The upload of one blob. The arguments are those of `RegistryClient.upload_blob`."""

    def __init__(
        self,
        client: RegistryClient,
        repository: str,
        source: Source,
        digest: str,
        size: int,
        *,
        advance: Callable[[int], None],
        mount_from: str = "",
    ) -> None:
        self._client = client
        self._repository = repository
        self._source = source
        self._digest = digest
        self._size = size
        self._advance = advance
        self._mount_from = mount_from if mount_from != repository else ""
        self._purpose = Purpose("push", client.registry, repository, self._mount_from)
        self._sent = 0

    def run(self) -> bool:
        """Upload; False if the blob was there already, or could be mounted.

        Raises:
            RegistryError: the registry refuses, or cannot be reached for too long.
        """
        backoff = self._client.new_backoff()
        most = 0
        while True:
            try:
                was_sent = self._send()
            except Trouble as trouble:
                if self._sent > most:  # it gets further, if slowly
                    most = self._sent
                    backoff.reset()
                self._client.wait(backoff, trouble, self._purpose)
            else:
                self._advance(self._size)
                return was_sent

    def _send(self) -> bool:
        if self._client.ask_for_blob(self._repository, self._digest, self._purpose):
            return False
        answer = self._begin()
        self._client.document(answer)
        if answer.status == 201:
            return False
        location = answer.headers.get("location")
        if not location:
            raise RegistryError(f"cannot {self._purpose}: it opened an upload without saying where")
        url = self._client.absolute(answer.url, location)
        url += f"{'&' if '?' in url else '?'}digest={quote(self._digest, safe='')}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(self._size)}
        body = self._content if self._size else b""
        try:
            answer = self._client.attempt(
                "PUT", url, self._purpose, headers, body, ok=(201, 204), timeout=FINISH_TIMEOUT
            )
        except RegistryError as error:
            if error.status == 404:  # the registry has forgotten the upload: it was restarted
                raise Trouble(error.message, status=404, cause=error) from error
            raise
        self._client.document(answer)
        return True

    def _begin(self) -> Response:
        """Mount the blob, or open an upload."""
        if self._mount_from:
            try:
                return self._client.begin_mount(self._repository, self._digest, self._mount_from)
            except RegistryUnavailableError:
                raise
            except RegistryError as error:
                if not 400 <= error.status < 500:
                    raise
                # it does not mount; an ordinary upload shows whether we may push at all
        path = f"/v2/{self._repository}/blobs/uploads/"
        return self._client.attempt("POST", path, self._purpose, body=b"", ok=(202,))

    def _content(self) -> Iterator[bytes]:
        self._sent = 0
        with self._opened() as stream:
            while block := stream.read(min(BLOCK, self._size - self._sent)):
                yield block
                self._sent += len(block)
                self._advance(self._sent)
        if self._sent < self._size:
            raise RegistryError(
                f"what was to be uploaded ends at {self._sent:,} bytes, but was {self._size:,} bytes long",
                hint="It was changed in the meantime; try again.",
            )

    def _opened(self) -> BlobStream | BinaryIO:
        if callable(self._source):
            return self._source()
        if isinstance(self._source, bytes):
            return io.BytesIO(self._source)
        try:
            return open(self._source, "rb")
        except OSError as error:
            raise ConfigError(
                f"cannot read {self._source}, which was to be uploaded: {error.strerror}"
            ) from error

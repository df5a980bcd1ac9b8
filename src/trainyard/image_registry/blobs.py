"""Uploading blobs, in pieces, over connections that may break.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pushing-blobs
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from trainyard.image_registry.registry_errors import (
    Purpose,
    RegistryAuthError,
    RegistryError,
    RegistryUnavailableError,
    Trouble,
)
from trainyard.image_registry.sources import Position, as_source

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from trainyard.backoff import Backoff
    from trainyard.image_registry.client import RegistryClient
    from trainyard.image_registry.session import Body
    from trainyard.image_registry.sources import Source
    from trainyard.image_registry.transport import Answer

DEFAULT_CHUNK = 64 << 20
#: Up to this size a blob is sent together with the request that ends its upload.
SMALL = 1 << 20
SMALLEST_CHUNK = 1 << 20
MOST_RESTARTS = 4
#: The last request has the registry verify the whole content.
FINISH_TIMEOUT = 300.0
#: Answers that say that the upload is not what we think that it is.
_LOST = frozenset({400, 404, 416})
_RANGE = re.compile(r"(?:bytes=)?0-(?P<last>\d+)")


class SessionLostError(Exception):
    """The registry no longer knows an upload, or disagrees about it. Never leaves this module."""

    def __init__(self, error: RegistryError, *, counts: bool = True) -> None:
        super().__init__(error.message)
        self.error = error
        self.counts = counts


class Upload:
    """One blob on its way. The arguments are those of `RegistryClient.upload_blob`."""

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
        self._position = Position(as_source(source), size)
        self._location = ""
        self._offset = 0
        self._safe = 0  # what the registry is known to have had at best
        self._restarts = 0
        self._limited = False  # whether something on the way limits the size of requests

    def run(self) -> bool:
        """Upload; False if the blob was there already, or could be mounted.

        Raises:
            RegistryError: the registry refuses, or stays away for too long.
        """
        try:
            return self._run()
        finally:
            self._position.close()

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
                unsure = bool(self._location)
            except SessionLostError as lost:
                self._start_anew(lost)
                unsure = False
            else:
                self._advance(self._size)
                return True

    def _begin(self) -> bool:
        """Open an upload; False if none is needed."""
        if self._client.blob_exists(self._repository, self._digest, scopes=self._scopes):
            return False
        answer = self._mounted() if self._mount_from else None
        if answer is None:
            answer = self._attempt("POST", f"/v2/{self._repository}/blobs/uploads/", ok=(202,))
        self._client.document(answer)
        if answer.status == 201:
            return False
        self._take_location(answer)
        least = answer.headers.get("OCI-Chunk-Min-Length", "")
        if least.isdigit():
            self._chunk = max(self._chunk, int(least))
        self._offset = 0
        return True

    def _mounted(self) -> Answer | None:
        try:
            return begin_mount(self._client, self._repository, self._digest, self._mount_from, self._scopes)
        except RegistryUnavailableError:
            raise
        except RegistryError as error:
            if not 400 <= error.status < 500:
                raise
            return None  # it does not mount; an ordinary upload shows whether we may push at all

    def _send_piece(self) -> None:
        start, length = self._offset, min(self._chunk, self._size - self._offset)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
        if length != self._size:
            # one request with everything is sent the way Docker does it, which every registry takes
            headers["Content-Range"] = f"{start}-{start + length - 1}"
        answer = self._in_session(
            "PATCH",
            self._location,
            headers,
            lambda: self._position.piece(start, length, self._advance),
            ok=(201, 202, 204),
        )
        self._client.document(answer)
        self._take_location(answer)
        reached = _reached(answer)
        self._offset = start + length if reached is None else reached
        if not start < self._offset <= self._size:
            raise SessionLostError(RegistryError(f"cannot {self._purpose}: it counts {self._offset:,} bytes"))

    def _note_progress(self, backoff: Backoff) -> None:
        """Forget the failures once the registry has more than ever before."""
        if self._offset > self._safe:
            self._safe = self._offset
            backoff.reset()

    def _finish(self) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        length = self._size - self._offset
        headers["Content-Length"] = str(length)
        joint = "&" if "?" in self._location else "?"
        url = f"{self._location}{joint}digest={quote(self._digest, safe='')}"
        start = self._offset
        answer = self._in_session(
            "PUT",
            url,
            headers,
            (lambda: self._position.piece(start, length, self._advance)) if length else b"",
            ok=(201, 204),
            timeout=FINISH_TIMEOUT,
        )
        self._client.document(answer)

    def _ask_how_far(self) -> None:
        """Learn what has arrived of an upload whose connection broke."""
        answer = self._in_session("GET", self._location, {}, None, ok=(204, 200))
        self._client.document(answer)
        reached = _reached(answer)
        if reached is None or reached > self._size:
            raise SessionLostError(
                RegistryError(f"cannot {self._purpose}: it does not say how far an upload is")
            )
        self._take_location(answer)
        self._offset = reached

    def _start_anew(self, lost: SessionLostError) -> None:
        self._restarts += lost.counts
        if self._restarts > MOST_RESTARTS:
            raise lost.error from None
        if self._restarts == 2 and not self._limited:
            self._chunk = max(self._chunk, self._size)  # some registries take no pieces
        self._location, self._offset = "", 0

    def _in_session(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: Body,
        *,
        ok: tuple[int, ...],
        timeout: float | None = None,
    ) -> Answer:
        try:
            return self._attempt(method, url, headers, body, ok=ok, timeout=timeout)
        except RegistryAuthError:
            raise
        except RegistryError as error:
            if error is self._position.failure:
                raise
            if error.status == 413 and min(self._chunk, self._size) > SMALLEST_CHUNK:
                self._limited = True
                self._chunk = max(SMALLEST_CHUNK, min(self._chunk, self._size) // 4)
                raise SessionLostError(error, counts=False) from error
            if error.status in _LOST:
                raise SessionLostError(error) from error
            raise

    def _attempt(
        self,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        body: Body = b"",
        *,
        ok: tuple[int, ...],
        timeout: float | None = None,
    ) -> Answer:
        return self._client.attempt(
            method, url, self._purpose, self._scopes, headers, body, ok=ok, timeout=timeout
        )

    def _take_location(self, answer: Answer) -> None:
        location = answer.headers.get("Location")
        if location:
            self._location = self._client.absolute(answer.url, location)
        elif not self._location:
            raise RegistryError(f"cannot {self._purpose}: it opened an upload without saying where")


def begin_mount(
    client: RegistryClient, repository: str, digest: str, from_repository: str, scopes: tuple[str, ...]
) -> Answer:
    """Ask for a blob of another repository: 201 if it is there now, 202 if an upload was opened instead."""
    query = f"mount={quote(digest, safe='')}&from={quote(from_repository, safe='')}"
    purpose = Purpose("push", client.registry, repository)
    return client.attempt(
        "POST", f"/v2/{repository}/blobs/uploads/?{query}", purpose, scopes, None, b"", ok=(201, 202)
    )


def _reached(answer: Answer) -> int | None:
    """Read how many bytes an upload has; None if it does not say. ``0-0`` is none: nobody sends one byte."""
    match = _RANGE.fullmatch(answer.headers.get("Range", "").strip())
    if match is None:
        return None
    last = int(match["last"])
    return last + 1 if last else 0

"""A registry, by the OCI distribution API.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainyard.image_registry.digests import digest_of, matches
from trainyard.image_registry.media import MANIFEST_TYPES
from trainyard.image_registry.registry_errors import ContentMismatchError, Purpose, RegistryError
from trainyard.image_registry.session import RegistrySession

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from trainyard.image_registry.download import BlobStream
    from trainyard.image_registry.sources import Source
    from trainyard.progress import Progress


class ManifestDocument(NamedTuple):
    """A manifest as the registry keeps it."""

    body: bytes
    media_type: str
    digest: str


class RegistryClient(RegistrySession):
    """Images of one registry. May be used by several threads. The arguments are `RegistrySession`'s."""

    def manifest(
        self, repository: str, selector: str, *, scopes: tuple[str, ...] = ()
    ) -> ManifestDocument | None:
        """Return a manifest by tag or digest; None if there is none.

        Raises:
            RegistryError: the registry refuses, stays away, or sends something that its digest does not fit.
        """
        purpose = Purpose("pull", self.registry, repository)
        path = f"/v2/{repository}/manifests/{selector}"

        def ask() -> ManifestDocument | None:
            answer = self.attempt(
                "GET", path, purpose, scopes, {"Accept": ", ".join(MANIFEST_TYPES)}, ok=(200, 404)
            )
            body = self.document(answer)
            if answer.status == 404:
                return None
            wanted = selector if ":" in selector else answer.headers.get("Docker-Content-Digest", "")
            if wanted and not matches(body, wanted):
                raise ContentMismatchError(
                    f"{self.registry}/{repository} sent a manifest whose content is not that of {wanted}",
                    hint="The registry damages what it sends, or something on the way does.",
                )
            media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
            return ManifestDocument(body, media_type, wanted or digest_of(body))

        return self.patiently(ask, purpose)

    def manifest_digest(self, repository: str, selector: str) -> str | None:
        """Return the digest that a tag has, without fetching anything; None if there is no such manifest."""
        purpose = Purpose("pull", self.registry, repository)
        path = f"/v2/{repository}/manifests/{selector}"

        def ask() -> tuple[bool, str]:
            answer = self.attempt(
                "HEAD", path, purpose, (), {"Accept": ", ".join(MANIFEST_TYPES)}, ok=(200, 404)
            )
            self.document(answer)
            return answer.status == 200, answer.headers.get("Docker-Content-Digest", "")

        there, digest = self.patiently(ask, purpose)
        if not there or digest:
            return digest or None
        document = self.manifest(repository, selector)
        return document.digest if document else None

    def put_manifest(
        self, repository: str, selector: str, body: bytes, media_type: str, *, scopes: tuple[str, ...] = ()
    ) -> str:
        """Store a manifest under a tag or its digest. What it refers to must be there already.

        Returns:
            Its digest.
        """
        purpose = Purpose("push", self.registry, repository)
        path = f"/v2/{repository}/manifests/{selector}"

        def put() -> None:
            answer = self.attempt(
                "PUT", path, purpose, scopes, {"Content-Type": media_type}, body, ok=(200, 201, 202)
            )
            self.document(answer)

        self.patiently(put, purpose)
        return selector if ":" in selector else digest_of(body)

    def blob_exists(self, repository: str, digest: str, *, scopes: tuple[str, ...] = ()) -> bool:
        """Tell whether a blob is there."""
        purpose = Purpose(
            "push" if any("push" in scope for scope in scopes) else "pull", self.registry, repository
        )

        def ask() -> bool:
            answer = self.attempt("HEAD", f"/v2/{repository}/blobs/{digest}", purpose, scopes, ok=(200, 404))
            self.document(answer)
            return answer.status == 200

        return self.patiently(ask, purpose)

    def open_blob(
        self, repository: str, digest: str, offset: int = 0, *, scopes: tuple[str, ...] = ()
    ) -> BlobStream:
        """Return a blob as a stream from ``offset`` on, which goes on by itself after a broken connection.

        The content is verified at its end, if it was read from its beginning.
        """
        from trainyard.image_registry.download import BlobStream

        return BlobStream(self, repository, digest, offset, scopes)

    def read_blob(self, repository: str, digest: str, longest: int, *, scopes: tuple[str, ...] = ()) -> bytes:
        """Return a small blob, verified.

        Raises:
            RegistryError: it is longer than ``longest`` bytes.
        """
        with self.open_blob(repository, digest, scopes=scopes) as stream:
            parts, size = [], 0
            while part := stream.read(1 << 16):
                parts.append(part)
                size += len(part)
                if size > longest:
                    raise RegistryError(
                        f"the blob {digest} of {self.registry}/{repository} has more than {longest >> 20} MiB"
                    )
        return b"".join(parts)

    def upload_blob(
        self,
        repository: str,
        source: Source | str | os.PathLike[str] | bytes,
        digest: str,
        size: int,
        progress: Progress | None = None,
        *,
        label: str = "",
        mount_from: str = "",
        scopes: tuple[str, ...] = (),
        chunk_size: int = 0,
    ) -> bool:
        """Store a blob, unless it is there already.

        Args:
            repository: where to.
            source: a file's path, bytes, or a function that opens the content at an offset.
            digest: ``sha256:...`` of the content; the registry verifies it.
            size: length of the content in bytes.
            progress: is told how far it is, under ``label``.
            label: what is being sent; the beginning of the digest by default.
            mount_from: repository of the same registry that has it, to take it from without sending it.
            scopes: what to ask a token server for; by default what this needs.
            chunk_size: bytes per request; 64 MiB by default.

        Returns:
            Whether content was sent.
        """
        from trainyard.image_registry.blobs import DEFAULT_CHUNK, Upload

        upload = Upload(
            self,
            repository,
            source,
            digest,
            size,
            scopes=scopes or push_scopes(repository, mount_from),
            chunk_size=chunk_size or DEFAULT_CHUNK,
            advance=_advance(progress, label or digest.partition(":")[2][:12], size),
            mount_from=mount_from,
        )
        return upload.run()

    def mount_blob(self, repository: str, digest: str, from_repository: str) -> bool:
        """Take a blob over from another repository of this registry; False if the registry does not do it."""
        from trainyard.image_registry.blobs import begin_mount

        scopes = push_scopes(repository, from_repository)
        purpose = Purpose("push", self.registry, repository)

        def ask() -> bool:
            answer = begin_mount(self, repository, digest, from_repository, scopes)
            self.document(answer)
            return answer.status == 201

        return self.patiently(ask, purpose)


def push_scopes(repository: str, mount_from: str = "") -> tuple[str, ...]:
    """Return the scopes for pushing to a repository, and for mounting from another."""
    own = f"repository:{repository}:pull,push"
    return (own, f"repository:{mount_from}:pull") if mount_from and mount_from != repository else (own,)


def _advance(progress: Progress | None, label: str, size: int) -> Callable[[int], None]:
    if progress is None:
        return lambda _: None
    return lambda done: progress.advance(label, done, size)

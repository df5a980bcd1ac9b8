"""A client of one registry: requests with logins, redirects and retries; manifests and blobs.

A transfer whose connection breaks begins again, as Docker's do.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlencode, urljoin

from shunter.backoff import Backoff, Clock, retry_after
from shunter.docker.credentials import Credentials, credentials_for
from shunter.docker.image_reference import api_host, canonical_registry, is_loopback, split_host
from shunter.errors import ConfigError
from shunter.image_registry.auth import Authorizer
from shunter.image_registry.certificates import registry_context
from shunter.image_registry.image_manifest import MANIFEST_TYPES, digest_of, hasher
from shunter.image_registry.registry_errors import (
    FINAL_CODES,
    FULL_DISK,
    TRANSIENT,
    CancelledError,
    ContentMismatchError,
    Purpose,
    RegistryError,
    RegistryUnavailableError,
    Trouble,
    codes_and_words,
    connection_trouble,
    read_document,
    refusal,
    unavailable,
)
from shunter.progress import Progress
from shunter.url_client import BadUrlError, NotHttpError, Origin, Response, UrlClient

if TYPE_CHECKING:
    from hashlib import _Hash

T = TypeVar("T")

INSECURE_VARIABLE = "SHUNTER_INSECURE_REGISTRIES"
#: Seconds for which a registry may be unreachable or fail; the first and the longest delay between attempts.
DEFAULT_PATIENCE = 120.0
FIRST_DELAY, LONGEST_DELAY = 0.5, 10.0
#: The same for a registry that has never answered: its name is probably mistyped.
FIRST_CONTACT_PATIENCE = 15.0
#: At the end of an upload the registry verifies the whole content.
FINISH_TIMEOUT = 300.0
MOST_REDIRECTS = 5
BLOCK = 1 << 18
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class ManifestDocument(NamedTuple):
    """A manifest as the registry keeps it."""

    body: bytes
    media_type: str
    digest: str


@dataclass(frozen=True)
class Request:
    """A request to a registry.

    Attributes:
        method: GET, PUT, ....
        path: path below the registry, or a URL as the registry gave it.
        purpose: what it is for.
        ok: the HTTP statuses that are no error.
        headers: more headers.
        body: bytes, or a function that returns an iterable of them, since a request may be sent twice.
        timeout: seconds for which the registry may be silent.
    """

    method: str
    path: str
    purpose: Purpose
    ok: tuple[int, ...]
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Callable[[], Iterable[bytes]] | None = None
    timeout: float | None = None


class RegistryClient:
    """Images of one registry. Safe for use by several threads. A context manager.

    Args:
        host: the registry as image names have it: ``docker.io``, ``ghcr.io``, ``localhost:5000``.
        credentials: the credentials; by default, `credentials_for` looks them up when the registry asks.
        insecure: whether http is allowed. By default it is for registries on this machine, and for those in
            the variable SHUNTER_INSECURE_REGISTRIES (hosts separated by commas). https is used if the
            registry speaks nothing else.
        patience: seconds for which a registry may be unreachable or fail.
        progress: receives a message when requests have to wait for the registry.
        clock: the time; tests have their own.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials | None = None,
        insecure: bool | None = None,
        *,
        patience: float = DEFAULT_PATIENCE,
        progress: Progress | None = None,
        clock: Clock | None = None,
    ) -> None:
        split_host(host)
        self.registry = canonical_registry(host)
        named = {name.strip() for name in os.environ.get(INSECURE_VARIABLE, "").split(",")}
        is_insecure = self.registry in named or is_loopback(self.registry)
        self._insecure = is_insecure if insecure is None else insecure
        self._urls = UrlClient(context=lambda origin: registry_context(origin.host, origin.port))
        self._progress = progress
        self._stop = threading.Event()
        self._patience = patience
        self._clock = clock
        self._answered = False
        self._reported = ""
        self._base = "" if self._insecure else f"https://{api_host(self.registry)}"
        self._base_lock = threading.Lock()
        self._auth = Authorizer(
            self.registry,
            self._urls,
            lambda: credentials or credentials_for(self.registry),
            allow_http=self._insecure,
        )

    # ---- manifests

    def manifest(self, repository: str, selector: str) -> ManifestDocument | None:
        """Return a manifest by tag or digest, or None.

        Raises:
            RegistryError: the registry refuses, cannot be reached, or sends what does not fit the digest.
        """
        purpose = Purpose("pull", self.registry, repository)
        path = f"/v2/{repository}/manifests/{selector}"
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}
        answer, body = self._patiently_ask(Request("GET", path, purpose, (200, 404), headers))
        if answer.status == 404:
            return None
        digest = selector if ":" in selector else answer.headers.get("docker-content-digest", "")
        if digest and not _matches(body, digest):
            raise ContentMismatchError(
                f"{self.registry}/{repository} sent a manifest whose content does not match {digest}",
                hint="The registry or a proxy in between damages what it sends.",
            )
        media_type = answer.headers.get("content-type", "").partition(";")[0].strip()
        return ManifestDocument(body, media_type, digest or digest_of(body))

    def put_manifest(self, repository: str, selector: str, body: bytes, media_type: str) -> str:
        """Store a manifest under a tag or its digest; returns its digest. What it refers to must be there."""
        purpose = Purpose("push", self.registry, repository)
        path = f"/v2/{repository}/manifests/{selector}"
        headers = {"Content-Type": media_type}
        self._patiently_ask(Request("PUT", path, purpose, (200, 201, 202), headers, body))
        return selector if ":" in selector else digest_of(body)

    # ---- blobs

    def blob_exists(self, repository: str, digest: str) -> bool:
        """Tell whether a blob is there."""
        purpose = Purpose("pull", self.registry, repository)
        path = f"/v2/{repository}/blobs/{digest}"
        return self._patiently_ask(Request("HEAD", path, purpose, (200, 404)))[0].status == 200

    def open_blob(self, repository: str, digest: str) -> BlobStream:
        """Return a blob as a stream, which verifies the content at its end. To be called in `patiently`."""
        purpose = Purpose("pull", self.registry, repository)
        check = hasher(digest)
        answer = self._send(Request("GET", f"/v2/{repository}/blobs/{digest}", purpose, (200, 404)))
        if answer.status == 404:
            answer.close()
            raise RegistryError(
                f"cannot {purpose}: it has no blob {digest}",
                hint="The image is damaged or was deleted in the meantime; push it again.",
                status=404,
            )
        return BlobStream(answer, purpose, digest, check)

    def read_blob(self, repository: str, digest: str, longest: int) -> bytes:
        """Return a small blob, verified.

        Raises:
            RegistryError: it is longer than ``longest`` bytes.
        """

        def read() -> bytes:
            content = bytearray()
            with self.open_blob(repository, digest) as stream:
                while part := stream.read():
                    content += part
                    if len(content) > longest:
                        raise RegistryError(
                            f"the blob {digest} of {self.registry}/{repository} has more than"
                            f" {longest >> 20} MiB"
                        )
            return bytes(content)

        return self.patiently(read, Purpose("pull", self.registry, repository))

    def upload_blob(
        self,
        repository: str,
        source: Source,
        digest: str,
        size: int,
        progress: Progress | None = None,
        *,
        label: str = "",
        mount_from: str = "",
    ) -> bool:
        """Store a blob, unless it is there already; returns whether content was sent.

        Args:
            repository: where to.
            source: a file's path, bytes, or a function that opens a blob of another repository.
            digest: ``sha256:...`` of the content; the registry verifies it.
            size: length of the content in bytes.
            progress: receives the bytes sent, under ``label``.
            label: what is being sent; the beginning of the digest by default.
            mount_from: repository of the same registry that has it, so that nothing need be sent.

        Raises:
            RegistryError: the registry refuses, or cannot be reached for too long.
        """
        purpose = Purpose("push", self.registry, repository, mount_from)
        label = label or digest.partition(":")[2][:12]
        backoff = self._new_backoff()
        sent = most = 0

        def content() -> Iterator[bytes]:
            nonlocal sent
            sent = 0
            with _opened(source) as stream:
                while block := stream.read(min(BLOCK, size - sent)):
                    yield block
                    sent += len(block)
                    if progress is not None:
                        progress.advance(label, sent, size)
            if sent < size:
                raise RegistryError(
                    f"what was to be uploaded ends at {sent:,} bytes, but was {size:,} bytes long",
                    hint="It was changed in the meantime; try again.",
                )

        while True:
            try:
                was_sent = self._upload(purpose, digest, size, content)
            except Trouble as trouble:
                if sent > most:  # it gets further, if slowly
                    most = sent
                    backoff.reset()
                self._wait(backoff, trouble, purpose)
            else:
                if progress is not None:
                    progress.advance(label, size, size)
                return was_sent

    def _upload(
        self, purpose: Purpose, digest: str, size: int, content: Callable[[], Iterable[bytes]]
    ) -> bool:
        """Try once; False if the blob was there already, or could be mounted."""
        blobs = f"/v2/{purpose.repository}/blobs"
        if self._ask(Request("HEAD", f"{blobs}/{digest}", purpose, (200, 404)))[0].status == 200:
            return False
        query = urlencode({"mount": digest, "from": purpose.mount_from}) if purpose.mount_from else ""
        try:
            answer, _ = self._ask(Request("POST", f"{blobs}/uploads/?{query}", purpose, (201, 202), body=b""))
        except RegistryError as error:
            is_refusal = 400 <= error.status < 500 and not isinstance(error, RegistryUnavailableError)
            if not query or not is_refusal:
                raise
            # it does not mount; an ordinary upload shows whether we may push at all
            answer, _ = self._ask(Request("POST", f"{blobs}/uploads/", purpose, (202,), body=b""))
        if answer.status == 201:
            return False
        location = answer.headers.get("location")
        if not location:
            raise RegistryError(f"cannot {purpose}: it opened an upload without saying where")
        url = self.absolute(answer.url, location)
        url += f"{'&' if '?' in url else '?'}digest={quote(digest, safe='')}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        body = content if size else b""
        try:
            self._ask(Request("PUT", url, purpose, (201, 204), headers, body, FINISH_TIMEOUT))
        except RegistryError as error:
            if error.status == 404:  # the registry has forgotten the upload: it was restarted
                raise Trouble(error.message, status=404) from error
            raise
        return True

    # ---- requests

    def _ask(self, request: Request) -> tuple[Response, bytes]:
        """Send a request once, as `_send` does, and read the answer to its end."""
        answer = self._send(request)
        try:
            return answer, read_document(answer)
        except OSError as error:
            raise Trouble(f"the connection to {self.registry} broke: {error}") from error

    def _patiently_ask(self, request: Request) -> tuple[Response, bytes]:
        return self.patiently(lambda: self._ask(request), request.purpose)

    def _send(self, request: Request) -> Response:
        """Send a request once, with a login where the registry requires one. The caller closes the answer.

        Raises:
            Trouble: it may succeed later.
            RegistryError: it will not.
        """
        purpose = request.purpose
        try:
            if self._stop.is_set():
                raise CancelledError(f"cannot {purpose}: it was stopped")
            # again with new credentials after a 401; a second one means that we lack the permission
            while True:
                used = self._auth.header(purpose.scopes)
                answer = self._followed(request, used)
                if answer.status != 401:
                    self._auth.accepted(used)
                    break
                content = read_document(answer)
                challenge = answer.headers.get("www-authenticate", "")
                if not self._auth.renew(challenge, purpose.scopes, used):
                    raise refusal(purpose, 401, content, self._auth, is_denied=used.startswith("Bearer"))
            self._answered, self._reported = True, ""
            if answer.status in request.ok:
                return answer
            content = read_document(answer)
        except BadUrlError as error:
            raise self._bad_url(str(error)) from None
        except OSError as error:
            if self._stop.is_set():
                raise CancelledError(f"cannot {purpose}: it was stopped") from None
            raise connection_trouble(error, purpose, insecure=self._insecure) from error
        codes, said = codes_and_words(content)
        is_transient = answer.status in TRANSIENT and not codes & FINAL_CODES
        if (is_transient or "TOOMANYREQUESTS" in codes) and FULL_DISK not in said:
            raise Trouble(
                f"the registry answered {answer.status}" + (f": {said}" if said else ""),
                retry_after=retry_after(answer.headers.get("retry-after")),
                status=answer.status,
            )
        raise refusal(purpose, answer.status, content, self._auth)

    def _followed(self, request: Request, authorization: str) -> Response:
        """Send a request and follow redirects of reading ones; only the registry gets our credentials."""
        url = self._url(request.path)
        home = Origin.of(self._base)
        for _ in range(MOST_REDIRECTS):
            headers = {"User-Agent": "shunter", **request.headers}
            if authorization and Origin.of(url) == home:
                headers["Authorization"] = authorization
            body = request.body() if callable(request.body) else request.body
            answer = self._urls.send(request.method, url, headers, body, request.timeout)
            target = answer.headers.get("location")
            if request.method not in ("GET", "HEAD") or answer.status not in _REDIRECTS or not target:
                return answer
            read_document(answer)
            url = self.absolute(url, target)
        raise RegistryError(f"{self.registry} redirects us more than {MOST_REDIRECTS} times")

    def absolute(self, url: str, location: str) -> str:
        """Resolve a ``Location``.

        Raises:
            RegistryError: it is not a valid URL, or leads from https to http on another host.
        """
        try:
            target = urljoin(url, location)
            before, after = Origin.of(url), Origin.of(target)
        except ValueError:
            raise self._bad_url(location) from None
        if before.scheme == "https" and after.scheme == "http":
            if after.host != before.host:
                raise RegistryError(
                    f"{self.registry} redirects us from https to http://{after.host}, which is not safe"
                )
            # behind a proxy that ends TLS, a registry may not know that it is reached by https
            port = before.port if after.port == 80 else after.port
            host = f"[{after.host}]" if ":" in after.host else after.host
            target = f"https://{host}:{port}/{target.partition('://')[2].partition('/')[2]}"
        return target

    def _bad_url(self, url: str) -> RegistryError:
        return RegistryError(f"{self.registry} sent us to {url!r}, which is not a URL of http or https")

    # ---- retries

    def patiently(self, ask: Callable[[], T], purpose: Purpose) -> T:
        """Repeat a call that raises `Trouble` until it succeeds or ``patience`` is used up."""
        backoff = self._new_backoff()
        while True:
            try:
                return ask()
            except Trouble as trouble:
                self._wait(backoff, trouble, purpose)

    def _new_backoff(self) -> Backoff:
        return Backoff(FIRST_DELAY, LONGEST_DELAY, limit=self._patience, stop=self._stop, clock=self._clock)

    def _wait(self, backoff: Backoff, trouble: Trouble, purpose: Purpose) -> None:
        """Wait before another try.

        Raises:
            RegistryUnavailableError: we have waited for long enough.
        """
        if not self._answered:
            backoff.limit = min(self._patience, FIRST_CONTACT_PATIENCE)
        if self._progress is not None and self._reported != trouble.problem:
            self._reported = trouble.problem  # once, whatever the number of threads that wait
            self._progress.step(f"waiting for {self.registry}: {trouble.problem}")
        if not backoff.pause(trouble.retry_after):
            raise unavailable(purpose, trouble, backoff.elapsed()) from trouble
        if self._stop.is_set():
            raise CancelledError(f"cannot {purpose}: it was stopped")

    # ---- the connection

    def _url(self, path: str) -> str:
        """Return the URL of a path; finds out first whether an insecure registry speaks http or https."""
        with self._base_lock:
            if not self._base:
                self._base = self._find_base()
        return path if "://" in path else self._base + path

    def _find_base(self) -> str:
        """Try http. A server that expects TLS says so, or answers with something else than HTTP."""
        host = api_host(self.registry)
        try:
            answer = self._urls.send("GET", f"http://{host}/v2/", {"User-Agent": "shunter"})
            wants_tls = b"https" in read_document(answer).lower() and answer.status == 400
        except NotHttpError:
            wants_tls = True
        return f"{'https' if wants_tls else 'http'}://{host}"

    def abort(self) -> None:
        """Make everything that is under way in other threads fail soon."""
        self._stop.set()
        self._urls.abort()

    def close(self) -> None:
        """Close the connections."""
        self._urls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlobStream:
    """A blob as it arrives. The end is only reported when the content has the digest."""

    def __init__(self, answer: Response, purpose: Purpose, digest: str, check: _Hash) -> None:
        self._answer = answer
        self._purpose = purpose
        self._digest = digest
        self._check = check

    def read(self, size: int = BLOCK, /) -> bytes:
        """Return at most ``size`` bytes; b"" at the end.

        Raises:
            Trouble: the connection broke.
            ContentMismatchError: the content is not that of the digest.
        """
        try:
            block = self._answer.read1(size)
        except OSError as error:
            raise connection_trouble(error, self._purpose) from error
        self._check.update(block)
        if not block and self._check.hexdigest() != self._digest.partition(":")[2]:
            raise ContentMismatchError(
                f"cannot {self._purpose}: the content of the blob {self._digest} does not match its digest",
                hint="The registry or a proxy in between damages what it sends.",
            )
        return block

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()


#: What is uploaded: a file's path, bytes, or a function that opens a blob of another repository.
Source = Callable[[], BlobStream] | str | bytes


def _opened(source: Source) -> contextlib.AbstractContextManager[BlobStream | BinaryIO]:
    if callable(source):
        return source()
    if isinstance(source, bytes):
        return io.BytesIO(source)
    try:
        return open(source, "rb")
    except OSError as error:
        raise ConfigError(f"cannot read {source}, which was to be uploaded: {error.strerror}") from error


def _matches(content: bytes, digest: str) -> bool:
    """Tell whether content has a digest."""
    check = hasher(digest)
    check.update(content)
    return check.hexdigest() == digest.partition(":")[2]

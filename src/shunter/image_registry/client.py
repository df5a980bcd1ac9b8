"""A client of one registry: requests with logins, redirects and retries; manifests and blobs.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Self, TypeVar
from urllib.parse import quote, urljoin

from shunter.backoff import Backoff, Clock, retry_after
from shunter.docker.credentials import Credentials, credentials_for
from shunter.docker.image_reference import api_host, canonical_registry, is_loopback, split_host
from shunter.image_registry.auth import Authorizer, TokenServerError
from shunter.image_registry.blobs import BlobStream, BlobUpload, Source
from shunter.image_registry.certificates import registry_context
from shunter.image_registry.image_manifest import MANIFEST_TYPES, digest_of, matches
from shunter.image_registry.registry_errors import (
    FINAL_CODES,
    TRANSIENT,
    CancelledError,
    ContentMismatchError,
    Purpose,
    RegistryError,
    Trouble,
    codes_and_words,
    connection_trouble,
    denied,
    full_disk,
    read_document,
    refusal,
    unavailable,
)
from shunter.progress import Progress
from shunter.url_client import BadUrlError, NotHttpError, Origin, Response, UrlClient

T = TypeVar("T")

Body = bytes | Callable[[], Iterable[bytes]] | None

INSECURE_VARIABLE = "SHUNTER_INSECURE_REGISTRIES"
#: Seconds for which a registry may be unreachable or fail; the first and the longest delay between attempts.
DEFAULT_PATIENCE = 120.0
FIRST_DELAY, LONGEST_DELAY = 0.5, 10.0
#: The same for a registry that has never answered: its name is probably mistyped.
FIRST_CONTACT_PATIENCE = 15.0
MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class ManifestDocument(NamedTuple):
    """A manifest as the registry keeps it."""

    body: bytes
    media_type: str
    digest: str


class RegistryClient:
    """Images of one registry. Safe for use by several threads. A context manager.

    Args:
        host: the registry as image names have it: ``docker.io``, ``ghcr.io``, ``localhost:5000``.
        credentials: the credentials; by default, `credentials_for` looks them up when the registry asks.
        insecure: whether http is allowed. By default it is for registries on this machine, and for those in
            the variable SHUNTER_INSECURE_REGISTRIES (hosts separated by commas). https is used if the
            registry speaks nothing else.
        environ: the environment, that of the process by default: proxies, certificates, Docker's files.
        patience: seconds for which a registry may be unreachable or fail.
        progress: receives a message when requests have to wait for the registry.
        urls: sends the requests.
        clock: the time; tests have their own.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials | None = None,
        insecure: bool | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        patience: float = DEFAULT_PATIENCE,
        progress: Progress | None = None,
        urls: UrlClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        split_host(host)
        self.registry = canonical_registry(host)
        environ = os.environ if environ is None else environ
        named = {name.strip() for name in environ.get(INSECURE_VARIABLE, "").split(",")}
        is_insecure = self.registry in named or is_loopback(self.registry)
        self._insecure = is_insecure if insecure is None else insecure
        self._urls = urls or UrlClient(
            environ, lambda origin: registry_context(origin.host, origin.port, environ)
        )
        self._progress = progress
        self._stop = threading.Event()
        self._patience = patience
        self._clock = clock
        self._answered = False
        self._told = ""
        self._base = "" if self._insecure else f"https://{api_host(self.registry)}"
        self._base_lock = threading.Lock()
        self._auth = Authorizer(
            self.registry,
            self._urls,
            lambda: credentials or credentials_for(self.registry, environ),
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

        def ask() -> ManifestDocument | None:
            answer = self.attempt("GET", path, purpose, headers, ok=(200, 404))
            body = self.document(answer)
            if answer.status == 404:
                return None
            wanted = selector if ":" in selector else answer.headers.get("docker-content-digest", "")
            if wanted and not matches(body, wanted):
                raise ContentMismatchError(
                    f"{self.registry}/{repository} sent a manifest whose content does not match {wanted}",
                    hint="The registry or a proxy in between damages what it sends.",
                )
            media_type = answer.headers.get("content-type", "").partition(";")[0].strip()
            return ManifestDocument(body, media_type, wanted or digest_of(body))

        return self.patiently(ask, purpose)

    def put_manifest(self, repository: str, selector: str, body: bytes, media_type: str) -> str:
        """Store a manifest under a tag or its digest; returns its digest. What it refers to must be there."""
        purpose = Purpose("push", self.registry, repository)
        path = f"/v2/{repository}/manifests/{selector}"
        headers = {"Content-Type": media_type}

        def put() -> None:
            self.document(self.attempt("PUT", path, purpose, headers, body, ok=(200, 201, 202)))

        self.patiently(put, purpose)
        return selector if ":" in selector else digest_of(body)

    # ---- blobs

    def blob_exists(self, repository: str, digest: str) -> bool:
        """Tell whether a blob is there."""
        purpose = Purpose("pull", self.registry, repository)
        return self.patiently(lambda: self.ask_for_blob(repository, digest, purpose), purpose)

    def ask_for_blob(self, repository: str, digest: str, purpose: Purpose) -> bool:
        """Ask once whether a blob is there. Raises what `attempt` does."""
        answer = self.attempt("HEAD", f"/v2/{repository}/blobs/{digest}", purpose, ok=(200, 404))
        self.document(answer)
        return answer.status == 200

    def open_blob(self, repository: str, digest: str) -> BlobStream:
        """Return a blob as a stream, which verifies the content at its end. To be called in `patiently`."""
        return BlobStream(self, repository, digest)

    def read_blob(self, repository: str, digest: str, longest: int) -> bytes:
        """Return a small blob, verified.

        Raises:
            RegistryError: it is longer than ``longest`` bytes.
        """

        def read() -> bytes:
            content = b""
            with self.open_blob(repository, digest) as stream:
                while part := stream.read():
                    content += part
                    if len(content) > longest:
                        raise RegistryError(
                            f"the blob {digest} of {self.registry}/{repository} has more than"
                            f" {longest >> 20} MiB"
                        )
            return content

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
        """
        shown = label or digest.partition(":")[2][:12]
        return BlobUpload(
            self,
            repository,
            source,
            digest,
            size,
            advance=lambda done: progress.advance(shown, done, size) if progress is not None else None,
            mount_from=mount_from,
        ).run()

    def begin_mount(self, repository: str, digest: str, from_repository: str) -> Response:
        """Ask to mount another repository's blob: 201 if it is there now, 202 if an upload was opened."""
        query = f"mount={quote(digest, safe='')}&from={quote(from_repository, safe='')}"
        path = f"/v2/{repository}/blobs/uploads/?{query}"
        purpose = Purpose("push", self.registry, repository, from_repository)
        return self.attempt("POST", path, purpose, body=b"", ok=(201, 202))

    # ---- requests

    def attempt(
        self,
        method: str,
        path: str,
        purpose: Purpose,
        headers: Mapping[str, str] | None = None,
        body: Body = None,
        *,
        ok: tuple[int, ...],
        timeout: float | None = None,
    ) -> Response:
        """Send one request, with a login where the registry requires one. The caller closes the answer.

        Args:
            method: GET, PUT, ....
            path: path below the registry, or a URL as the registry gave it.
            purpose: what it is for.
            headers: more headers.
            body: bytes, or a function that returns an iterable of them, since a request may be sent twice.
            ok: the HTTP statuses with which an answer is returned.
            timeout: seconds for which the registry may be silent.

        Raises:
            Trouble: it may succeed later.
            RegistryError: it will not.
        """
        if self._stop.is_set():
            raise CancelledError(f"cannot {purpose}: it was stopped")
        try:
            answer, refused = self._logged_in(
                method, self._url(path), purpose.scopes, headers or {}, body, timeout
            )
            self._answered, self._told = True, ""
            if answer.status in ok and not refused:
                return answer
            content = read_document(answer)
        except BadUrlError as error:
            raise self._bad_url(str(error)) from None
        except OSError as error:
            if self._stop.is_set():
                raise CancelledError(f"cannot {purpose}: it was stopped") from None
            raise connection_trouble(error, purpose, insecure=self._insecure) from error
        except TokenServerError as error:
            if error.status and error.status not in TRANSIENT:
                raise RegistryError(f"cannot {purpose}: {error.message}", status=error.status) from error
            wait = retry_after(error.headers.get("retry-after"))
            raise Trouble(error.message, retry_after=wait, status=error.status, cause=error) from error
        raise self._failure(answer, content, purpose, known=refused)

    def _failure(self, answer: Response, content: bytes, purpose: Purpose, *, known: bool) -> Exception:
        codes, said = codes_and_words(content)
        if "no space left" in said:
            return full_disk(purpose, answer.status, f": {said}")
        if (answer.status in TRANSIENT and not codes & FINAL_CODES) or "TOOMANYREQUESTS" in codes:
            words = f": {said}" if said else ""
            wait = retry_after(answer.headers.get("retry-after"))
            return Trouble(
                f"the registry answered {answer.status}{words}", retry_after=wait, status=answer.status
            )
        if known and answer.status == 401:
            return denied(purpose, 401, self._auth)
        return refusal(purpose, answer.status, content, self._auth)

    def _logged_in(
        self,
        method: str,
        url: str,
        scopes: tuple[str, ...],
        headers: Mapping[str, str],
        body: Body,
        timeout: float | None,
    ) -> tuple[Response, bool]:
        """Send a request, and again with new credentials after a 401.

        Returns:
            The answer, and whether it is a 401 although the registry's token server gave us a token: then we
            are authenticated, but lack the permission.
        """
        while True:
            used = self._auth.header(scopes)
            answer = self._followed(method, url, used, headers, body, timeout)
            if answer.status != 401:
                self._auth.accepted(used)
                return answer, False
            try:
                renewed = self._auth.renew(answer.headers.get("www-authenticate", ""), scopes, used)
            except BaseException:
                answer.close()
                raise
            if not renewed:
                return answer, used.startswith("Bearer")
            read_document(answer)

    def _followed(
        self,
        method: str,
        url: str,
        authorization: str,
        headers: Mapping[str, str],
        body: Body,
        timeout: float | None,
    ) -> Response:
        """Send a request and follow redirects of reading ones; only the registry gets our credentials."""
        home = Origin.of(self._base)
        for _ in range(MOST_REDIRECTS):
            own = {"User-Agent": "shunter", **headers}
            if authorization and Origin.of(url) == home:
                own["Authorization"] = authorization
            content = body() if callable(body) else body
            answer = self._urls.send(method, url, own, content, timeout)
            target = answer.headers.get("location")
            if method not in ("GET", "HEAD") or answer.status not in _REDIRECTS or not target:
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

    def document(self, answer: Response) -> bytes:
        """Read an answer to its end.

        Raises:
            Trouble: the connection broke.
        """
        try:
            return read_document(answer)
        except OSError as error:
            raise Trouble(f"the connection to {self.registry} broke: {error}", cause=error) from error

    # ---- retries

    def patiently(self, ask: Callable[[], T], purpose: Purpose) -> T:
        """Repeat a call that raises `Trouble` until it succeeds or ``patience`` is used up."""
        backoff = self.new_backoff()
        while True:
            try:
                return ask()
            except Trouble as trouble:
                self.wait(backoff, trouble, purpose)

    def new_backoff(self) -> Backoff:
        """Return the delays between the attempts of one operation."""
        return Backoff(FIRST_DELAY, LONGEST_DELAY, limit=self._patience, stop=self._stop, clock=self._clock)

    def wait(self, backoff: Backoff, trouble: Trouble, purpose: Purpose) -> None:
        """Wait before another try.

        Raises:
            RegistryUnavailableError: we have waited for long enough.
        """
        if not self._answered:
            backoff.limit = min(self._patience, FIRST_CONTACT_PATIENCE)
        if self._progress is not None and self._told != trouble.problem:
            self._told = trouble.problem  # once, whatever the number of threads that wait
            self._progress.step(f"waiting for {self.registry}: {trouble.problem}")
        if not backoff.pause(trouble.retry_after):
            raise unavailable(purpose, trouble, backoff.elapsed())
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

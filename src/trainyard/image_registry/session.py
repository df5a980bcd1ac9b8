"""How a registry is spoken to: logging in, following, waiting, trying again."""

from __future__ import annotations

import http.client
import os
import threading
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from trainyard.backoff import Backoff, retry_after
from trainyard.docker.credentials import credentials_for
from trainyard.docker.image_reference import api_host, canonical_registry, is_loopback, split_host
from trainyard.image_registry.auth import Authorizer, TokenServerError
from trainyard.image_registry.registry_errors import (
    FINAL_CODES,
    TRANSIENT,
    CancelledError,
    Purpose,
    RegistryError,
    Trouble,
    codes_and_words,
    connection_trouble,
    denied,
    full_disk,
    refusal,
    unavailable,
)
from trainyard.image_registry.transport import (
    BROKEN,
    MOST_REDIRECTS,
    REDIRECTS,
    Answer,
    Origin,
    Transport,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self, TypeVar

    from trainyard.backoff import Clock
    from trainyard.docker.credentials import Credentials
    from trainyard.progress import Progress

    T = TypeVar("T")
    Body = bytes | Callable[[], Iterable[bytes]] | None

INSECURE_VARIABLE = "TRAINYARD_INSECURE_REGISTRIES"
#: A registry may be away, or fail, for so many seconds; the first delay before another try, and the longest.
DEFAULT_PATIENCE = 120.0
FIRST_DELAY, LONGEST_DELAY = 0.5, 10.0
#: A registry that never answered is more likely mistyped than away for a moment.
FIRST_CONTACT_PATIENCE = 15.0


class RegistrySession:
    """Requests to one registry. May be used by several threads.

    Args:
        host: the registry as image names have it: ``docker.io``, ``ghcr.io``, ``localhost:5000``.
        credentials: who we are; looked up by `credentials_for` when the registry asks, by default.
        insecure: whether http will do. By default for this machine's own, and those that the variable
            TRAINYARD_INSECURE_REGISTRIES names (hosts separated by commas). https is used if the registry
            speaks nothing else.
        environ: the environment, that of the process by default: proxies, certificates, Docker's files.
        patience: seconds for which a registry may be away, or fail, before we give up.
        progress: is told when we wait.
        transport: sends the requests; one of its own by default.
        clock: the time, of which tests have another.
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
        transport: Transport | None = None,
        clock: Clock | None = None,
    ) -> None:
        split_host(host)
        self.registry = canonical_registry(host)
        self._environ = os.environ if environ is None else environ
        self._insecure = self._is_insecure() if insecure is None else insecure
        self._transport = transport or Transport(self._environ)
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
            self._transport,
            (lambda: credentials) if credentials else lambda: credentials_for(self.registry, self._environ),
            allow_http=self._insecure,
        )

    def attempt(
        self,
        method: str,
        path: str,
        purpose: Purpose,
        scopes: tuple[str, ...],
        headers: Mapping[str, str] | None = None,
        body: Body = None,
        *,
        ok: tuple[int, ...],
        timeout: float | None = None,
    ) -> Answer:
        """Send one request, with a login where the registry wants one. The caller closes the answer.

        Args:
            path: path below the registry, or a URL as the registry gave it.
            scopes: those for a token; by default for pulling or pushing, as the purpose is.
            ok: the states of answers that are returned.

        Raises:
            Trouble: it may succeed later.
            RegistryError: it will not.
        """
        scopes = scopes or (
            f"repository:{purpose.repository}:{'pull,push' if purpose.verb == 'push' else 'pull'}",
        )
        if self._stop.is_set():
            raise CancelledError(f"cannot {purpose}: it was stopped")
        try:
            answer, refused = self._logged_in(method, self.url(path), scopes, headers or {}, body, timeout)
            self._answered, self._told = True, ""
            if answer.status in ok and not refused:
                return answer
            content = answer.document()
        except BROKEN as error:
            if self._stop.is_set():
                raise CancelledError(f"cannot {purpose}: it was stopped") from None
            raise connection_trouble(error, purpose, insecure=self._insecure) from error
        except TokenServerError as error:
            if error.status and error.status not in TRANSIENT:
                raise RegistryError(f"cannot {purpose}: {error.message}", status=error.status) from error
            wait = retry_after(error.headers.get("Retry-After"))
            raise Trouble(error.message, retry_after=wait, status=error.status, cause=error) from error
        raise self._failure(answer, content, purpose, known=refused)

    def _failure(self, answer: Answer, content: bytes, purpose: Purpose, *, known: bool) -> Exception:
        codes, said = codes_and_words(content)
        if "no space left" in said:
            return full_disk(purpose, answer.status, f": {said}")
        if (answer.status in TRANSIENT and not codes & FINAL_CODES) or "TOOMANYREQUESTS" in codes:
            words = f": {said}" if said else ""
            wait = retry_after(answer.headers.get("Retry-After"))
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
    ) -> tuple[Answer, bool]:
        """Send a request, and again with new credentials after a 401.

        Returns:
            The answer, and whether it is a 401 although the registry's token server gave us a token: then we
            are known, but are not let.
        """
        while True:
            used = self._auth.header(scopes)
            answer = self._followed(method, url, used, headers, body, timeout)
            if answer.status != 401:
                self._auth.accepted(used)
                return answer, False
            challenge = ", ".join(answer.headers.get_all("WWW-Authenticate") or ())
            try:
                renewed = self._auth.renew(challenge, scopes, used)
            except BaseException:
                answer.close()
                raise
            if not renewed:
                return answer, used.startswith("Bearer")
            answer.document()

    def _followed(
        self,
        method: str,
        url: str,
        authorization: str,
        headers: Mapping[str, str],
        body: Body,
        timeout: float | None,
    ) -> Answer:
        """Send a request; follow redirects of reading ones, telling nobody but the registry who we are."""
        home = Origin.of(self._base)
        for _ in range(MOST_REDIRECTS):
            own = {"User-Agent": "trainyard", **headers}
            if authorization and Origin.of(url) == home:
                own["Authorization"] = authorization
            content = body() if callable(body) else body
            answer = self._transport.send(method, url, own, content, timeout)
            target = answer.headers.get("Location")
            if method not in ("GET", "HEAD") or answer.status not in REDIRECTS or not target:
                return answer
            answer.document()
            url = self.absolute(url, target)
        raise RegistryError(
            f"{self.registry} sends us from one place to the next, {MOST_REDIRECTS} times and more"
        )

    def absolute(self, url: str, location: str) -> str:
        """Resolve a ``Location``.

        Raises:
            RegistryError: it leads from https to http.
        """
        target = urljoin(url, location)
        before, after = Origin.of(url), Origin.of(target)
        if before.scheme == "https" and after.scheme == "http":
            if after.host != before.host:
                raise RegistryError(
                    f"{self.registry} sends us from https to http://{after.host}, which is not safe"
                )
            # behind a proxy that ends TLS, a registry may not know that it is spoken to by https
            port = f":{after.port}" if after.port not in (80, before.port) else f":{before.port}"
            host = f"[{after.host}]" if ":" in after.host else after.host
            target = f"https://{host}{port}/{target.partition('://')[2].partition('/')[2]}"
        return target

    def document(self, answer: Answer) -> bytes:
        """Read an answer to its end.

        Raises:
            Trouble: the connection broke.
        """
        try:
            return answer.document()
        except BROKEN as error:
            raise Trouble(f"the connection to {self.registry} broke: {error}", cause=error) from error

    def patiently(self, ask: Callable[[], T], purpose: Purpose) -> T:
        """Repeat what raises `Trouble`, until it does not, or patience ends."""
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

    def url(self, path: str) -> str:
        """Return the URL of a path; finds out first how an insecure registry wants to be spoken to."""
        if not self._base:
            with self._base_lock:
                self._find_base()
        return path if "://" in path else self._base + path

    def _find_base(self) -> None:
        """Try http. A server that wants TLS says so, or answers with no HTTP at all."""
        if self._base:
            return
        host = api_host(self.registry)
        try:
            answer = self._transport.send("GET", f"http://{host}/v2/", {"User-Agent": "trainyard"})
            content = answer.document()
            wants_tls = answer.status == 400 and b"https" in content.lower()
        except http.client.RemoteDisconnected:
            raise
        except http.client.BadStatusLine:
            wants_tls = True
        self._base = f"{'https' if wants_tls else 'http'}://{host}"

    def _is_insecure(self) -> bool:
        named = {name.strip() for name in self._environ.get(INSECURE_VARIABLE, "").split(",")}
        return self.registry in named or is_loopback(self.registry)

    def abort(self) -> None:
        """Make everything that is under way in other threads fail soon."""
        self._stop.set()
        self._transport.abort()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

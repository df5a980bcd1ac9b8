"""The API server: its requests, watches and errors. Objects are plain dicts, so that unknown fields do no
harm.

Requests that read are repeated if the server cannot be reached or asks the client to wait. Created objects
have unique names, so a repeated request can at most find that its object already exists. A watch resumes
where it broke off, and starts over with a list if the server no longer knows that position, 410 Gone
(https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes).
"""

from __future__ import annotations

import json
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any

from shunter.backoff import Backoff, Clock, retry_after
from shunter.errors import AccessError, BackendError, ConfigError, ShunterError
from shunter.schedulers.kubernetes_scheduler.kubeconfig import connect

TIMEOUT = 30.0
ATTEMPTS = 4
FIRST_DELAY, LONGEST_DELAY = 0.25, 4.0
#: Seconds after which the server ends a watch by itself; a silent one is given up a little later.
WATCH_SECONDS = 240
PAGE_SIZE = 500

#: The reason of an error that is the same however often it is tried.
_CERTIFICATE = "certificate"
#: The reason of an error that took long: nothing at all answered.
_SILENCE = "silence"

_HINTS = (
    ("exceeded quota", "The namespace's quota is used up: wait, ask for less, or use another namespace."),
    (
        "admission webhook",
        "A policy of the cluster refuses it: the text says which; its administrators can say why.",
    ),
    (
        "violates PodSecurity",
        "The namespace does not allow such pods: leave out privileged, devices or bind mounts.",
    ),
    ("looking up service account", "Name an existing one: -cfg service_account=NAME."),
    ("no PriorityClass", "`kubectl get priorityclasses` lists them."),
)


class KubernetesError(BackendError):
    """The API server refused a request (``status`` is HTTP's), or could not be reached (0)."""

    def __init__(
        self, message: str, *, hint: str = "", status: int = 0, reason: str = "", wait: float = 0.0
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason
        self.wait = wait


class KubernetesAccessError(KubernetesError, AccessError):
    """The API server refuses the credentials, or they lack a permission."""


class ApiServer:
    """An API server.

    Args:
        context: context of the kubeconfig; "" for its current one.
        kubeconfig: path of the file; "" for the usual places.
        clock: the time.
    """

    def __init__(self, context: str = "", kubeconfig: str = "", clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self.kubeconfig = kubeconfig
        self._context = context
        self._lock = threading.Lock()
        self._connection: Any = None
        #: Clients whose certificates have expired; other threads may still read from them.
        self._former: list[Any] = []
        self._groups: dict[str, list[str]] | None = None

    @property
    def connection(self) -> Any:
        """The client, made when it is first needed."""
        with self._lock:
            if self._connection is not None and self._connection.is_outdated:
                self._former.append(self._connection)
                self._connection = None
            if self._connection is None:
                try:
                    self._connection = connect(self._context, self.kubeconfig, TIMEOUT)
                except ModuleNotFoundError as error:
                    raise ConfigError(
                        f"the scheduler 'kubernetes' needs the package {error.name!r}, which is not "
                        "installed",
                        hint="Install it: pip install 'shunter[kubernetes]'",
                    ) from None
            return self._connection

    def close(self) -> None:
        """Close the connections. May be called more than once."""
        with self._lock:
            connections = [*self._former, self._connection]
            self._former, self._connection = [], None
        for connection in filter(None, connections):
            connection.client.close()

    # ---- requests

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        attempts: int = ATTEMPTS,
        content_type: str = "application/json",
        **params: Any,
    ) -> Any:
        """Send a request, and return its answer.

        Raises:
            KubernetesError: it was refused, or the server could not be reached after several attempts.
        """
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY, attempts=attempts, clock=self._clock)
        while True:
            try:
                return self._send(method, path, body, content_type, params)
            except KubernetesError as error:
                # ten seconds without a connection are enough
                if error.reason == _SILENCE or not _may_repeat(error):
                    raise
                if not backoff.pause(min(error.wait, 30.0)):
                    raise

    def _send(self, method: str, path: str, body: Any, content_type: str, params: dict[str, Any]) -> Any:
        connection = self.connection
        import httpx2
        from lightkube.core.exceptions import ConfigError as LightkubeError

        headers = {"Accept": "application/json"}
        content = None
        if body is not None:
            content = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
            headers["Content-Type"] = content_type
        try:
            response = connection.client.request(
                method, path, params=_params(params), content=content, headers=headers
            )
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise self.translated(error) from None
        except LightkubeError as error:
            raise _lost_token(error) from None
        if method != "GET":
            _pass_on(response.headers.get_list("Warning"))
        if response.status_code >= 400:
            raise self.refusal(response.status_code, response.content, response.headers)
        try:
            return response.json() if response.content else {}
        except ValueError:
            shown = response.content[:100].decode("utf-8", "replace")
            raise KubernetesError(
                f"{connection.server} does not answer like an API server: {shown!r}",
                hint="Does the kubeconfig name the right address? A proxy may be in between.",
            ) from None

    def get(self, path: str, **params: Any) -> Any:
        """Return an object, or whatever is at a path."""
        return self.request("GET", path, **params)

    def find(self, path: str, **params: Any) -> Any:
        """Return an object, or None."""
        try:
            return self.get(path, **params)
        except KubernetesError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **params: Any) -> tuple[list[dict[str, Any]], str]:
        """Return all objects of a list, page by page, and the version at which it was made.

        A list whose pages took too long (410 Gone) is read again in one piece.
        """
        found: list[dict[str, Any]] = []
        token = ""
        limit: int | None = PAGE_SIZE
        while True:
            try:
                page = self.get(path, **params, limit=limit, **({"continue": token} if token else {}))
            except KubernetesError as error:
                if error.status != 410 or not token:
                    raise
                found, token, limit = [], "", None
                continue
            found += page.get("items") or []
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                return found, str(metadata.get("resourceVersion") or "")

    def create(
        self, path: str, manifest: Mapping[str, Any], *, dry_run: bool = False, attempts: int = ATTEMPTS
    ) -> Any:
        """Make an object; fields that the server does not know are refused."""
        return self.request(
            "POST",
            path,
            manifest,
            attempts=attempts,
            fieldValidation="Strict",
            fieldManager="shunter",
            dryRun="All" if dry_run else None,
        )

    def merge(self, path: str, change: Mapping[str, Any]) -> Any:
        """Change some fields of an object (a JSON merge patch)."""
        return self.request("PATCH", path, change, content_type="application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Delete an object with what it owns; does nothing if it does not exist."""
        try:
            self.request("DELETE", path, propagationPolicy="Background")
        except KubernetesError as error:
            if error.status != 404:
                raise

    def describe_version(self) -> str:
        """Return the cluster's address and version, for messages."""
        try:
            version = self.get("/version", attempts=1).get("gitVersion", "of an unknown version")
        except ShunterError:
            version = "of an unknown version"
        return f"{self.connection.server} (Kubernetes {version})"

    def groups(self) -> dict[str, list[str]]:
        """Return the served versions of each API group, the preferred one first."""
        if self._groups is None:
            answer = self.get("/apis")
            self._groups = {
                group["name"]: list(
                    dict.fromkeys(
                        [
                            str((group.get("preferredVersion") or {}).get("version") or ""),
                            *(each["version"] for each in group.get("versions") or []),
                        ]
                    )
                )
                for group in answer.get("groups") or []
            }
        return self._groups

    # ---- streams

    @contextmanager
    def stream(self, path: str, *, silence: float | None = None, **params: Any) -> Iterator[Any]:
        """Open a response that is read bit by bit, and yield it.

        Args:
            path: what to read.
            silence: seconds without a byte after which it counts as broken; None for any length.
            params: of the request.

        Raises:
            KubernetesError: it was refused, the server could not be reached, or the connection broke.
        """
        client = self.connection.client
        import httpx2
        from lightkube.core.exceptions import ConfigError as LightkubeError

        timeout = httpx2.Timeout(TIMEOUT, connect=10.0, read=silence)
        try:
            with client.stream("GET", path, params=_params(params), timeout=timeout) as response:
                if response.status_code >= 400:
                    raise self.refusal(response.status_code, response.read(), response.headers)
                yield response
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise self.translated(error) from None
        except LightkubeError as error:
            raise _lost_token(error) from None

    # ---- errors

    def translated(self, error: Exception) -> KubernetesError:
        """Return what a failed connection means, in words."""
        connection = self.connection
        said = str(error) or type(error).__name__
        hint = (
            "Is the cluster up, and reachable from here (VPN)? `kubectl cluster-info` asks the same server."
        )
        reason = _SILENCE if type(error).__name__ == "ConnectTimeout" else ""
        if "certificate" in said.lower():
            reason = _CERTIFICATE
            hint = "The kubeconfig may be outdated or for another cluster: fetch it again from where it came."
        what = "does not answer" if "imeout" in type(error).__name__ else "cannot be reached"
        return KubernetesError(
            f"the API server {connection.server} (context {connection.context}) {what}: {said}",
            hint=hint,
            reason=reason,
        )

    def refusal(self, status: int, content: bytes, headers: Mapping[str, str]) -> KubernetesError:
        """Return what an answer with an error means, in the server's own words."""
        try:
            answer = json.loads(content)
            message, reason = str(answer.get("message") or ""), str(answer.get("reason") or "")
            details = answer.get("details") or {}
        except (ValueError, AttributeError):
            message, reason, details = content[:300].decode("utf-8", "replace").strip(), "", {}
        wait = retry_after(headers.get("Retry-After")) or float(details.get("retryAfterSeconds") or 0)
        message = message or f"HTTP {status}"
        connection = self.connection
        if status == 401:
            return KubernetesAccessError(
                f"the API server {connection.server} refuses the credentials of the context "
                f"{connection.context} (have they expired?): {message}",
                hint="Log in again with the tool that made the kubeconfig; "
                "`kubectl auth whoami` asks the same server.",
                status=status,
                reason=reason,
            )
        hint = next((hint for text, hint in _HINTS if text.lower() in message.lower()), "")
        hint = _hint_of_field(message) or hint
        if status == 403 and not hint:
            hint = "docs/schedulers/kubernetes.md has the Role that is needed; `shunter doctor` checks it."
            return KubernetesAccessError(message, hint=hint, status=status, reason=reason)
        return KubernetesError(message, hint=hint, status=status, reason=reason, wait=wait)


def _hint_of_field(message: str) -> str:
    """Return what to do about a field that the server does not know; "" if that is not the message."""
    match = re.search(r'unknown field "([^"]+)"', message)
    if match is None:
        return ""
    from lightkube.models import batch_v1, core_v1

    models = (*vars(core_v1).values(), *vars(batch_v1).values())
    known = {name for model in models for name in getattr(model, "__struct_fields__", ())}
    name = match[1].rpartition(".")[2]
    similar = get_close_matches(name, known, n=1)
    if name not in known and similar:
        return f"No field of Kubernetes has this name. Did you mean {similar[0]}? Correct the overlay."
    return "Is it in its place in the overlay? If so, the cluster is older than this field: leave it out."


def _lost_token(error: Exception) -> AccessError:
    """Return the error for a token file that cannot be read. It is read again after a refused token."""
    return AccessError(
        f"the credentials of the cluster cannot be read: {error}",
        hint="Log in again with the tool that made the kubeconfig.",
    )


_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


def _pass_on(headers: Iterable[str]) -> None:
    """Show the API server's warnings, such as those of Pod Security and of deprecated fields.

    https://kubernetes.io/blog/2020/09/03/warnings/
    """
    for header in headers:
        for text in _WARNING.findall(header):
            said = re.sub(r"\\(.)", r"\1", text)
            warnings.warn(f"the API server warns: {said}", RuntimeWarning, stacklevel=5)


def _params(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}


def _may_repeat(error: KubernetesError) -> bool:
    return error.status in (0, 429, 500, 502, 503, 504) and error.reason != _CERTIFICATE


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    r"""Split a stream at ``\n`` only: texts in objects may contain other line ends of `str.splitlines`."""
    pending = b""
    for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        yield from lines
    if pending:
        yield pending


class Watch:
    """Follows a list of objects: all that there are, then every change, until it is stopped.

    Args:
        server: the API server.
        path: path of the list.
        params: labelSelector, ....
        stop: an event that ends it, at the latest when the server ends a watch.
        clock: the time.
        seconds: how long the server holds a watch open; `close` alone does not wake a thread that reads it.
    """

    def __init__(
        self,
        server: ApiServer,
        path: str,
        params: Mapping[str, Any],
        stop: threading.Event,
        clock: Clock | None = None,
        seconds: float = WATCH_SECONDS,
    ) -> None:
        self._server = server
        self._path = path
        self._params = dict(params)
        self._stop = stop
        self._clock = clock or Clock()
        self._seconds = seconds
        self._version = ""
        self._response: Any = None

    def close(self) -> None:
        """End it from another thread."""
        self._stop.set()
        response = self._response
        if response is not None:
            with suppress(Exception):  # it is being read in another thread, and may have ended
                response.close()

    def events(
        self, on_trouble: Callable[[ShunterError], object] = lambda error: None
    ) -> Iterator[tuple[str, Any]]:
        """Yield ``("LIST", objects)`` at the beginning and after each loss of place, then ``(TYPE, object)``.

        Errors of connections are reported and repeated; refusals are raised.

        Args:
            on_trouble: called with each error after which watching continues.
        """
        backoff = Backoff(FIRST_DELAY, 10.0, stop=self._stop, clock=self._clock)
        while not self._stop.is_set():
            try:
                if not self._version:
                    objects, self._version = self._server.items(self._path, **self._params)
                    yield "LIST", objects
                for event in self._watch():
                    backoff.reset()
                    yield event
            except KubernetesError as error:
                if error.status == 410:
                    self._version = ""
                    if not backoff.failures:
                        backoff.failures = 1
                        continue
                elif not _may_repeat(error):
                    raise
                if self._stop.is_set():
                    return
                on_trouble(error)
                backoff.pause(min(error.wait, 30.0))

    def _watch(self) -> Iterator[tuple[str, Any]]:
        began = time.monotonic()
        params = {
            **self._params,
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": max(int(self._seconds), 1),
        }
        with self._server.stream(self._path, silence=self._seconds + 30, **params) as response:
            self._response = response
            try:
                for line in _lines(response.iter_bytes()):
                    if self._stop.is_set():
                        return
                    try:
                        event = json.loads(line)
                    except ValueError:  # the connection was cut within a line
                        break
                    kind, item = event.get("type"), event.get("object") or {}
                    if kind == "ERROR":
                        raise self._server.refusal(
                            int(item.get("code") or 500), json.dumps(item).encode(), {}
                        )
                    self._version = (item.get("metadata") or {}).get("resourceVersion") or self._version
                    if kind != "BOOKMARK":
                        yield str(kind), item
            finally:
                self._response = None
        if time.monotonic() - began < 1:  # a server that ends watches at once is not asked in a tight loop
            self._clock.wait(self._stop, 0.5)

"""The API server: its requests, watches and errors. Objects are plain dicts: unknown fields do no harm.

Requests are repeated if the server cannot be reached or asks the client to wait. Created objects have unique
names, so a repeated request can at most find that its object already exists.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any

from shunter.backoff import Backoff, Clock, retry_after
from shunter.errors import AccessError, BackendError, ConfigError, ShunterError

TIMEOUT = 30.0
ATTEMPTS = 4
FIRST_DELAY, LONGEST_DELAY = 0.25, 4.0
#: Seconds after which a request is not repeated: a server that does not even refuse it will not answer.
PATIENCE = 10.0
#: Seconds after which the server ends a watch by itself; a silent one is given up a little later.
WATCH_SECONDS = 240
PAGE_SIZE = 500

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
_UNREACHABLE = (
    "Is the cluster up, and reachable from here (VPN)? `kubectl cluster-info` asks the same server."
)
_WRONG_CERTIFICATE = (
    "The kubeconfig may be outdated or for another cluster: fetch it again from where it came."
)


#: Asks for a list without the content of its objects.
#: https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class KubernetesError(BackendError):
    """The API server refused a request, or could not be reached.

    Args:
        message: the server's own words.
        hint: what to do.
        status: HTTP's status; 0 if there was no answer.
        wait: seconds after which the server wants to be asked again.
        is_passing: whether another attempt may succeed.
    """

    def __init__(
        self, message: str, *, hint: str = "", status: int = 0, wait: float = 0.0, is_passing: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.wait = wait
        self.is_passing = is_passing


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
        self.kubeconfig = kubeconfig
        self._clock = clock or Clock()
        self._context = context
        self._lock = threading.Lock()
        self._connection: Any = None
        #: Clients whose certificates have expired; other threads may still read from them.
        self._former: list[Any] = []
        self._groups: dict[str, list[str]] | None = None

    @property
    def connection(self) -> Any:
        """The client, made when it is first needed, and again before its certificate ends."""
        with self._lock:
            if self._connection is None or self._connection.is_outdated:
                try:
                    from shunter.schedulers.kubernetes_scheduler.kubeconfig import connect
                except ModuleNotFoundError as error:
                    raise ConfigError(
                        f"kubernetes needs the package {error.name!r}, which is not installed",
                        hint="Install it: pip install 'shunter[kubernetes]'",
                    ) from None
                self._former += [self._connection] if self._connection else []
                self._connection = connect(self._context, self.kubeconfig, TIMEOUT)
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
        accept: str = "application/json",
        **params: Any,
    ) -> Any:
        """Send a request, and return its answer.

        Raises:
            KubernetesError: it was refused, or the server could not be reached after several attempts.
        """
        content = None
        if body is not None:
            content = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        headers = {"Accept": accept, "Content-Type": content_type}
        backoff = Backoff(
            FIRST_DELAY, LONGEST_DELAY, attempts=attempts, limit=PATIENCE, clock=self._clock
        ).start()
        while True:
            try:
                with self._errors_in_words() as client:
                    response = client.request(
                        method, path, params=_given(params), content=content, headers=headers
                    )
                    return self._content(method, response)
            except KubernetesError as error:
                if not error.is_passing or not backoff.pause(error.wait):
                    raise

    def _content(self, method: str, response: Any) -> Any:
        if method != "GET":
            _pass_on(response.headers.get_list("Warning"))
        if response.status_code >= 400:
            raise self.refusal(response.status_code, response.content, response.headers)
        try:
            return response.json() if response.content else {}
        except ValueError:
            shown = response.content[:100].decode("utf-8", "replace")
            raise KubernetesError(
                f"{self.connection.server} does not answer like an API server: {shown!r}",
                hint="Does the kubeconfig name the right address? A proxy may be in between.",
            ) from None

    def get(self, path: str, **params: Any) -> Any:
        """Return an object, or whatever is at a path."""
        return self.request("GET", path, **params)

    def find(self, path: str) -> Any:
        """Return an object, or None."""
        try:
            return self.get(path)
        except KubernetesError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """Return all objects of a list, page by page.

        A list whose pages took too long (410 Gone) is read again in one piece.
        """
        items: list[dict[str, Any]] = []
        token = ""
        limit: int | None = PAGE_SIZE
        while True:
            try:
                page = self.get(path, **params, limit=limit, **({"continue": token} if token else {}))
            except KubernetesError as error:
                if error.status != 410 or not token:
                    raise
                items, token, limit = [], "", None
                continue
            items += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return items

    def metadata(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """Return all objects of a list without what is in them; see `items`."""
        return self.items(path, accept=METADATA, **params)

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

    def groups(self) -> dict[str, list[str]]:
        """Return the served versions of each API group, the preferred one first."""
        if self._groups is None:
            groups: dict[str, list[str]] = {}
            for group in self.get("/apis").get("groups") or []:
                preferred = (group.get("preferredVersion") or {}).get("version")
                versions = [each["version"] for each in group.get("versions") or []]
                groups[group["name"]] = sorted(versions, key=lambda version: version != preferred)
            self._groups = groups
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
        timeout = {"connect": 10.0, "read": silence, "write": TIMEOUT, "pool": TIMEOUT}
        options = {"params": _given(params), "extensions": {"timeout": timeout}}
        with self._errors_in_words() as client, client.stream("GET", path, **options) as response:
            if response.status_code >= 400:
                raise self.refusal(response.status_code, response.read(), response.headers)
            yield response

    # ---- errors

    @contextmanager
    def _errors_in_words(self) -> Iterator[Any]:
        """Yield the client; what goes wrong with it is raised as our own errors."""
        connection = self.connection
        import httpx2
        from lightkube.core.exceptions import ConfigError as LightkubeError

        try:
            yield connection.client
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
            message = str(error) or type(error).__name__
            hint = _UNREACHABLE
            is_refused = "certificate" in message.lower()
            if is_refused:
                hint = _WRONG_CERTIFICATE
            what = "does not answer" if isinstance(error, httpx2.TimeoutException) else "cannot be reached"
            raise KubernetesError(
                f"the API server {connection.server} (context {connection.context}) {what}: {message}",
                hint=hint,
                is_passing=not is_refused,
            ) from None
        except LightkubeError as error:  # the token's file is read again after a refused token
            raise AccessError(
                f"the credentials of the cluster cannot be read: {error}",
                hint="Log in again with the tool that made the kubeconfig.",
            ) from None

    def refusal(self, status: int, content: bytes, headers: Mapping[str, str]) -> KubernetesError:
        """Return what an answer with an error means, in the server's own words."""
        try:
            answer = json.loads(content)
            message, details = str(answer.get("message") or ""), answer.get("details") or {}
        except (ValueError, AttributeError):
            message, details = content[:300].decode("utf-8", "replace").strip(), {}
        message = message or f"HTTP {status}"
        if status == 401:
            return KubernetesAccessError(
                f"the API server {self.connection.server} refuses the credentials of the context "
                f"{self.connection.context} (have they expired?): {message}",
                hint="Log in again with the tool that made the kubeconfig; "
                "`kubectl auth whoami` asks the same server.",
                status=status,
            )
        hint = _hint_of_field(message) or next(
            (hint for text, hint in _HINTS if text.lower() in message.lower()), ""
        )
        if status == 403 and not hint:
            hint = "docs/schedulers/kubernetes.md has the Role that is needed; `shunter doctor` checks it."
            return KubernetesAccessError(message, hint=hint, status=status)
        wait = retry_after(headers.get("Retry-After")) or float(details.get("retryAfterSeconds") or 0)
        is_passing = status in (429, 500, 502, 503, 504)
        return KubernetesError(message, hint=hint, status=status, wait=wait, is_passing=is_passing)


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


_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


def _pass_on(headers: Iterable[str]) -> None:
    """Show the API server's warnings, such as those of Pod Security and of deprecated fields.

    https://kubernetes.io/blog/2020/09/03/warnings/
    """
    for header in headers:
        for text in _WARNING.findall(header):
            message = re.sub(r"\\(.)", r"\1", text)
            warnings.warn(f"the API server warns: {message}", RuntimeWarning, stacklevel=5)


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}


def break_off(response: Any) -> None:
    """End the read of a stream that is in progress in another thread; closing it would not wake that."""
    with suppress(Exception):  # it may have ended meanwhile
        response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class Watches:
    """Tells when the objects of lists change: a thread watches each list.

    A watch that names no version begins with all objects of its list, so nothing is missed between two of
    them, and none of them is too old for the server
    (https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-watch). What has changed is
    not looked at: the caller that waits asks for it. Where watching is not allowed, or the server cannot be
    reached, the lists count as changed at growing intervals of up to ten seconds.

    Args:
        server: the API server.
        paths: of the lists.
        selector: selects the objects of the lists by their labels.
    """

    def __init__(self, server: ApiServer, paths: Iterable[str], selector: str) -> None:
        self._server = server
        self._selector = selector
        self._stop = threading.Event()
        self._changed = threading.Event()
        self._responses: dict[str, Any] = {}
        self._threads = [
            threading.Thread(target=self._watch, args=(path,), name="watch", daemon=True) for path in paths
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until something has changed since the last call, or this time is over."""
        self._changed.wait(WATCH_SECONDS if seconds is None else seconds)
        self._changed.clear()

    def close(self) -> None:
        """End the watches."""
        self._stop.set()
        self._changed.set()
        for response in list(self._responses.values()):
            break_off(response)
        for thread in self._threads:
            thread.join(1)

    def _watch(self, path: str) -> None:
        params = {"labelSelector": self._selector, "watch": "true", "timeoutSeconds": WATCH_SECONDS}
        backoff = Backoff(0.5, 10.0, stop=self._stop)
        while not self._stop.is_set():
            # what is wrong is reported to the caller that asks for the objects
            with (
                suppress(ShunterError),
                self._server.stream(path, silence=WATCH_SECONDS + 30, **params) as response,
            ):
                self._responses[path] = response
                events = response.iter_bytes()
                while not self._stop.is_set() and next(events, b""):
                    self._changed.set()
                    backoff.reset()
            self._responses.pop(path, None)
            self._changed.set()
            backoff.pause()

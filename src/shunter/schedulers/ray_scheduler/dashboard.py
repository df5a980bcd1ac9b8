"""A client of a Ray cluster's dashboard, which serves the Jobs API: its address, tokens, requests, errors.

https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html for the Jobs API,
https://docs.ray.io/en/latest/ray-security/token-auth.html for tokens. Read in Ray 2.60: uploads of packages
and the logs that the state API serves.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from shunter.errors import AccessError, BackendError, ConfigError, UnreachableError
from shunter.paths import read_regular_file
from shunter.system.identity import home
from shunter.url_client import is_loopback_host

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
#: In the order in which Ray's own command reads them.
ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
HEADERS_VARIABLE = "RAY_JOB_HEADERS"
TOKEN_VARIABLE, TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_FILE = os.path.join(".ray", "auth_token")
#: Ports of a head that do not serve the Jobs API: its control store, and Ray Client.
OTHER_PORTS = {6379: "control store", 10001: "Ray Client"}
ADDRESS_EXAMPLE = "Give the dashboard's address: -cfg dashboard_address=http://HEAD:8265."
#: Seconds for which the dashboard may be silent: where it asks nobody, where it waits 30 s for the agent of a
#: node, and where it stores a package.
SILENCE, AGENT_SILENCE, UPLOAD_SILENCE = 15.0, 40.0, 300.0
#: What Ray's own 404 says: "Job NAME does not exist".
ABSENT = b"does not exist"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirection would send the token to somebody else."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@dataclass(frozen=True)
class Dashboard:
    """The dashboard of one cluster.

    Args:
        address: its URL.
        headers: headers of every request.
        tls: TLS context with the trusted certificates; None for the system's.
    """

    address: str
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    tls: ssl.SSLContext | None = field(default=None, compare=False)

    @classmethod
    def of(cls, cfg: Mapping[str, Any], address: str = "") -> Dashboard:
        """Return the dashboard that options and environment name.

        Args:
            cfg: ``dashboard_address``, ``headers`` and ``verify``; all may be missing.
            address: the address, if it is known already.

        Raises:
            ConfigError: what they name cannot be used.
        """
        headers = cfg.get("headers")
        if headers is None:
            headers = _headers_of_environment()
        address = address or address_of(cfg.get("dashboard_address"))
        return cls(address, headers, _tls_context(str(cfg.get("verify", "true"))))

    def job(self, app_id: str) -> dict[str, Any] | None:
        """Return Ray's record of a job; None if Ray does not know it."""
        record = self.ask("GET", job_path(app_id), silence=SILENCE)
        return record if isinstance(record, dict) else None

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return Ray's records of all jobs that were submitted, by submission id: one request."""
        records = self.ask("GET", "/api/jobs/", silence=SILENCE) or []
        return {record["submission_id"]: record for record in records if record.get("submission_id")}

    def ask(self, method: str, path: str, document: Any = None, silence: float = AGENT_SILENCE) -> Any:
        """Send a request, with JSON; returns the answer's JSON, None for what Ray says does not exist."""
        body = None if document is None else json.dumps(document).encode()
        headers = {"Content-Type": "application/json"}
        status, content = self.send(method, path, body, headers, silence=silence, ok=(200, 404))
        if status == 404:
            if ABSENT in content:
                return None
            raise self._refusal(path, status, content)  # another server answers, which knows nothing of jobs
        try:
            return json.loads(content)
        except ValueError:
            raise BackendError(
                f"{self.address}{path} answered with something other than JSON: {_words(content)}",
                hint=f"Something other than Ray's dashboard may be there. {ADDRESS_EXAMPLE}",
            ) from None

    def send(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        silence: float = AGENT_SILENCE,
        ok: tuple[int, ...] = (200,),
    ) -> tuple[int, bytes]:
        """Send a request; returns the status and the content.

        Raises:
            UnreachableError: there was no answer.
            AccessError: the token, or its absence, is refused.
            BackendError: any other status that is not among ``ok``.
        """
        handlers: list[Any] = [_NoRedirects(), urllib.request.HTTPSHandler(context=self.tls)]
        if is_loopback_host(urlsplit(self.address).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        everything = {**self.headers, **self._login(), **(headers or {})}
        request = urllib.request.Request(self.address + path, body, everything, method=method)
        try:
            try:
                answer = urllib.request.build_opener(*handlers).open(request, timeout=silence)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                status, content = answer.code, answer.read()
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise UnreachableError(
                f"Ray's dashboard at {self.address} cannot be reached: "
                f"{getattr(reason, 'strerror', None) or reason}",
                hint=f"Is the cluster's head running, and reachable from here? {ADDRESS_EXAMPLE}",
            ) from error
        if status in ok:
            return status, content
        raise self._refusal(f"{method} {path}", status, content)

    def _login(self) -> dict[str, str]:
        """Return the header with the token, unless the user's own headers have a login.

        Raises:
            ConfigError: the token's file cannot be read.
        """
        own = {name.lower() for name in self.headers}
        token = "" if {"authorization", "x-ray-authorization"} & own else find_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _refusal(self, attempt: str, status: int, content: bytes) -> BackendError:
        """Return the error for an answer that refuses something."""
        text = _words(content)
        if status in (401, 403):
            return AccessError(
                f"Ray at {self.address} refuses access ({status}): {text}",
                hint=f"Set {TOKEN_VARIABLE}, or {TOKEN_PATH_VARIABLE} to a file with the token, or put it "
                f"into ~/{TOKEN_FILE}. On the cluster `ray get-auth-token` prints it.",
            )
        if status == 404:
            return BackendError(
                f"{self.address} has no Jobs API: {attempt} is not found there ({text})",
                hint=f"The head needs ray[default]. {ADDRESS_EXAMPLE}",
            )
        if status in (502, 503, 504):
            return UnreachableError(f"Ray at {self.address} is not available ({status}): {text}")
        return BackendError(f"Ray at {self.address} did not carry out {attempt} ({status}): {text}")


def job_path(submission_id: str) -> str:
    """Return the path of a job in the Jobs API."""
    return f"/api/jobs/{quote(submission_id, safe='')}"


def address_of(given: str | None) -> str:
    """Return the dashboard's URL, of the option or the environment.

    Raises:
        ConfigError: it is the address of something else.
    """
    named = [("dashboard_address", given), *((name, os.environ.get(name)) for name in ADDRESS_VARIABLES)]
    where, text = next(((name, value) for name, value in named if value), ("", DEFAULT_ADDRESS))
    if text in ("auto", "local"):
        text = DEFAULT_ADDRESS
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts, port = urlsplit(url), urlsplit(url).port
    except ValueError:
        parts, port = urlsplit(""), None
    problem = ""
    if parts.scheme == "ray":
        problem = "is the address of Ray Client, which takes no jobs"
    elif parts.scheme not in ("http", "https") or not parts.hostname or any(char <= " " for char in url):
        problem = "is not an address"
    elif port in OTHER_PORTS:
        problem = f"is the port of the head's {OTHER_PORTS[port]}, which takes no jobs"
    if problem:
        raise ConfigError(f"{where}={text} {problem}", hint=ADDRESS_EXAMPLE)
    return f"{url}:8265" if port is None and parts.scheme == "http" and not parts.path else url


def find_token() -> str:
    """Return the token, from where Ray takes it; "" if there is none, or tokens are switched off.

    Raises:
        ConfigError: the file that the environment names cannot be read, or is empty.
    """
    if os.environ.get(MODE_VARIABLE, "").lower() == "disabled":
        return ""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token:
        return token
    named = os.environ.get(TOKEN_PATH_VARIABLE, "")
    path = os.path.expanduser(named) if named else os.path.join(home(os.environ), TOKEN_FILE)
    try:
        token = read_regular_file(path).decode("utf-8", "replace").strip()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not named:
            return ""
        raise ConfigError(f"cannot read Ray's token from {path}: {error.strerror or error}") from error
    if not token and named:
        raise ConfigError(f"{TOKEN_PATH_VARIABLE}={named}: the file is empty")
    if any(char < " " for char in token):
        raise ConfigError(f"Ray's token in {path} has more than one line")
    return token


def _headers_of_environment() -> dict[str, str]:
    try:
        headers = json.loads(os.environ.get(HEADERS_VARIABLE) or "{}")
    except ValueError:
        headers = None
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise ConfigError(
            f"{HEADERS_VARIABLE} is not a JSON object of strings", hint="""Example: {"X-Team": "research"}."""
        )
    return headers


def _tls_context(verify: str) -> ssl.SSLContext | None:
    """Return the TLS context with the trusted certificates; None for those of the system."""
    if verify.lower() in ("true", "1", "yes"):
        return None
    if verify.lower() in ("false", "0", "no"):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    path = os.path.expanduser(verify)
    try:
        if os.path.isdir(path):
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ConfigError(
            f"verify={verify}: cannot read certificates there: {error.strerror or error}",
            hint="Give true, false, or a file or directory with certificates of authorities.",
        ) from error


def _words(content: bytes) -> str:
    """Return an answer's message in one line; for a traceback the last line, which has the reason."""
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        return "no details"
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line if len(line) <= 500 else f"{line[:500]}..."

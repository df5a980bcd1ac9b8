"""A client of a Ray cluster's dashboard, which serves the Jobs API: its address, tokens, requests, errors.

https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html for the Jobs API,
https://docs.ray.io/en/latest/ray-security/token-auth.html for tokens. Read in Ray 2.60: uploads of packages
and the logs that the state API serves.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from shunter.errors import AccessError, BackendError, ConfigError
from shunter.paths import read_regular_file
from shunter.system.identity import home
from shunter.url_client import BadUrlError, Origin, Response, UrlClient

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
#: Seconds for which the dashboard may be silent: it waits 30 s for its agent, and longer to store a package.
SILENCE, UPLOAD_SILENCE = 40.0, 300.0
LONGEST_ANSWER = 2 << 30
#: What Ray's own 404 says: "Job NAME does not exist".
ABSENT = b"does not exist"


class DashboardUnreachableError(BackendError):
    """The dashboard does not answer, which says nothing of its jobs."""


class Dashboard:
    """The dashboard of one cluster. Safe for use by several threads.

    Args:
        address: its URL.
        headers: headers of every request.
        context: TLS context with the trusted certificates; None for the system's.
        environ: the environment: token and proxies.
    """

    def __init__(
        self,
        address: str,
        headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self.address = address.rstrip("/")
        self._headers = dict(headers or {})
        self._urls = UrlClient(self._environ, None if context is None else lambda origin: context)

    @classmethod
    def of(
        cls, cfg: Mapping[str, Any], address: str = "", environ: Mapping[str, str] | None = None
    ) -> Dashboard:
        """Return the dashboard that options and environment name.

        Args:
            cfg: ``dashboard_address``, ``headers`` and ``verify``; all may be missing.
            address: the address, if it is known already.
            environ: the environment.

        Raises:
            ConfigError: what they name cannot be used.
        """
        environ = os.environ if environ is None else environ
        address = address or address_of(cfg.get("dashboard_address"), environ)
        headers = cfg.get("headers")
        if headers is None:
            headers = _headers_in(environ)
        return cls(address, headers, _context(str(cfg.get("verify", "true"))), environ)

    def close(self) -> None:
        """Close the connections. May be called more than once."""
        self._urls.close()

    # ---- requests

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """Return an answer's JSON; None for what Ray says does not exist."""
        return self._json(self.send("GET", path, query=query, ok=(200, 404)), path)

    def post(self, path: str, document: Any = None) -> Any:
        """Send JSON; returns the answer's JSON, None for what does not exist."""
        body = None if document is None else json.dumps(document).encode()
        return self._json(self.send("POST", path, body=body, ok=(200, 404)), path)

    def delete(self, path: str) -> Any:
        """Delete something; returns the answer's JSON, None for what does not exist."""
        return self._json(self.send("DELETE", path, ok=(200, 404)), path)

    def _json(self, answered: tuple[int, bytes], path: str) -> Any:
        status, content = answered
        if status == 404:
            if ABSENT in content:
                return None
            raise self.refusal(path, status, content)  # another server answers, which knows nothing of jobs
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
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
        length: int | None = None,
        silence: float = SILENCE,
        ok: tuple[int, ...] = (200,),
    ) -> tuple[int, bytes]:
        """Send a request; returns the status and the content.

        Raises:
            DashboardUnreachableError: there was no answer.
            AccessError: the token, or its absence, is refused.
            BackendError: any other status that is not among ``ok``.
        """
        url = f"{self.address}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = self.headers()
        if isinstance(body, bytes):
            headers["Content-Type"] = "application/json"
        if length is not None:
            headers |= {"Content-Length": str(length), "Content-Type": "application/octet-stream"}
        try:
            with self._urls.send(method, url, headers, body, silence) as response:
                status, content = response.status, _content(response)
        except OSError as error:
            raise self.unreachable(error) from error
        if status in ok:
            return status, content
        raise self.refusal(f"{method} {path}", status, content)

    # ---- who we are

    def headers(self) -> dict[str, str]:
        """Return the headers of a request, with the token unless the user's own headers have a login.

        Raises:
            ConfigError: the token's file cannot be read.
        """
        own = {name.lower() for name in self._headers}
        token = "" if {"authorization", "x-ray-authorization"} & own else token_in(self._environ)
        return {**self._headers, **({"Authorization": f"Bearer {token}"} if token else {})}

    # ---- what goes wrong

    def unreachable(self, error: OSError) -> DashboardUnreachableError:
        """Return the error for a dashboard that does not answer."""
        return DashboardUnreachableError(
            f"Ray's dashboard at {self.address} cannot be reached: {error.strerror or error}",
            hint=f"Is the cluster's head running, and reachable from here? {ADDRESS_EXAMPLE}",
        )

    def refusal(self, attempt: str, status: int, content: bytes) -> BackendError:
        """Return the error for an answer that refuses something."""
        said = _words(content)
        if status in (401, 403):
            return AccessError(
                f"Ray at {self.address} refuses access ({status}): {said}",
                hint=f"Set {TOKEN_VARIABLE}, or {TOKEN_PATH_VARIABLE} to a file with the token, or put it "
                f"into ~/{TOKEN_FILE}. On the cluster `ray get-auth-token` prints it.",
            )
        if status == 404:
            return BackendError(
                f"{self.address} has no Jobs API: {attempt} is not found there ({said})",
                hint=f"The head needs ray[default]. {ADDRESS_EXAMPLE}",
            )
        if status in (502, 503, 504):
            return DashboardUnreachableError(f"Ray at {self.address} is not available ({status}): {said}")
        return BackendError(f"Ray at {self.address} did not carry out {attempt} ({status}): {said}")


def job_path(submission_id: str) -> str:
    """Return the path of a job in the Jobs API."""
    return f"/api/jobs/{quote(submission_id, safe='')}"


def address_of(given: str | None, environ: Mapping[str, str]) -> str:
    """Return the dashboard's URL, of the option or the environment.

    Raises:
        ConfigError: it is the address of something else.
    """
    named = [("dashboard_address", given), *((name, environ.get(name)) for name in ADDRESS_VARIABLES)]
    where, text = next(((name, value) for name, value in named if value), ("", DEFAULT_ADDRESS))
    if text in ("auto", "local"):
        text = DEFAULT_ADDRESS
    url = text if "://" in text else f"http://{text}"
    if url.startswith("ray://"):
        raise ConfigError(
            f"{where}={text} is the address of Ray Client, which takes no jobs", hint=ADDRESS_EXAMPLE
        )
    try:
        origin = Origin.of(url)
        port = urlsplit(url).port
    except BadUrlError:
        raise ConfigError(f"{where}={text} is not an address", hint=ADDRESS_EXAMPLE) from None
    if port in OTHER_PORTS:
        raise ConfigError(
            f"{where}={text} is the port of the head's {OTHER_PORTS[port]}, which takes no jobs",
            hint=ADDRESS_EXAMPLE,
        )
    if port is None and origin.scheme == "http" and not urlsplit(url).path.strip("/"):
        url = f"{url.rstrip('/')}:8265"
    return url.rstrip("/")


def token_in(environ: Mapping[str, str]) -> str:
    """Return the token, from where Ray takes it; "" if there is none, or tokens are switched off.

    Raises:
        ConfigError: the file that the environment names cannot be read, or is empty.
    """
    if environ.get(MODE_VARIABLE, "").lower() == "disabled":
        return ""
    token = environ.get(TOKEN_VARIABLE, "").strip()
    if token:
        return token
    named = environ.get(TOKEN_PATH_VARIABLE, "")
    path = os.path.expanduser(named) if named else os.path.join(home(environ), TOKEN_FILE)
    try:
        token = read_regular_file(path).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        if not named:
            return ""
        raise ConfigError(f"{TOKEN_PATH_VARIABLE}={named}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"cannot read Ray's token from {path}: {error.strerror or error}") from error
    if not token and named:
        raise ConfigError(f"{TOKEN_PATH_VARIABLE}={named}: the file is empty")
    if any(char < " " for char in token):
        raise ConfigError(f"Ray's token in {path} has more than one line")
    return token


def _headers_in(environ: Mapping[str, str]) -> dict[str, str]:
    text = environ.get(HEADERS_VARIABLE, "")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(
            f"{HEADERS_VARIABLE} is not a JSON object of strings", hint="""Example: {"X-Team": "research"}."""
        )
    return found


def _context(verify: str) -> ssl.SSLContext | None:
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
        is_directory = os.path.isdir(path)
        return ssl.create_default_context(
            cafile=None if is_directory else path, capath=path if is_directory else None
        )
    except OSError as error:
        raise ConfigError(
            f"verify={verify}: cannot read certificates there: {error.strerror or error}",
            hint="Give true, false, or a file or directory with certificates of authorities.",
        ) from error


def _content(response: Response) -> bytes:
    pieces, size = [], 0
    while piece := response.read1():
        pieces.append(piece)
        size += len(piece)
        if size > LONGEST_ANSWER:
            raise OSError(f"the answer has more than {LONGEST_ANSWER >> 30} GiB")
    return b"".join(pieces)


def _words(content: bytes) -> str:
    """Return an answer's message in one line; for a traceback the last line, which has the reason."""
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        return "no details"
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line if len(line) <= 500 else f"{line[:500]}..."

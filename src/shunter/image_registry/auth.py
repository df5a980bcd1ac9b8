"""Logging in to a registry: Basic, or tokens of a token server.

https://distribution.github.io/distribution/spec/auth/token/ and .../auth/oauth/
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from shunter.backoff import retry_after
from shunter.docker.credentials import Credentials, EcrHost, login_line
from shunter.image_registry.registry_errors import (
    TRANSIENT,
    Purpose,
    RegistryAuthError,
    RegistryError,
    Trouble,
    connection_trouble,
    read_document,
)
from shunter.url_client import UrlClient

#: A parameter, its value quoted or plain; or a scheme.
_PART = re.compile(r'([\w-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s,]*))|([\w-]+)')
CLIENT_ID = "shunter"


class Challenge(NamedTuple):
    """What a 401 asks for."""

    scheme: str
    parameters: dict[str, str]


def parse_challenges(header: str) -> list[Challenge]:
    """Read ``WWW-Authenticate``: ``Bearer realm="...",service="...", Basic realm="..."``.

    What is not of this form is skipped.
    """
    challenges: list[Challenge] = []
    for key, quoted, plain, scheme in _PART.findall(header):
        if scheme:
            challenges.append(Challenge(scheme.lower(), {}))
        elif challenges:
            challenges[-1].parameters[key.lower()] = re.sub(r"\\(.)", r"\1", quoted) or plain
    return challenges


class Authorizer:
    """Knows what to put into ``Authorization`` for one registry. Safe for use by several threads.

    Args:
        registry: name of the registry, for messages.
        urls: reaches the token server.
        lookup: returns the credentials, or None; called when the registry first asks for a login, and again
            when it no longer accepts what it accepted before.
        allow_http: whether a token server may be reached without TLS.
    """

    def __init__(
        self,
        registry: str,
        urls: UrlClient,
        lookup: Callable[[], Credentials | None],
        *,
        allow_http: bool = False,
    ) -> None:
        self._registry = registry
        self._urls = urls
        self._lookup = lookup
        self._allow_http = allow_http
        self._credentials: Credentials | None = None
        self._asked = False
        self._scheme = ""
        self._headers: dict[tuple[str, ...], str] = {}
        self._worked: set[str] = set()
        self._lock = threading.RLock()

    @property
    def credentials(self) -> Credentials | None:
        """The credentials that were found; None if there are none, or if they were not needed yet."""
        return self._credentials

    def header(self, scopes: tuple[str, ...]) -> str:
        """Return the value for a request with these scopes; "" while no login is known to be required."""
        with self._lock:
            return self._headers.get(() if self._scheme == "basic" else scopes, "")

    def accepted(self, header: str) -> None:
        """Remember that a value was accepted: if it is refused later, it has expired."""
        if header:
            with self._lock:
                self._worked.add(header)

    def renew(self, challenge_header: str, scopes: tuple[str, ...], used: str) -> bool:
        """Find a new value after a 401; False if no other could be better.

        Args:
            challenge_header: ``WWW-Authenticate`` of the answer.
            scopes: those of the request, ``repository:NAME:pull,push``.
            used: the value that was refused, "" if there was none.

        Raises:
            RegistryError, Trouble: the token server gives no token.
            CredentialsError: the credentials cannot be read.
        """
        with self._lock:
            if self.header(scopes) != used:
                return True  # another thread has a newer one
            if used and used not in self._worked:
                return False
            challenges = {challenge.scheme: challenge for challenge in parse_challenges(challenge_header)}
            if not self._asked or used:
                self._credentials, self._asked = self._lookup(), True
            self._worked.discard(used)
            if "bearer" in challenges:
                self._scheme = "bearer"
                self._headers[scopes] = f"Bearer {self._token(challenges['bearer'], scopes)}"
                return True
            if "basic" in challenges and self._credentials is not None:
                self._scheme = "basic"
                self._headers[()] = _basic(self._credentials)
                return self._headers[()] != used
            return False

    def _token(self, challenge: Challenge, scopes: tuple[str, ...]) -> str:
        credentials = self._credentials
        if credentials is not None and credentials.registry_token:
            return credentials.registry_token
        realm = challenge.parameters.get("realm", "")
        parts = urlsplit(realm)
        if parts.scheme not in (("http", "https") if self._allow_http else ("https",)) or not parts.hostname:
            raise RegistryAuthError(
                f"cannot log in to {self._registry}: its token server {realm!r} does not use https",
                status=401,
            )
        names = {scope.rpartition(":")[0] for scope in scopes}
        asked = challenge.parameters.get("scope", "").split()
        wanted = [*scopes, *(scope for scope in asked if scope.rpartition(":")[0] not in names)]
        return self._ask(realm, parts.netloc, challenge.parameters.get("service", ""), wanted)

    def _ask(self, realm: str, server: str, service: str, scopes: list[str]) -> str:
        """Ask a token server for a token."""
        credentials = self._credentials
        headers = {"Accept": "application/json"}
        method, url, body = "GET", realm, None
        if credentials is not None and credentials.identity_token:
            form = {
                "grant_type": "refresh_token",
                "service": service,
                "client_id": CLIENT_ID,
                "scope": " ".join(scopes),
                "refresh_token": credentials.identity_token,
            }
            method, body = "POST", urlencode(form).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        else:
            query = [("service", service)] if service else []
            query += [("scope", scope) for scope in scopes]
            if credentials is not None:
                query.append(("account", credentials.username))
                headers["Authorization"] = _basic(credentials)
            url += f"{'&' if urlsplit(realm).query else '?'}{urlencode(query)}"
        try:
            answer = self._urls.send(method, url, headers, body)
            content = read_document(answer)
        except OSError as error:
            trouble = connection_trouble(error, Purpose("pull", server, ""), insecure=self._allow_http)
            if isinstance(trouble, Trouble):
                trouble = Trouble(f"the token server {server}: {trouble.problem}")
            raise trouble from error
        if answer.status in (400, 401, 403):
            raise RegistryAuthError(self.refused(), hint=self.login_hint(), status=answer.status)
        if answer.status in TRANSIENT:
            wait = retry_after(answer.headers.get("retry-after"))
            raise Trouble(f"the token server {server} answered {answer.status}", retry_after=wait)
        try:
            document = json.loads(content)
            token = document.get("token") or document.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if answer.status != 200 or not isinstance(token, str) or not token:
            raise RegistryError(
                f"cannot log in to {self._registry}: the token server {server} answered {answer.status}"
                " without a token"
            )
        return token

    def who(self) -> str:
        """Say whom the registry knows us as."""
        credentials = self._credentials
        if credentials is None:
            return "those who are not logged in"
        who = f"the user {credentials.username!r}" if credentials.username else "the owner of the token"
        return who + (f" (from {credentials.origin})" if credentials.origin else "")

    def refused(self) -> str:
        """Say what a 401 means, with whose credentials."""
        credentials = self._credentials
        if credentials is None:
            return f"{self._registry} requires a login, and no credentials are configured for it"
        who = f"the password of the user {credentials.username!r}" if credentials.username else "the token"
        where = f" (from {credentials.origin})" if credentials.origin else ""
        return f"{self._registry} does not accept {who}{where}"

    def login_hint(self) -> str:
        """Say how to log in."""
        ecr = EcrHost.parse(self._registry)
        if ecr is not None:
            return f"Log in: {login_line(ecr)}"
        name = "" if self._registry == "docker.io" else f" {self._registry}"
        return f"Log in: docker login{name}"


def _basic(credentials: Credentials) -> str:
    login = f"{credentials.username}:{credentials.password}"
    return f"Basic {base64.b64encode(login.encode()).decode()}"

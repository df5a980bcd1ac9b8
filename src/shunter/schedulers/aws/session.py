"""Sessions of the AWS SDK: credentials, region and clients, made once; calls, with their errors translated.

The SDK is imported when the first client is made. Credentials, region and endpoint come from the SDK's usual
chain (variables, ``~/.aws``, containers, instance profiles; ``AWS_ENDPOINT_URL``), unless region or profile
are given. Clients are thread-safe and shared.

botocore does not compare an answer with its ``Content-Length``, and turns text that is not complete JSON into
an empty answer: a truncated list would read as "no jobs", and a proxy's page as a job without a state.
So clients made here repeat requests with such answers, and raise if that does not help.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shunter import __version__
from shunter.errors import ShunterError
from shunter.schedulers.aws.aws_errors import AwsError, missing_sdk, translate

CONNECT_SECONDS = 5
READ_SECONDS = 60
#: Attempts of a request that may be repeated; the SDK backs off in between.
ATTEMPTS = 6
CONNECTIONS = 16
#: How often a page may be repeated.
MOST_REPEATS = 5


class AwsSession:
    """Clients of one region and profile.

    Args:
        region: the region; None for the one of the environment or the profile.
        profile: the profile of ``~/.aws/config``; None for the one of the environment.
        clients: clients to use instead of making them, by service.
    """

    def __init__(
        self, region: str | None = None, profile: str | None = None, clients: Mapping[str, Any] | None = None
    ) -> None:
        self._region = region
        self.profile = profile
        self._clients: dict[tuple[str, bool], Any] = {}
        for service, client in (clients or {}).items():
            self._clients[service, True] = self._clients[service, False] = client
        self._session: Any = None
        self._lock = threading.RLock()

    @property
    def region(self) -> str:
        """The region in use; "" if unknown."""
        if self._region is None:
            given = self._clients.get(("batch", True))
            meta = getattr(given, "meta", None)
            self._region = meta.region_name if meta else self._sdk().get_config_variable("region")
        return self._region or ""

    def client(self, service: str, *, repeats: bool = True) -> Any:
        """Return a client, made when first needed.

        Args:
            service: name of the service, such as ``batch``.
            repeats: whether failed requests are repeated; false for those that must not run twice.
        """
        with self._lock:
            key = (service, repeats)
            if key not in self._clients:
                self._clients[key] = self._make(service, repeats)
            return self._clients[key]

    def call(self, service: str, operation: str, *, repeats: bool = True, **params: Any) -> dict[str, Any]:
        """Carry out an operation, such as ``batch``, ``SubmitJob``.

        Raises:
            AwsError: AWS refused it or could not be reached.
            ConfigError: the region, the profile or the SDK is missing.
        """
        try:
            client = self.client(service, repeats=repeats)
            from botocore import xform_name
            from botocore.exceptions import ResponseStreamingError

            method = getattr(client, xform_name(operation))
            for _ in range(ATTEMPTS - 1 if repeats else 0):
                try:
                    return self._answer(method, params)
                except ResponseStreamingError:  # the SDK repeats no request that was answered in part
                    continue
            return self._answer(method, params)
        except ShunterError:
            raise
        except ImportError as error:
            raise missing_sdk(error) from None
        except Exception as error:
            raise self.translated(error, service, operation) from error

    @staticmethod
    def _answer(method: Any, params: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = method(**params)
        return answer

    def translated(self, error: Exception, service: str, operation: str) -> ShunterError:
        """Return our error for one that a client of this session raised."""
        return translate(error, f"{service}:{operation}", self.identity, self.profile)

    def renew(self) -> None:
        """Read the credentials again: calls from now on are made by new clients."""
        with self._lock:
            self._session = None
            self._clients.clear()

    def pages(self, service: str, operation: str, items: str, **params: Any) -> Iterator[list[Any]]:
        """Return the items of all pages of an operation, a page at a time.

        An empty page is not the last, and a page may come twice: callers remove duplicates.

        Raises:
            AwsError: AWS refused it, or keeps repeating a page.
        """
        seen: set[str] = set()
        token, repeated = None, 0
        token_name = "NextToken" if service == "sagemaker" else "nextToken"
        while True:
            page = self.call(service, operation, **params, **({token_name: token} if token else {}))
            yield page.get(items) or []
            token = page.get(token_name)
            if not token:
                return
            repeated = repeated + 1 if token in seen else 0
            if repeated == MOST_REPEATS:
                raise AwsError(
                    f"{service}:{operation} does not end: AWS keeps repeating the same page",
                    hint="Try again. If it persists, AWS or a proxy in between is faulty.",
                )
            seen.add(token)

    def identity(self) -> str:
        """Return the caller's ARN; "" if unknown."""
        try:
            answer = self.client("sts", repeats=False).get_caller_identity()
            return str(answer.get("Arn", ""))
        except Exception:  # only used to complete another message
            return ""

    def close(self) -> None:
        """Close the connections. May be called more than once."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            if hasattr(client, "close"):
                client.close()

    def _sdk(self) -> Any:
        with self._lock:
            if self._session is None:
                try:
                    import botocore.session
                except ImportError as error:
                    raise missing_sdk(error) from None
                self._session = botocore.session.Session(profile=self.profile)
            return self._session

    def _make(self, service: str, repeats: bool) -> Any:
        session = self._sdk()
        from botocore.config import Config

        mode = "adaptive" if service == "logs" else "standard"  # which also keeps a rate while throttled
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"mode": mode, "total_max_attempts": ATTEMPTS if repeats else 1},
            max_pool_connections=CONNECTIONS,
            user_agent_extra=f"shunter/{__version__}",
            # some operations add a host prefix, which a configured endpoint does not have
            inject_host_prefix=not any(name.startswith("AWS_ENDPOINT_URL") for name in os.environ),
        )
        client = session.create_client(service, region_name=self._region, config=config)
        if service != "s3":  # answers to HEAD have a length and no body
            check_answers(client)
        return client


class SessionPool:
    """The sessions of a scheduler, one for each region and profile that its jobs have.

    Args:
        clients: clients to use instead of making them, by service.
        configured: returns the options configured for this directory: the default region and profile.
    """

    def __init__(self, clients: Mapping[str, Any], configured: Callable[[], Mapping[str, Any]]) -> None:
        self._clients = dict(clients)
        self._configured = configured
        self._defaults: Mapping[str, Any] | None = None
        self._sessions: dict[tuple[str, str], AwsSession] = {}

    def get(self, region: str | None, profile: str | None) -> AwsSession:
        """Return the session of a region and profile."""
        if self._defaults is None and not (region and profile):
            self._defaults = self._configured()
        defaults = self._defaults or {}
        key = (region or defaults.get("region") or "", profile or defaults.get("profile") or "")
        if key not in self._sessions:
            self._sessions[key] = AwsSession(key[0] or None, key[1] or None, self._clients)
        return self._sessions[key]

    def close(self) -> None:
        """Close the connections; clients that were passed in stay open. May be called more than once."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            if not self._clients:
                session.close()


# ---- incomplete answers

#: botocore repeats requests that were answered with this code.
_REPEATED = b'{"__type": "RequestTimeout", "message": "the end of the answer was lost"}'


def check_answers(client: Any) -> None:
    """Make a client of botocore repeat requests with incomplete answers, and raise if that does not help.

    Answers that are not from AWS are recognised for services that answer in JSON.
    """
    client.meta.events.register("before-parse", _have_repeated)
    client.meta.events.register("after-call", _refuse)


def _have_repeated(response_dict: dict[str, Any], operation_model: Any, **_: Any) -> None:
    body = response_dict["body"]
    if isinstance(body, bytes) and (
        _is_cut(response_dict["headers"], body)
        or (response_dict["status_code"] < 300 and _is_foreign(operation_model, body))
    ):
        response_dict["status_code"] = 500
        response_dict["body"] = _REPEATED


def _refuse(http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
    """Raise what `_have_repeated` has made an error of: botocore goes by the status that was received."""
    if http_response.status_code < 300 and "Error" in parsed:
        from botocore.parsers import ResponseParserError

        raise ResponseParserError(f"not an answer to {model.name}: {http_response.content[:40]!r}")


def _is_cut(headers: Any, body: bytes) -> bool:
    length = headers.get("content-length", "")
    return length.isdecimal() and len(body) < int(length)


def _is_foreign(operation: Any, body: bytes) -> bool:
    """Tell whether a body cannot be the service's answer, without parsing it."""
    if operation.service_model.resolved_protocol not in ("json", "rest-json"):
        return False
    text = body.strip()
    if not text:
        shape = operation.output_shape
        return shape is not None and bool(shape.required_members)
    return not (text.startswith(b"{") and text.endswith(b"}"))

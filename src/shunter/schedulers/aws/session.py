"""Sessions of the AWS SDK: credentials, region and clients, made once; calls, with their errors translated.

The SDK is imported when the first client is made. Credentials, region and endpoint come from the SDK's usual
chain (variables, ``~/.aws``, containers, instance profiles; ``AWS_ENDPOINT_URL``), unless region or profile
are given. Clients are thread-safe and shared.

botocore does not compare an answer with its ``Content-Length``, and makes an empty answer of text that is not
complete JSON: a truncated list would read as "no jobs", and a proxy's page as a job without a state. So
requests with such answers are repeated, and raise if that does not help.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from shunter import __version__
from shunter.errors import ConfigError, ShunterError
from shunter.schedulers.aws.aws_errors import AwsError, missing_sdk, translate

CONNECT_SECONDS = 5
READ_SECONDS = 60
#: Attempts of a request that may be repeated; the SDK backs off in between.
ATTEMPTS = 6
CONNECTIONS = 16
#: How often a page may be repeated.
MOST_REPEATS = 5
#: What a service calls the token of a page in requests and in answers, where that is not ``nextToken``.
_TOKENS = {
    "iam": ("Marker", "Marker"),
    "s3": ("ContinuationToken", "NextContinuationToken"),
    "sagemaker": ("NextToken", "NextToken"),
}


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
            from botocore.parsers import ResponseParserError

            method, attempts = getattr(client, xform_name(operation)), ATTEMPTS if repeats else 1
            while True:
                attempts -= 1
                try:
                    answer: dict[str, Any] = method(**params)
                except ResponseParserError:  # see `refuse_foreign`; the SDK does not repeat such requests
                    if not attempts:
                        raise
                else:
                    return answer
        except ImportError as error:
            raise missing_sdk(error) from None
        except Exception as error:
            raise self.translated(error, service, operation) from error

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
        given, next_one = _TOKENS.get(service, ("nextToken", "nextToken"))
        while True:
            page = self.call(service, operation, **params, **({given: token} if token else {}))
            yield page.get(items) or []
            token = page.get(next_one)
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

    def credentials_end(self) -> tuple[bool, datetime | None]:
        """Return whether the credentials are temporary, and when they end; None if that is not known.

        Raises:
            ConfigError: there are none.
        """
        credentials = self._sdk().get_credentials()
        if credentials is None:
            raise ConfigError("there are no credentials for AWS", hint="`aws configure` makes them.")
        token = credentials.get_frozen_credentials().token
        return bool(token), getattr(credentials, "_expiry_time", None)

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
            # by itself the SDK signs URLs of some regions by the old version, which new buckets refuse
            signature_version="s3v4" if service == "s3" else None,
        )
        client = session.create_client(service, region_name=self._region, config=config)
        client.meta.events.register("after-call", refuse_foreign)
        return client


def refuse_foreign(http_response: Any, model: Any, **_: Any) -> None:
    """Raise if the answer to a request is cut off, or cannot be the service's."""
    if http_response.status_code >= 300 or model.has_streaming_output or model.http.get("method") == "HEAD":
        return
    content, length = http_response.content, http_response.headers.get("content-length", "")
    text = content.strip()
    is_wrong = length.isdecimal() and len(content) < int(length)
    if model.service_model.resolved_protocol in ("json", "rest-json"):
        may_be_empty = model.output_shape is None or not model.output_shape.required_members
        is_json = text.startswith(b"{") and text.endswith(b"}")
        is_wrong = is_wrong or not (is_json if text else may_be_empty)
    if is_wrong:
        from botocore.parsers import ResponseParserError

        raise ResponseParserError(f"not an answer to {model.name}: {content[:40]!r}")

"""Requests through a `docker.DockerClient` that the caller made. That package is never imported here."""

from __future__ import annotations

from trainyard.docker.errors import EngineUnavailableError
from trainyard.docker.transport import BUFFER, ConnectionLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


class AdoptedTransport:
    """Carries requests over a Docker client's session.

    Args:
        client: a `docker.DockerClient`, or its ``api``: a `requests.Session` with a ``base_url``.
    """

    def __init__(self, client: Any) -> None:
        self._api = getattr(client, "api", client)
        self.endpoint = self._api.base_url
        self.is_local = not self.endpoint.startswith(("http://", "https://", "ssh://"))

    def environ(self) -> dict[str, str]:
        """Return what names the daemon, as far as the client tells."""
        path = getattr(getattr(self._api, "_custom_adapter", None), "socket_path", None)
        if path:
            return {"DOCKER_HOST": f"unix://{path}"}
        return {"DOCKER_HOST": self.endpoint} if self.endpoint.startswith("http://") else {}

    def open(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        data: Any,
        timeout: float | None,
        unframed: bool,
    ) -> AdoptedResponse:
        """Send a request and read the head of the answer."""
        import requests

        try:
            response = self._api.request(
                method,
                f"{self._api.base_url}{target}",
                headers=dict(headers),
                data=data,
                timeout=timeout,
                stream=True,
            )
        except requests.exceptions.Timeout as error:
            raise TimeoutError(str(error)) from error
        except requests.exceptions.RequestException as error:
            raise EngineUnavailableError(
                f"cannot reach a Docker daemon at {self.endpoint}: {error}",
                hint="Is the daemon running? Does the Docker client that was handed over still work?",
            ) from error
        return AdoptedResponse(response)

    def close(self) -> None:
        """Leave the client open: it is its owner's."""


class AdoptedResponse:
    """An answer to such a request."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._parts: Iterator[bytes] = response.raw.stream(BUFFER, decode_content=False)
        self._pending = b""

    def read1(self, limit: int = BUFFER) -> bytes:
        """Return some of the body, b"" at its end."""
        import urllib3

        while not self._pending:
            try:
                part = next(self._parts, None)
            except urllib3.exceptions.ReadTimeoutError as error:
                raise TimeoutError(str(error)) from error
            except urllib3.exceptions.HTTPError as error:
                raise ConnectionLost(str(error)) from error
            if part is None:
                return b""
            self._pending = part
        data, self._pending = self._pending[:limit], self._pending[limit:]
        return data

    def interrupt(self) -> None:
        """End a read that another thread waits in. Closing would wait for that thread."""
        import socket

        reader = getattr(getattr(getattr(self._response.raw, "_fp", None), "fp", None), "raw", None)
        connection = getattr(reader, "_sock", None)
        try:
            if connection is not None:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Give the connection back."""
        self._response.close()

"""Serving the pages on this machine's loopback address until Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from shunter.errors import BackendError, UsageError
from shunter.runner import get_runner
from shunter.ui.browser_guard import BrowserGuard, Secrets
from shunter.ui.connection_limits import MOST_HEADERS, LimitedConnection, most_connections
from shunter.ui.runner_pool import RunnerPool
from shunter.ui.web_app import WebApp

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HOST = "127.0.0.1"
#: Connections that wait in the kernel until they are accepted.
QUEUE = 1024
#: Seconds that answers may take when the server has been asked to end.
GRACE = 2


class PageServer:
    """Serves the pages; it listens as soon as it is created.

    Args:
        port: the port to listen on; 0 for any free port.

    Raises:
        UsageError: another process listens there.
    """

    def __init__(self, port: int) -> None:
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self._kept = Secrets()
        self._stop = threading.Event()

    @property
    def url(self) -> str:
        """What a browser has to open; it holds a secret."""
        return f"http://{HOST}:{self.port}/?token={self._kept.token}"

    def serve(self, when_ready: Callable[[], None]) -> None:
        """Answer requests until Ctrl-C or SIGTERM."""
        with get_runner() as runner:
            schedulers = runner.scheduler_backends()
        asyncio.run(self._serve(schedulers, when_ready))

    async def _serve(self, schedulers: list[str], when_ready: Callable[[], None]) -> None:
        pool = RunnerPool()
        pages = WebApp(schedulers, pool)
        app = BrowserGuard(pages.asgi, self._kept, self.port)
        server = _Server(_configured(app), pool, when_ready)
        try:
            await server.serve(sockets=[self._socket])
        finally:
            pages.close()
            pool.close()


def _configured(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=LimitedConnection,
        backlog=max(1, most_connections() // 4),  # asyncio accepts this many before it reads from the first
        access_log=False,  # it would contain the token
        log_level="error",  # what strangers send does not belong in the terminal
        lifespan="off",
        server_header=False,
        ws="none",
        h11_max_incomplete_event_size=MOST_HEADERS,
        timeout_graceful_shutdown=GRACE,
    )


class _Server(uvicorn.Server):
    """Tells when it answers, and ends the streams when it is asked to end."""

    def __init__(self, config: uvicorn.Config, pool: RunnerPool, when_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._pool = pool
        self._when_ready = when_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():  # asyncio has made the queue as short as its backlog
            listening.listen(QUEUE)
        self._when_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pool.end_streams()
        await super().shutdown(sockets)


def _listening(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(QUEUE)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} is in use",
                hint="Perhaps by another `shunter ui`. Choose another port, or --port 0 for any free one.",
            ) from None
        raise BackendError(f"cannot listen on {HOST}:{port}: {error.strerror}") from None
    return listening

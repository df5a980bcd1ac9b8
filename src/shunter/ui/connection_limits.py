"""Connections to the page's server: any user of this machine can open them, and must not lock its owner out.

uvicorn accepts any number of connections and waits for the first request of each without limit, until there
are no file descriptors left. Here a connection is a guest's until the guard has let its request in, and again
after the answer. A guest has some seconds to be let in, and the oldest guest is dropped when there are too
many connections; what the owner's browser is being sent goes on.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn import Config
    from uvicorn.server import ServerState

MOST = 256
#: Seconds that a guest has.
DEADLINE = 10.0
MOST_HEADERS = 64 << 10


def most_connections() -> int:
    """Return how many connections there may be: most file descriptors are left for logs and databases."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if limit == resource.RLIM_INFINITY else max(1, min(MOST, limit // 4))


class LimitedConnection(H11Protocol):
    """A connection with a deadline, one of a limited number.

    The guard calls ``scope["state"]["let_in"]`` for a request that it lets in.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        state = {**app_state, "let_in": self.let_in, "break_off": self.break_off}
        super().__init__(config, server_state, state, _loop)
        self._deadline: asyncio.TimerHandle | None = None

    def let_in(self) -> None:
        """Keep this connection until its present request has been answered."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline, and make room."""
        super().connection_made(transport)
        self._wait_for_request()
        if len(self.connections) > most_connections():
            guests = [
                (one._deadline.when(), one)
                for one in self.connections
                if isinstance(one, LimitedConnection) and one._deadline is not None
            ]
            min(guests, key=lambda guest: guest[0])[1].drop()  # there is one, this

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self.let_in()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request of a browser that was let in."""
        if self._deadline is None:
            self._wait_for_request()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP. Within an answer there is no place for a refusal: drop the connection."""
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(
                f"This is not HTTP, or has headers of more than {MOST_HEADERS >> 10} KiB. If this browser has"
                " many cookies of 127.0.0.1 or localhost, remove them.\n"
            )
            return
        self.break_off()

    def break_off(self) -> None:
        """End an answer that cannot be completed: the browser sees that a part is missing."""
        self.cycle.disconnected = True
        self.drop()

    def drop(self) -> None:
        """Close it at once, whatever still has to be sent."""
        self.let_in()
        self.connections.discard(self)
        self.transport.abort()

    def _wait_for_request(self) -> None:
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(DEADLINE, self.drop)

"""A TCP proxy that can be cut: in the middle of what goes through it, and for a while or for good."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit


class Proxy:
    """Forwards connections to a server.

    Args:
        url: the server's.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._budget: int | None = None
        self.is_cut = False
        #: How many bytes of answers have gone through.
        self.answered = 0
        self.cut = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def cut_after(self, count: int) -> None:
        """Let this many bytes of requests through, then break every connection until `restore`."""
        with self._lock:
            self._budget = count

    def restore(self) -> None:
        with self._lock:
            self._budget, self.is_cut = None, False

    def close(self) -> None:
        self._break()
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()  # before its file number may be given to another socket
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self.is_cut:
                client.close()
                continue
            upstream = socket.create_connection(self._target)
            with self._lock:
                self._open |= {client, upstream}
            threading.Thread(target=self._pump, args=(client, upstream, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(upstream, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        try:
            while data := source.recv(65536):
                if is_request and self._is_spent(len(data)):
                    target.sendall(data[: len(data) // 2])
                    self._break()
                    return
                if not is_request:
                    with self._lock:
                        self.answered += len(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                with self._lock:
                    self._open.discard(end)
                try:
                    end.shutdown(socket.SHUT_RDWR)  # wakes up the other direction, which would keep it open
                except OSError:
                    pass
                end.close()

    def _is_spent(self, count: int) -> bool:
        with self._lock:
            if self._budget is None:
                return False
            self._budget -= count
            self.is_cut = self.is_cut or self._budget < 0
            return self._budget < 0

    def _break(self) -> None:
        with self._lock:
            self.is_cut = True
            ends, self._open = list(self._open), set()
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.cut.set()

"""Several files as one stream (``torchx.schedulers.streams``)."""

from __future__ import annotations

import io
import os
import threading
from typing import Any, BinaryIO, TextIO

#: Seconds between two looks at the files.
INTERVAL = 0.1


class Tee:
    """Copies growing files to a single stream, line by line, until `close`.

    Args:
        out: where to, a stream of text or of bytes.
        sources: paths of the files, which need not exist yet.
    """

    def __init__(self, out: TextIO | BinaryIO, *sources: str) -> None:
        self._out: Any = out
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._copy, args=(path,), daemon=True) for path in sources]
        for thread in self._threads:
            thread.start()

    def write(self, s: str) -> None:
        """Write a text."""
        with self._lock:
            self._out.write(s if isinstance(self._out, io.TextIOBase) else s.encode())
            self._out.flush()

    def close(self) -> None:
        """Copy what is left, and stop."""
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def _copy(self, path: str) -> None:
        while not os.path.exists(path):
            if self._closed.wait(INTERVAL):
                return
        with open(path, encoding="utf-8", errors="replace") as file:
            while True:
                is_last = self._closed.is_set()
                for line in file:
                    self.write(line)
                if is_last:
                    return
                self._closed.wait(INTERVAL)

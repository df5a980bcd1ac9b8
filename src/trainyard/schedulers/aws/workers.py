"""A few threads that read ahead. Unlike those of an executor they never keep the program from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Workers:
    """Threads that carry out what is submitted, in order."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = 0

    def start(self, count: int) -> None:
        """Start so many threads."""
        self._count = count
        for i in range(count):
            threading.Thread(target=self._work, name=f"log-reader-{i}", daemon=True).start()

    def submit(self, function: Callable[..., T], *args: object) -> Future[T]:
        """Have a function called; its result or its error will be in the future."""
        future: Future[T] = Future()

        def task() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

        self._tasks.put(task)
        return future

    def close(self) -> None:
        """Let the threads end when they have done what was submitted."""
        for _ in range(self._count):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


def ahead(workers: Workers, items: Iterator[T]) -> Iterator[T]:
    """Return an iterator over the items. The first is made at once, and each while the one before is used."""
    end = object()
    return _ahead(workers, items, workers.submit(next, items, end), end)


def _ahead(workers: Workers, items: Iterator[T], upcoming: Future[T | object], end: object) -> Iterator[T]:
    while (item := upcoming.result()) is not end:
        upcoming = workers.submit(next, items, end)
        yield item  # type: ignore[misc]

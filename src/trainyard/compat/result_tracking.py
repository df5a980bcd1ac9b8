"""TorchX's older tracking of results (``torchx.runtime.tracking``): one file of JSON for each key."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

KeyType = int | str
ResultType = int | float | str


class ResultTracker(ABC):
    """Keeps results of trials, by key."""

    def __getitem__(self, key: KeyType) -> dict[str, ResultType]:
        return self.get(key)

    def __setitem__(self, key: KeyType, value: dict[str, ResultType]) -> None:
        self.put(key, **value)

    @abstractmethod
    def get(self, key: KeyType) -> dict[str, ResultType]:
        """Return the results of a key; {} without any."""

    @abstractmethod
    def put(self, key: KeyType, **results: ResultType) -> None:
        """Keep the results of a key."""


class FsspecResultTracker(ResultTracker):
    """Keeps results below a path of any file system that fsspec knows; plain paths need no fsspec.

    Args:
        tracker_base: the path.
    """

    def __init__(self, tracker_base: str) -> None:
        self._base = tracker_base.rstrip("/")

    def get(self, key: KeyType) -> dict[str, ResultType]:
        """Return the results of a key; {} without any."""
        try:
            with self._open(key, "r") as file:
                found: dict[str, ResultType] = json.load(file)
        except FileNotFoundError:
            return {}
        return found

    def put(self, key: KeyType, **results: ResultType) -> None:
        """Keep the results of a key."""
        with self._open(key, "w") as file:
            json.dump(results, file)

    def _open(self, key: KeyType, mode: str) -> Any:
        path = f"{self._base}/{key}"
        if "://" in path and not path.startswith("file://"):
            import fsspec

            return fsspec.open(path, mode, auto_mkdir=True)
        import os

        plain = path.removeprefix("file://")
        if mode == "w":
            os.makedirs(os.path.dirname(plain), exist_ok=True)
        return open(plain, mode, encoding="utf-8")

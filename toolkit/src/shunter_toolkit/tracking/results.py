"""Results of trials by key: one JSON file each, as ``torchx.runtime.tracking`` has them."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from typing import Any

from ..apps.urls import exists, open_to_read, open_to_write


class ResultTracker(ABC):
    """Keeps the results of trials, such as those of a hyperparameter search."""

    @abstractmethod
    def put(self, key: int | str, **results: float | str) -> None:
        """Keep the results of a trial, in place of earlier ones."""

    @abstractmethod
    def get(self, key: int | str) -> dict[str, Any]:
        """Return the results of a trial; empty if there are none."""

    def __setitem__(self, key: int | str, results: dict[str, Any]) -> None:
        self.put(key, **results)

    def __getitem__(self, key: int | str) -> dict[str, Any]:
        return self.get(key)


class FsspecResultTracker(ResultTracker):
    """Keeps results in files ``<tracker_base>/<key>``.

    Args:
        tracker_base: a directory, or a URL that fsspec knows.
    """

    def __init__(self, tracker_base: str) -> None:
        self._base = tracker_base

    def put(self, key: int | str, **results: float | str) -> None:
        """Write the file of a trial."""
        with open_to_write(self._path(key)) as file:
            file.write(json.dumps(results, indent=2).encode())

    def get(self, key: int | str) -> dict[str, Any]:
        """Read the file of a trial; empty if there is none."""
        if not exists(self._path(key)):
            return {}
        with open_to_read(self._path(key)) as file:
            found: dict[str, Any] = json.loads(file.read())
        return found

    def _path(self, key: int | str) -> str:
        return os.path.join(self._base, str(key))

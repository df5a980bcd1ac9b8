"""The last values of a job's metrics, read in the background while the job is watched."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence

from shunter.errors import ShunterError
from shunter.metrics.reader import MetricReader
from shunter.metrics.series import Series
from shunter.metrics.usage import PREFIX
from shunter.runner import get_runner
from shunter.terminal import clean

#: Seconds between two readings. After a slow one the pause is `_SHARE` times as long as the reading took.
_PERIOD = 1.0
_SHARE = 4
#: How many metrics of a role are shown, unless the job was given expressions for more.
_MOST_SHOWN = 2


class LastValues:
    """Reads a job's metrics in a thread, so that a long log does not delay the watching.

    Attributes:
        texts: by role, such as ``step 120, loss 0.31``; only roles that have reported values.
    """

    def __init__(self, handle: str) -> None:
        self.texts: dict[str, str] = {}
        self._handle = handle
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="last-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the reading."""
        self._closed.set()
        self._thread.join(_PERIOD)

    def _read(self) -> None:
        try:
            # a separate runner: the other one's connections belong to the main thread
            with (
                get_runner() as runner,
                MetricReader(runner, self._handle, discovers=True, follow=True) as reader,
            ):
                while not (self._closed.is_set() or reader.is_over):
                    began = time.monotonic()
                    if reader.update():
                        self.texts = last_values(reader.by_name(), reader.definitions)
                    self._closed.wait(max(_PERIOD, _SHARE * (time.monotonic() - began)))
        except (ShunterError, NotImplementedError, OSError):
            pass  # the states go on without metrics


def last_values(metrics: Mapping[str, Sequence[Series]], declared: Collection[str]) -> dict[str, str]:
    """Return the last values of each role's first replica as text: of the declared metrics, or else a few."""
    names = [name for name in metrics if not name.startswith(PREFIX)]
    names = [name for name in names if name in declared] or names[:_MOST_SHOWN]
    by_role: dict[str, dict[str, Series]] = {}
    for name in names:
        for series in metrics[name]:  # in the order of replicas and ranks
            if len(series):
                by_role.setdefault(series.role, {}).setdefault(name, series)
    return {role: _text(list(first.values())) for role, first in by_role.items()}


def _text(metrics: Sequence[Series]) -> str:
    values = ", ".join(f"{clean(series.name)} {series.last:.4g}" for series in metrics)
    steps = [series.last_step for series in metrics if not series.counts_values]
    return f"step {max(steps):g}, {values}" if steps else values

"""The last values of a job's metrics, read in the background while the job is watched."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shunter.errors import ShunterError

if TYPE_CHECKING:
    from shunter.metrics.reader import MetricReader
from shunter.metrics.series import Series
from shunter.runner import get_runner
from shunter.terminal import clean

#: Seconds between two readings. After a slow one the pause is `_SHARE` times as long as the reading took.
_PERIOD = 1.0
_SHARE = 4
#: How many metrics of a role are shown, unless the job was given expressions for more.
_SHOWN = 2
#: Names of metrics recorded by the executor, not by the script, begin with this.
_OF_SYSTEM = "system/"


class LastMetrics:
    """Reads in a thread, from a separate runner: a long log never delays the watching."""

    def __init__(self, handle: str) -> None:
        self._handle = handle
        self._texts: dict[str, str] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="last-metrics", daemon=True)
        self._thread.start()

    def of(self, role: str) -> str:
        """Return a role's last values, as ``step 120, loss 0.31``; "" as long as there are none."""
        return self._texts.get(role, "")

    def close(self) -> None:
        """End the reading."""
        self._closed.set()
        self._thread.join(_PERIOD)

    def _read(self) -> None:
        from shunter.metrics.reader import MetricReader  # only if there is something to show

        try:
            with get_runner() as runner, MetricReader(runner, self._handle, follow=True) as reader:
                while not (self._closed.is_set() or reader.is_over):
                    began = time.monotonic()
                    if reader.update():
                        self._texts = _texts(reader)
                    self._closed.wait(max(_PERIOD, _SHARE * (time.monotonic() - began)))
        except (ShunterError, NotImplementedError, OSError):
            pass  # the states go on without metrics


def _texts(reader: MetricReader) -> dict[str, str]:
    """Return the text of each role that reports metrics."""
    found: Mapping[str, Sequence[Series]] = reader.by_name()
    names = [name for name in found if not name.startswith(_OF_SYSTEM)]
    wanted = [name for name in names if name in reader.definitions] or names[:_SHOWN]
    by_role: dict[str, list[Series]] = {}
    for name in wanted:
        first: dict[str, Series] = {}
        for series in sorted(found[name], key=lambda each: (each.replica, each.rank)):
            if len(series):
                first.setdefault(series.role, series)
        for role, series in first.items():
            by_role.setdefault(role, []).append(series)
    return {role: _text(several) for role, several in by_role.items()}


def _text(several: Sequence[Series]) -> str:
    values = ", ".join(f"{clean(series.name)} {series.values[-1]:.4g}" for series in several)
    steps = [series.steps[-1] for series in several if not series.counts_values]
    return f"step {max(steps):g}, {values}" if steps else values

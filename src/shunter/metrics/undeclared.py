"""Metrics that a job printed but nobody declared: those asked for by name, or what looks like one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from shunter.metric_search import MetricSearch, pairs_in
from shunter.metrics.series import MetricTable, Series


class UndeclaredMetrics:
    """Values in the text of a log, used where a job has no other metric of that name.

    Args:
        asked: names of metrics that are asked for.
        discovers: whether to look for others too.
    """

    def __init__(self, asked: Sequence[str], *, discovers: bool) -> None:
        self.discovers = discovers
        self._search = MetricSearch((name, "") for name in asked)
        self._found: MetricSearch | None = None
        self._asked = MetricTable(asked)
        self._seen = MetricTable()
        self._separated: set[str] = set()
        self._decimal: set[str] = set()

    def narrow(self) -> None:
        """Look only for the metrics that have been found so far: that is faster."""
        self._found = MetricSearch((name, "") for name in self.by_name(()))

    @property
    def names(self) -> list[str]:
        """The names that are looked for, if nothing else is."""
        searches = (self._search, self._found)
        return [name for search in searches if search is not None for name in search.names or ()]

    def values(self, line: str) -> Iterator[tuple[MetricTable, str, float]]:
        """Yield what a line has, and the table that it belongs to."""
        for name, value in self._search.values(line):
            yield self._asked, name, value
        if not self.discovers:
            return
        if self._found is not None:
            for name, value in self._found.values(line):
                yield self._seen, name, value
            return
        for name, value, is_separated, is_whole in pairs_in(line):
            if is_separated:
                self._separated.add(name)
            if not is_whole:
                self._decimal.add(name)
            yield self._seen, name, value

    def by_name(self, known: Collection[str]) -> dict[str, list[Series]]:
        """Return the series of metrics that are not known otherwise.

        What was looked for without a name is given only if the job has no metrics at all, and then with care:
        what was printed once is given only if nothing was printed repeatedly, and whole numbers only if they
        vary.
        """
        found = {name: several for name, several in self._asked.by_name().items() if name not in known}
        if not self.discovers or known:
            return found
        seen = self._seen.by_name()
        repeated = {name: several for name, several in seen.items() if self._is_repeated(name, several)}
        once = {
            name: each for name, each in seen.items() if name in self._decimal and name in self._separated
        }
        return {**(repeated or once), **found}

    def _is_repeated(self, name: str, several: Sequence[Series]) -> bool:
        if not any(series.count > 1 for series in several):
            return False
        if name in self._separated and name in self._decimal:
            return True
        return any(series.least != series.greatest for series in several)

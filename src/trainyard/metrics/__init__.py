"""Metrics of jobs, without an SDK in the job: read from what it writes anyway, compared, drawn, forwarded.

Not here: what samples processes on this machine (``schedulers/exec``), the search by regular expressions
(`trainyard.metric_search`), and what jobs record with trackers (``toolkit``, `trainyard.tracker`).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.metrics.reader import MetricReader as MetricReader
    from trainyard.metrics.reader import read as read
    from trainyard.metrics.series import Series as Series
    from trainyard.metrics.series import decimate as decimate

_PLACES = {"MetricReader": "reader", "read": "reader", "Series": "series", "decimate": "series"}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(__import__(f"trainyard.metrics.{_PLACES[name]}", fromlist=[name]), name)

"""Metrics of jobs, without an SDK in the job: read from what it writes anyway, compared, drawn, forwarded.

Not here: what samples jobs of this machine (``schedulers/supervisor``), the search by regular expressions
(`shunter.metric_search`), and what jobs record with trackers (``toolkit``, `shunter.tracker`).
"""

from shunter.metrics.reader import MetricReader as MetricReader
from shunter.metrics.reader import read as read
from shunter.metrics.series import Series as Series
from shunter.metrics.series import decimate as decimate

"""Schedulers, which run jobs: the interface `base.Scheduler`, what all share, and a folder for each backend.

The history, configuration and everything else that does not depend on a backend is in `shunter.runner`.
"""

from __future__ import annotations

from shunter.schedulers.base import (
    DescribeAppResponse,
    ListAppResponse,
    LogBlock,
    LogQuery,
    Scheduler,
    Stream,
    filter_regex,
)
from shunter.schedulers.registry import (
    DEFAULT_SCHEDULER_MODULES,
    SchedulerFactory,
    get_default_scheduler_name,
    get_scheduler_factories,
    get_scheduler_factory,
)

__all__ = [
    "DEFAULT_SCHEDULER_MODULES",
    "DescribeAppResponse",
    "ListAppResponse",
    "LogBlock",
    "LogQuery",
    "Scheduler",
    "SchedulerFactory",
    "Stream",
    "filter_regex",
    "get_default_scheduler_name",
    "get_scheduler_factories",
    "get_scheduler_factory",
]

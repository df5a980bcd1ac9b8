"""Schedulers: what runs jobs. All of them stand behind `trainyard.schedulers.base.Scheduler`."""

from __future__ import annotations

from trainyard.schedulers.base import (
    DescribeAppResponse,
    ListAppResponse,
    LogBlock,
    LogQuery,
    Scheduler,
    Stream,
    filter_regex,
)
from trainyard.schedulers.registry import (
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

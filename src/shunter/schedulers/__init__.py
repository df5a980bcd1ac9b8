"""Schedulers, which run jobs: the interface `api.Scheduler`, what all share, and a folder for each backend.

The history, configuration and everything else that does not depend on a backend is in `shunter.runner`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shunter.schedulers.api import (
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


def __getattr__(name: str) -> object:
    """Import what is asked for: the processes behind local jobs import this package, and need none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    registry = import_module("shunter.schedulers.registry")
    return getattr(registry if hasattr(registry, name) else import_module("shunter.schedulers.api"), name)


def __dir__() -> list[str]:
    return __all__

"""shunter: write a training script once, run it on any scheduler.

The names of this package are the public Python API; ``docs/python.md`` describes their use. Each is imported
on first use, so that a command or a supervisor that needs none of them does not load them all.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shunter._toolkit.current import Current, DelayedSubmission, current
    from shunter.errors import ResultError, ShunterError
    from shunter.functions.executor import Executor
    from shunter.functions.futures import JobFuture, future, futures
    from shunter.functions.submitted_job import Job, JobFailedError, job
    from shunter.runner.api import Runner, get_runner
    from shunter.specs.app import AppDef, Role
    from shunter.specs.resources import Resource
    from shunter.specs.status import AppState, AppStatus

__all__ = [
    "AppDef",
    "AppState",
    "AppStatus",
    "Current",
    "DelayedSubmission",
    "Executor",
    "Job",
    "JobFailedError",
    "JobFuture",
    "Resource",
    "ResultError",
    "Role",
    "Runner",
    "ShunterError",
    "current",
    "future",
    "futures",
    "get_runner",
    "job",
]

#: The modules of the names of `__all__`, below this package.
_MODULES = {
    "_toolkit.current": ("Current", "DelayedSubmission", "current"),
    "errors": ("ResultError", "ShunterError"),
    "functions.executor": ("Executor",),
    "functions.futures": ("JobFuture", "future", "futures"),
    "functions.submitted_job": ("Job", "JobFailedError", "job"),
    "runner.api": ("Runner", "get_runner"),
    "specs.app": ("AppDef", "Role"),
    "specs.resources": ("Resource",),
    "specs.status": ("AppState", "AppStatus"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The runner: turns a component, configuration and a scheduler into a job, and keeps the history of jobs.

The backends are in `schedulers`, the command line in `cli`.
"""

from __future__ import annotations

from shunter.runner import api
from shunter.runner.api import Runner, get_runner

__all__ = ["Runner", "get_runner"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(api, name)

"""The runner: turns a component, configuration and a scheduler into a job, and keeps the history of jobs.

The backends are in `schedulers`, the command line in `cli`.
"""

from __future__ import annotations

from shunter.runner.api import Runner, get_runner

__all__ = ["Runner", "get_runner"]

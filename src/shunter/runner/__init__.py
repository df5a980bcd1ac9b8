"""The runner: turns a component, configuration and a scheduler into a job, and keeps the history of jobs.

The backends are in `schedulers`, the command line in `cli`.
"""

from __future__ import annotations

from shunter.runner.api import Runner, get_runner
from shunter.specs.submission import Submission

__all__ = ["Runner", "Submission", "get_runner"]

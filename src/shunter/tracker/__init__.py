"""Experiment tracking under TorchX's names: `app_run_from_env` in jobs, trackers for reading the records.

The modules re-export those of the toolkit, which are what jobs without shunter use.
"""

from __future__ import annotations

from shunter._toolkit.tracking import runs

AppRun = runs.AppRun
app_run_from_env = runs.app_run_from_env

__all__ = ["AppRun", "app_run_from_env"]

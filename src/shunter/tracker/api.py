"""The run of a job, the interface of trackers, and how they are found by name."""

from __future__ import annotations

from shunter._toolkit.tracking import runs

ENV_TORCHX_JOB_ID = runs.ENV_TORCHX_JOB_ID
ENV_TORCHX_PARENT_RUN_ID = runs.ENV_TORCHX_PARENT_RUN_ID
ENV_TORCHX_TRACKERS = runs.ENV_TORCHX_TRACKERS
AppRun = runs.AppRun
AppRunTrackableSource = runs.AppRunTrackableSource
Lineage = runs.Lineage
TrackerArtifact = runs.TrackerArtifact
TrackerBase = runs.TrackerBase
TrackerSource = runs.TrackerSource
app_run_from_env = runs.app_run_from_env
build_trackers = runs.build_trackers
tracker_config_env_var_name = runs.tracker_config_env_var_name
trackers_from_environ = runs.trackers_from_environ

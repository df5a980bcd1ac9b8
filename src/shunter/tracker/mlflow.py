"""The tracker that keeps runs in MLflow, under TorchX's names. MLflow is imported when a tracker is made."""

from __future__ import annotations

from shunter._toolkit.tracking import mlflow_tracker

TAG_ARTIFACT_MD_PREFIX = mlflow_tracker.TAG_ARTIFACT_MD_PREFIX
MLflowTracker = mlflow_tracker.MLflowTracker
create_tracker = mlflow_tracker.create_tracker

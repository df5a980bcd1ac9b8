"""Trackers by where they keep their records: files. MLflow is in `trainyard.tracker.mlflow`."""

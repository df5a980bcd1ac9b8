"""Trackers by where they keep what they are told: files. MLflow is in `trainyard.tracker.mlflow`."""

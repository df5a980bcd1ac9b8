"""Trackers by where they keep their records: files. MLflow is in `shunter.tracker.mlflow`."""

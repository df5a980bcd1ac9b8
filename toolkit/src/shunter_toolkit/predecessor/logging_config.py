"""The logger of frameworks' own code."""

from __future__ import annotations

import logging

_FORMAT = "%(asctime)s %(name)-12s %(levelname)-8s %(message)s"


def get_logger() -> logging.Logger:
    """The logger ``sagemaker-training-toolkit``."""
    return logging.getLogger("sagemaker-training-toolkit")


def configure_logger(level: int | str, log_format: str = _FORMAT) -> None:
    """Log to stderr from ``level`` on; AWS's client logs only warnings unless the level is below INFO."""
    logging.basicConfig(format=log_format, level=level)
    logging.getLogger().setLevel(level)
    if logging.getLogger().getEffectiveLevel() >= logging.INFO:
        for name in ("boto3", "s3transfer", "botocore"):
            logging.getLogger(name).setLevel(logging.WARNING)

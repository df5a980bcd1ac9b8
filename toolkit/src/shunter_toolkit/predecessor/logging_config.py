"""The logger of frameworks' own code."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ..masking import Masker

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


def log_script_invocation(
    cmd: Sequence[str], env_vars: Mapping[str, str], logger: logging.Logger | None = None
) -> None:
    """Log a command and its variables, secrets masked."""
    masker = Masker(dict(env_vars))
    lines = [f"{name}={masker.variable(name, value)}" for name, value in sorted(env_vars.items())]
    text = "\n".join(["Invoking user script", *lines, masker.command([str(word) for word in cmd])])
    (logger or get_logger()).info(text)

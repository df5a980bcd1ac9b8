"""Reads the files that the platform wrote under ``input/config``; errors say exactly what is wrong."""

from __future__ import annotations

import json
import os
from typing import Any

from .errors import ConfigError

# Used by the toolkit, not shown to the script. Other names with the prefix go to SM_FRAMEWORK_PARAMS.
RESERVED_PREFIX = "sagemaker_"
CORE_PARAMETERS = frozenset(
    {
        "sagemaker_program",
        "sagemaker_submit_directory",
        "sagemaker_enable_cloudwatch_metrics",
        "sagemaker_region",
        "sagemaker_container_log_level",
        "sagemaker_job_name",
        "sagemaker_s3_output",
        "default_user_module_name",
        "_tuning_objective_metric",
    }
)


def read_object(path: str, purpose: str) -> dict[str, Any]:
    """Read a JSON object from a file.

    Args:
        path: the file.
        purpose: what it holds, for the message: "the hyperparameters".

    Raises:
        ConfigError: no such file (exit code 2), not readable, not JSON, or not an object.
    """
    where = f"Cannot read {purpose} from {path}"
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{where}: there is no such file. The platform writes it before the container starts; "
            "elsewhere, mount it there, set SAGEMAKER_BASE_DIR, or pass a job document in SHUNTER_JOB.",
            missing=True,
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {error}. It must be a readable UTF-8 file.") from None
    return parse_object(text, where)


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parse a JSON object; ``where`` begins the message of an error.

    Raises:
        ConfigError: with the line and column that are wrong.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: it is not valid JSON ({error}). Write one JSON object.") from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ConfigError(f'{where}: it holds a {kind}, not an object. Write {{"name": "value", ...}}.')
    return value


def decode_hyperparameters(raw: dict[str, Any]) -> dict[str, Any]:
    """Decode each value once as JSON; text that is not JSON is unchanged.

    ``{"epochs": "10", "opt": "adam", "zip": "01234"}`` -> ``{"epochs": 10, "opt": "adam", "zip": "01234"}``.
    """
    return {name: decode_value(value) for name, value in raw.items()}


def decode_value(value: Any) -> Any:
    """Decode one hyperparameter; values that are not text are taken as decoded already."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def split_hyperparameters(decoded: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Split into (the user's, the core ones, the framework's)."""
    user: dict[str, Any] = {}
    core: dict[str, Any] = {}
    framework: dict[str, Any] = {}
    for name, value in decoded.items():
        if name in CORE_PARAMETERS:
            core[name] = value
        elif name.startswith(RESERVED_PREFIX):
            framework[name] = value
        else:
            user[name] = value
    return user, core, framework


def is_true(value: Any) -> bool:
    """Read a switch: ``True``, a number that is not 0, or text such as ``true``, ``1``, ``yes``."""
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "yes", "on")
    return bool(value)


def env_number(name: str, default: float, unit: str = "seconds") -> float:
    """Read a number from a variable of the environment.

    Raises:
        ConfigError: the variable holds something else.
    """
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"Cannot use {name}={text!r}: it must be a number of {unit}, such as {default:g}."
        ) from None

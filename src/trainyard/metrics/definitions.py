"""The regular expressions for a job's metrics, from all the options that can name them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.runner.records import JobRecord

#: A metric with this name is the step of the others.
STEP = "step"


def definitions_of(record: JobRecord | None) -> dict[str, str]:
    """Return a job's expressions: of ``--metric``, of a training script, of ``metric_definitions``."""
    if record is None:
        return {}
    from trainyard.specs.training import specification

    found: dict[str, str] = {}
    for given in record.cfg.get("metric_definitions") or ():
        found.update(_pairs(given))
    for role in (record.app or {}).get("roles") or ():
        for given in specification(role.get("metadata") or {}).get("metrics") or ():
            found.update(_pairs(given))
    found.update(record.metrics or {})
    return found


def _pairs(given: Any) -> dict[str, str]:
    """Return the names and expressions of ``{"Name", "Regex"}`` or ``{name: regex}``."""
    if not isinstance(given, dict):
        return {}
    lower = {str(key).lower(): value for key, value in given.items()}
    if lower.keys() == {"name", "regex"}:
        return {str(lower["name"]): str(lower["regex"])}
    return {str(key): str(value) for key, value in given.items()}

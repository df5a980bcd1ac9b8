"""What an exported file holds of a job, so that `rerun` can start it again; reading it without trusting it.

The file has the job's definition and options, without secrets, and the fingerprint of its code. The code
itself is not taken from the file: it comes from this machine's code store, or from a directory that the user
names.
"""

from __future__ import annotations

import json
import re
from types import NoneType
from typing import Any

from shunter.errors import ConfigError
from shunter.paths import read_regular_file
from shunter.redaction import restore
from shunter.runner.records import JobRecord
from shunter.specs.app import AppDef
from shunter.specs.serialize import from_json
from shunter.specs.training import CALL_KEY

FORMAT = 1
LARGEST = 64 << 20
#: What of a record is exported, with its types; nothing else is read.
_FIELDS: dict[str, tuple[type, ...]] = {
    "scheduler": (str,),
    "name": (str,),
    "component": (str, NoneType),
    "component_args": (list, dict, NoneType),
    "cfg": (dict,),
    "app": (dict,),
    "fingerprint": (str, NoneType),
    "metrics": (dict, NoneType),
}
_DATA = re.compile(r'<script type="application/json" id="shunter-job">([^<]*)</script>')
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def data_of(record: JobRecord) -> str:
    """Return a job as JSON that can stand in HTML: without ``<``."""
    values = {name: getattr(record, name) for name in _FIELDS}
    return json.dumps({"format": FORMAT, **values}).replace("<", "\\u003c")


def read_exported(path: str) -> JobRecord:
    """Return the job of an exported file.

    Raises:
        ConfigError: the file cannot be read, is no such file, or holds what an exported job cannot have.
    """
    try:
        text = read_regular_file(path, LARGEST).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    found = _DATA.search(text)
    if found is None:
        raise ConfigError(f"{path} holds no job", hint="`shunter export JOB` writes such files.")
    try:
        data: Any = json.loads(found.group(1))
        if data["format"] != FORMAT:
            raise ConfigError(f"{path}: the format {data['format']!r} is not known; it needs another shunter")
        if not all(isinstance(data[name], kinds) for name, kinds in _FIELDS.items()):
            raise ValueError("a value has the wrong type")
        record = JobRecord(**{name: data[name] for name in _FIELDS})
    except ConfigError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ConfigError(f"{path}: the job in it is damaged", hint="Export it again.") from None
    _check(path, record)
    return record


def _check(path: str, record: JobRecord) -> None:
    """Refuse what is no definition, and roles that would reach for files which the user has not named."""
    if record.fingerprint and not _FINGERPRINT.fullmatch(record.fingerprint):
        raise ConfigError(f"{path}: the fingerprint in it is none", hint="Export it again.")
    try:
        app = from_json(AppDef, record.app)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint="Export it again.") from None
    for role in app.roles:
        if CALL_KEY in role.metadata:
            raise ConfigError(
                f"{path}: role {role.name!r} calls a function, and an exported file has no call",
                hint="Submit the function again.",
            )
        if role.workspace:
            raise ConfigError(
                f"{path}: role {role.name!r} names the workspace {role.workspace}",
                hint="Name the code yourself: --workspace DIR, and remove it from the file's definition.",
            )


def secrets_needed(record: JobRecord) -> list[str]:
    """Return the names of the variables that a repetition would take from the environment."""
    missing: set[str] = set()
    restore([record.app, record.cfg], {}, missing)
    return sorted(name for name in missing if name)

"""One row of the history."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter.specs.status import AppState
from shunter.specs.sweep_points import points_of
from shunter.specs.training import CALL_KEY

INTENT = "intent"
SUBMITTED = "submitted"
REFUSED = "refused"
DELETED = "deleted"

#: Reason of a job whose submitter died before the scheduler had answered.
INTERRUPTED = "the submission was interrupted"

#: The component of jobs that `shunter dev` starts.
DEV_COMPONENT = "utils.dev"
#: States in which a job is not asked for again: it has ended, or its scheduler has forgotten it.
SETTLED_STATES = ("SUCCEEDED", "FAILED", "CANCELLED", "UNKNOWN")

JSON_COLUMNS = frozenset({"component_args", "cfg", "app", "argv", "images", "metrics"})


@dataclass(slots=True)
class JobRecord:
    """What the history knows of one submission. Each field is a column of the table, see `history`.

    Times are seconds since the epoch; None where they are not known. Nothing here holds secrets.
    """

    seq: int = 0  # number of the row; later submissions have higher ones
    key: str = field(default_factory=lambda: os.urandom(16).hex())  # unique name of the submission
    phase: str = INTENT  # intent (about to be sent, or interrupted there), submitted, refused or deleted
    handle: str = ""  # "" while the scheduler has given the job no id
    scheduler: str = ""
    session: str = ""
    app_id: str = ""  # id of the job on its scheduler; "" while it has none
    name: str = ""  # of the job's definition
    component: str | None = None  # what made the definition; None if it was made in Python
    component_args: list[str] | dict[str, Any] | None = None
    cfg: dict[str, Any] = field(default_factory=dict)  # the resolved scheduler options
    app: dict[str, Any] = field(
        default_factory=dict
    )  # the definition, before the runner's variables were added
    workspace: str | None = None
    cwd: str = ""  # directory that it was submitted from
    argv: list[str] = field(default_factory=list)  # command line of the process that submitted it
    git_commit: str | None = None  # of the repository around ``cwd``
    git_dirty: bool | None = None  # whether the repository had changes that were not committed
    user: str = ""  # who submitted it
    host: str = ""  # where it was submitted
    created_at: float = field(default_factory=time.time)  # time of the intent
    submitted_at: float | None = None  # when the scheduler accepted it
    ended_at: float | None = None  # if its scheduler tells
    state: AppState = AppState.UNSUBMITTED  # the last one that was seen
    msg: str = ""  # the reason of that state
    submitter: str = ""  # ``pid:start:boot`` of the process that submitted it
    rerun_of: str | None = None  # handle of the job that this one repeats
    parent_run_id: str | None = None
    fingerprint: str | None = None  # identifies the exact code that went with it
    images: dict[str, str] | None = None  # role -> the exact image that holds the code
    native_id: str | None = None  # the backend's own id, where the app id is a different one
    metrics: dict[str, str] | None = None  # names and regular expressions of the metrics in its log
    sweep: str | None = None  # id of the sweep that it is a point of
    point: int | None = None  # its number there
    started_at: float | None = None  # when its first replica began to run, if its scheduler tells
    race: str | None = None  # id of the race that it takes part in
    python: str | None = None  # version and path of its Python, where that is one of this machine
    installed: str | None = None  # what was installed where it was submitted, see `installed_packages`

    @classmethod
    def from_row(cls, values: Sequence[Any]) -> JobRecord:
        """Return the record of a row of the table, whose columns are `COLUMNS`."""
        row = dict(zip(COLUMNS, values, strict=True))
        for name in JSON_COLUMNS:
            row[name] = None if row[name] is None else json.loads(row[name])
        if row["git_dirty"] is not None:
            row["git_dirty"] = bool(row["git_dirty"])
        # a state that a later version has added
        row["state"] = AppState.__members__.get(row["state"], AppState.UNKNOWN)
        return cls(**row)

    @property
    def is_dev_job(self) -> bool:
        """Whether the job keeps itself for interactive work."""
        return self.component == DEV_COMPONENT

    @property
    def arguments(self) -> str:
        """What the job was given, as it is typed: the values of a sweep, or the arguments."""
        role = (self.app.get("roles") or [{}])[0]
        metadata = role.get("metadata") or {}
        points = points_of(metadata)
        if points:
            names = {
                name: [point["values"].get(name, "") for point in points] for name in points[0]["values"]
            }
            varied = (f"{name}={','.join(dict.fromkeys(values))}" for name, values in names.items())
            return " ".join((f"{len(points)} points:", *varied))
        given: Any = self.component_args
        if isinstance(given, Mapping):
            return " ".join(f"{name}={value}" for name, value in given.items())
        if CALL_KEY in metadata:
            return "a call of a Python function"
        words = list(map(str, given or role.get("args") or []))
        return shlex.join(words[1:] if words[:1] == ["--"] else words)

    def to_row(self) -> dict[str, Any]:
        """Return the columns of a new row with their values in the table; it gets its number there."""
        return as_stored({name: getattr(self, name) for name in COLUMNS if name != "seq"})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the state by its name."""
        return {name: getattr(self, name) for name in COLUMNS} | {"state": self.state.name}


COLUMNS = tuple(column.name for column in dataclasses.fields(JobRecord))


def as_stored(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of fields as the table holds them."""
    return {
        name: json.dumps(value)
        if name in JSON_COLUMNS and value is not None
        else value.name
        if isinstance(value, AppState)
        else value
        for name, value in columns.items()
    }

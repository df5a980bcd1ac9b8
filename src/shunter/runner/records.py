"""One row of the history."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter.specs.status import AppState

INTENT = "intent"
SUBMITTED = "submitted"
REFUSED = "refused"
DELETED = "deleted"

#: Reason of a job whose submitter died before the scheduler had answered.
INTERRUPTED = "the submission was interrupted"

#: States in which a job is not asked for again: it has ended, or its scheduler has forgotten it.
SETTLED_STATES = ("SUCCEEDED", "FAILED", "CANCELLED", "UNKNOWN")

JSON_COLUMNS = frozenset({"component_args", "cfg", "app", "argv", "images", "metrics"})


@dataclass(slots=True)
class JobRecord:
    """What the history knows of one submission. Each field is a column of the table, see `history_database`.

    Times are seconds since the epoch; None where they are not known. Nothing here holds secrets.

    Attributes:
        seq: number of the row; later submissions have higher ones.
        key: unique name of the submission.
        phase: "intent" (about to be sent, or interrupted there), "submitted", "refused" or "deleted".
        handle: handle of the job; "" while the scheduler has given it no id.
        scheduler: name of its scheduler.
        session: name of the runner's session.
        app_id: id of the job on its scheduler; "" while it has none.
        name: name of the job's definition.
        component: name of the component that made it; None if it was made in Python.
        component_args: the component's arguments.
        cfg: the resolved scheduler options.
        app: the job's definition as JSON, before the runner's variables were added.
        workspace: the workspace that went with it.
        cwd: directory that it was submitted from.
        argv: command line of the process that submitted it.
        git_commit: commit of the repository around ``cwd``.
        git_dirty: whether the repository had changes that were not committed.
        user: who submitted it.
        host: where it was submitted.
        created_at: time of the intent.
        submitted_at: when the scheduler accepted it.
        ended_at: when it ended, if its scheduler tells.
        state: the last state that was seen.
        msg: the reason of that state.
        submitter: ``pid:start:boot`` of the process that submitted it.
        rerun_of: handle of the job that this one repeats.
        parent_run_id: the parent run that was named.
        fingerprint: identifies the exact code that went with it.
        images: role -> the exact image that holds the code.
        native_id: the backend's own id of the job, where the app id is a different one.
        metrics: names and regular expressions of the metrics in its log.
        sweep: id of the sweep that it is a point of.
        point: its number there.
        started_at: when its first replica began to run, if its scheduler tells.
        python: version and path of its Python, where that is one of this machine.
    """

    seq: int = 0
    key: str = field(default_factory=lambda: os.urandom(16).hex())
    phase: str = INTENT
    handle: str = ""
    scheduler: str = ""
    session: str = ""
    app_id: str = ""
    name: str = ""
    component: str | None = None
    component_args: list[str] | dict[str, Any] | None = None
    cfg: dict[str, Any] = field(default_factory=dict)
    app: dict[str, Any] = field(default_factory=dict)
    workspace: str | None = None
    cwd: str = ""
    argv: list[str] = field(default_factory=list)
    git_commit: str | None = None
    git_dirty: bool | None = None
    user: str = ""
    host: str = ""
    created_at: float = field(default_factory=time.time)
    submitted_at: float | None = None
    ended_at: float | None = None
    state: AppState = AppState.UNSUBMITTED
    msg: str = ""
    submitter: str = ""
    rerun_of: str | None = None
    parent_run_id: str | None = None
    fingerprint: str | None = None
    images: dict[str, str] | None = None
    native_id: str | None = None
    metrics: dict[str, str] | None = None
    sweep: str | None = None
    point: int | None = None
    started_at: float | None = None
    python: str | None = None

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

    def to_row(self) -> dict[str, Any]:
        """Return the columns of a new row with their values in the table; it gets its number there."""
        row = {name: getattr(self, name) for name in COLUMNS if name != "seq"}
        for name in JSON_COLUMNS:
            row[name] = None if row[name] is None else json.dumps(row[name])
        row["state"] = self.state.name
        return row

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the state by its name."""
        return {name: getattr(self, name) for name in COLUMNS} | {"state": self.state.name}


COLUMNS = tuple(column.name for column in dataclasses.fields(JobRecord))

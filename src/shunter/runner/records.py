"""One row of the history."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


class JobRecord:
    """What the history knows of one submission. Each field is a column of the table, see `migrations`.

    Times are seconds since the epoch; None where they are not known. Nothing here holds secrets.
    """

    seq: int  # number of the row; later submissions have higher ones
    key: str  # unique name of the submission
    phase: str  # "intent" (about to be sent, or interrupted there), "submitted", "refused" or "deleted"
    handle: str  # handle of the job; "" while the scheduler has given it no id
    scheduler: str  # name of its scheduler
    session: str  # name of the runner's session
    app_id: str  # id of the job on its scheduler; "" while it has none
    name: str  # name of the job's definition
    component: str | None  # name of the component that made it; None if it was made in Python
    component_args: list[str] | dict[str, Any] | None
    cfg: dict[str, Any]  # the resolved scheduler options
    app: dict[str, Any]  # the job's definition as JSON, before the runner's variables were added
    workspace: str | None  # the workspace that went with it
    cwd: str  # directory that it was submitted from
    argv: list[str]  # command line of the process that submitted it
    git_commit: str | None  # commit of the repository around ``cwd``
    git_dirty: bool | None  # whether the repository had changes that were not committed
    user: str  # who submitted it
    host: str  # where it was submitted
    created_at: float  # time of the intent
    submitted_at: float | None  # when the scheduler accepted it
    ended_at: float | None  # when it ended, if its scheduler tells
    state: AppState  # the last state that was seen
    msg: str  # the reason of that state
    submitter: str  # ``pid:start:boot`` of the process that submitted it
    rerun_of: str | None  # handle of the job that this one repeats
    parent_run_id: str | None  # the parent run that was named
    fingerprint: str | None  # identifies the exact code that went with it
    images: dict[str, str] | None  # role -> the exact image that holds the code
    native_id: str | None  # the backend's own id of the job, where the app id is a different one
    metrics: dict[str, str] | None  # names and regular expressions of the metrics in its log
    sweep: str | None  # id of the sweep that it is a point of
    point: int | None  # its number there
    started_at: float | None  # when its first replica began to run, if its scheduler tells
    python: str | None  # version and path of its Python, where that is one of this machine

    __slots__ = (*__annotations__, "_json")

    def __init__(self, values: Sequence[Any]) -> None:
        row = dict(zip(COLUMNS, values, strict=True))
        self._json = {name: row.pop(name) for name in JSON_COLUMNS}
        dirty = row["git_dirty"]
        row["git_dirty"] = None if dirty is None else bool(dirty)
        # a state that a later version has added
        row["state"] = AppState.__members__.get(row["state"], AppState.UNKNOWN)
        for name, value in row.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        # JSON is parsed on demand: a list of a thousand jobs shows none of it
        if name not in JSON_COLUMNS:
            raise AttributeError(name)
        text = self._json[name]
        value = None if text is None else json.loads(text)
        setattr(self, name, value)
        return value

    def __repr__(self) -> str:
        return f"JobRecord({self.handle or self.key!r}, {self.phase}, {self.state})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the state by its name."""
        return {name: getattr(self, name) for name in COLUMNS} | {"state": self.state.name}


COLUMNS = JobRecord.__slots__[:-1]

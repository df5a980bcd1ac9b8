"""One row of the history."""

from __future__ import annotations

from trainyard.specs.status import AppState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

COLUMNS = (
    "seq",
    "key",
    "phase",
    "handle",
    "scheduler",
    "session",
    "app_id",
    "name",
    "component",
    "component_args",
    "cfg",
    "app",
    "workspace",
    "cwd",
    "argv",
    "git_commit",
    "git_dirty",
    "user",
    "host",
    "created_at",
    "submitted_at",
    "ended_at",
    "state",
    "msg",
    "submitter",
    "rerun_of",
    "parent_run_id",
    "fingerprint",
    "images",
    "native_id",
)
JSON_COLUMNS = frozenset({"component_args", "cfg", "app", "argv", "images"})

INTENT = "intent"
SUBMITTED = "submitted"
REFUSED = "refused"
DELETED = "deleted"

#: States in which a job is not asked for again: it has ended, or its scheduler has forgotten it.
SETTLED_STATES = ("SUCCEEDED", "FAILED", "CANCELLED", "UNKNOWN")


class JobRecord:
    """What the history knows of one submission.

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
        component_args: the component's arguments, without secrets.
        cfg: the resolved scheduler options, without secrets.
        app: the job's definition as JSON, without secrets.
        workspace: the workspace that went with it.
        cwd: directory that it was submitted from.
        argv: command line of the process that submitted it, without secrets.
        git_commit: commit of the repository around ``cwd``; None if there is none, or it is not known.
        git_dirty: whether that had changes that were not committed.
        user: who submitted it.
        host: where it was submitted.
        created_at: time of the intent, seconds since the epoch.
        submitted_at: when the scheduler took it; None if it did not.
        ended_at: when it ended, as far as that was seen.
        state: the last state that was seen.
        msg: the reason of that state, in words.
        submitter: ``pid:start:boot`` of the process that submitted it.
        rerun_of: handle of the job that this one repeats.
        parent_run_id: the parent run that was named.
        fingerprint: names the exact code that went with it; None if none did.
        images: role -> the exact image that holds the code.
        native_id: the backend's own id of the job, where the app id is not that.
    """

    __slots__ = (*COLUMNS, "_json")

    seq: int
    key: str
    phase: str
    handle: str
    scheduler: str
    session: str
    app_id: str
    name: str
    component: str | None
    component_args: list[str] | dict[str, Any] | None
    cfg: dict[str, Any]
    app: dict[str, Any]
    workspace: str | None
    cwd: str
    argv: list[str]
    git_commit: str | None
    git_dirty: bool | None
    user: str
    host: str
    created_at: float
    submitted_at: float | None
    ended_at: float | None
    state: AppState
    msg: str
    submitter: str
    rerun_of: str | None
    parent_run_id: str | None
    fingerprint: str | None
    images: dict[str, str] | None
    native_id: str | None

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
        # JSON is read when it is asked for: a list of a thousand jobs shows none of it
        if name not in JSON_COLUMNS:
            raise AttributeError(name)
        import json

        text = self._json[name]
        value = None if text is None else json.loads(text)
        setattr(self, name, value)
        return value

    def __repr__(self) -> str:
        return f"JobRecord({self.handle or self.key!r}, {self.phase}, {self.state})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the state by its name."""
        return {name: getattr(self, name) for name in COLUMNS} | {"state": self.state.name}

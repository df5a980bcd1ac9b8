"""A job's folder on the cluster's shared storage, and reading its records.

::

    SHARED/                     option shared_dir, private to its user
        code/FINGERPRINT/       a workspace, shared by all jobs with the same code
        toolkit/NAME.pyz        the toolkit, likewise
        environments/           Python environments, see the toolkit's `environment_store`
        jobs/APP_ID/
            job.json            what was asked for, without secrets; written first
            script              what was submitted
            run.sh              what runs the replicas on the nodes
            layout              "ROLE COUNT" for each role, in order
            roles/ROLE.sh       variables and command of a role's replicas, which may hold secrets
            native              native ids, one line for each submission
            cancelled           a user cancelled the job, or it lost its race
            lease               of a job in a race: the lease, the job's handle, its rivals; see `leases.py`
            follow-up.json, .script, .toolkit   what follows on its end; the toolkit's `follow_up` reads it
            follow-up.ids       native ids of the small jobs that wait for its end
            retries, settled    what became of failures; nothing more follows
            notify.waiting.json targets of notifications, with the secret; notify.json afterwards, without it
            hang, python/       when a replica counts as hung; what lets Python processes show their stacks
            state/NAME.ATTEMPT.start, .exit, .hung  records, NAME is ROLE-K or job
            state/ROLE-K.cancelled                  a user cancelled this replica of an array
            logs/ROLE-K/ATTEMPT.out, .err, .idx, .error.json, .reason
            ml/ROLE-K/          what stands for /opt/ml in a replica that runs under the toolkit
            work/               the working directory, where there is no other
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from shunter.schedulers.hpc.storage import Storage

RUN_SCRIPT = "run.sh"
#: The file of a job in a race, and how the note begins that it has lost; `run.sh` writes it too.
LEASE, RACE_LOST = "lease", "race lost to"
SCRIPT = "script"
#: Files of the follow-up: what it has to know, its script, and the path of its toolkit.
FOLLOW_UP, FOLLOW_UP_SCRIPT, FOLLOW_UP_TOOLKIT = "follow-up.json", "follow-up.script", "follow-up.toolkit"
#: Files that follow-ups leave: their native ids, what became of failures, and that nothing more follows.
FOLLOW_UP_IDS = "follow-up.ids"
FOLLOW_UP_FILES = (FOLLOW_UP_IDS, "retries", "settled")
#: The targets of notifications, and the time after which a replica counts as hung.
WAITING_BOX, HANG = "notify.waiting.json", "hang"
#: Stands in a job's files for the path of the toolkit.
TOOLKIT = "@{toolkit}@"
#: Stand for the folder of Python environments, and for what leads to one: ``*`` is its description's digest.
ENVIRONMENTS, ENVIRONMENT = "@{environments}@", "@{environment *}@"
#: How many reports of a job are read, and how much of each.
MOST_REPORTS = 8
LONGEST_REPORT = 1 << 20
DEFAULT_SHARED = "~/.shunter"


@dataclass
class AttemptRecord:
    """What a replica or a submission left behind of one attempt: its start, and its end if it has ended.

    ``why`` is "ended", "time-limit" or "stopped", see ``run.sh``; "" without an end. ``reason`` says in words
    why the program was not started; "" if it was.
    """

    attempt: int
    host: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    code: int | None = None
    why: str = ""
    reason: str = ""
    link: int = 0
    native_id: str = ""
    #: A text about a hang, past or present; "" if it never hung.
    hung: str = ""


@dataclass
class SharedJob:
    """The content of a job's folder, as it was read.

    Args:
        app_id: the job.
        document: ``job.json``.
        native_ids: ids of its submissions, the oldest first.
        cancelled_by: who cancelled it, or that it lost its race; "" if nobody has.
        cancelled: who cancelled single replicas, by role and index.
        replicas: the last record of each replica that has started, by role and index.
        earlier: the records before those, the oldest first.
        submission: the last record of a submission.
        attempts: how many attempts there have been.
        reports: what replicas that failed left in torchelastic's error file, or in the toolkit's report.
    """

    app_id: str
    document: Mapping[str, Any]
    native_ids: list[str] = field(default_factory=list)
    cancelled_by: str = ""
    #: Path of the lease of its race, or the URLs of the object; "" if it is in none.
    lease: str = ""
    cancelled: dict[tuple[str, int], str] = field(default_factory=dict)
    replicas: dict[tuple[str, int], AttemptRecord] = field(default_factory=dict)
    earlier: dict[tuple[str, int], list[AttemptRecord]] = field(default_factory=dict)
    submission: AttemptRecord | None = None
    attempts: int = 0
    #: Native ids of the small jobs that follow on its ends, what became of its failures so far, the oldest
    #: first, and whether nothing more follows.
    follow_ups: list[str] = field(default_factory=list)
    retries: list[dict[str, Any]] = field(default_factory=list)
    is_settled: bool = False
    reports: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def cancellation(self) -> str:
        """Why it counts as cancelled, in words."""
        is_lost_race = self.cancelled_by.startswith(RACE_LOST)
        return self.cancelled_by if is_lost_race else f"cancelled by {self.cancelled_by}"

    @property
    def layout(self) -> list[tuple[str, int]]:
        """Role and number of replicas, in order."""
        return [(role, count) for role, count in self.document.get("layout", ())]

    @property
    def count(self) -> int:
        """How many replicas it has."""
        return sum(count for _, count in self.layout)

    @property
    def has_run(self) -> bool:
        """Whether a submission or a replica has left a record."""
        return bool(self.replicas) or self.submission is not None

    @property
    def starts(self) -> list[float]:
        """When the attempts of its replicas began."""
        records = [*self.replicas.values(), *(each for some in self.earlier.values() for each in some)]
        return [record.started_at for record in records if record.started_at]

    @property
    def may_start_again(self) -> bool:
        """Whether it is still undecided if the job is restarted after a failure."""
        return bool(self.document.get("retry")) and not self.is_settled and not self.cancelled_by

    @property
    def chain(self) -> int:
        """How many submissions were planned for it."""
        return int(self.document.get("chain", 1))


def job_folder(shared: str, app_id: str) -> str:
    """Return the path of a job's folder."""
    return posixpath.join(shared, "jobs", app_id)


def log_folder(folder: str, role: str, replica: int) -> str:
    """Return the path of the folder with a replica's logs."""
    return posixpath.join(folder, "logs", f"{role}-{replica}")


def base_folder(folder: str, role: str, replica: object) -> str:
    """Return the path of what stands for ``/opt/ml`` in a replica that runs under the toolkit."""
    return posixpath.join(folder, "ml", f"{role}-{replica}")


def shell_script(name: str) -> bytes:
    """Return a script that is copied to a job's folder: ``run.sh`` or ``spread.sh``."""
    return files(__package__).joinpath(name).read_bytes()


def read_jobs(
    storage: Storage, shared: str, app_ids: Sequence[str], *, with_reports: bool = False
) -> dict[str, SharedJob]:
    """Read the folders of these jobs, as far as they exist, by one call; another one reads the reports."""
    names = ("job.json", "native", "cancelled", LEASE, *FOLLOW_UP_FILES, "state")
    paths = [f"{job_folder(shared, app_id)}/{name}" for app_id in app_ids for name in names]
    files: dict[str, dict[str, str]] = {}
    for path, content in storage.contents(paths).items():
        folder, _, name = path.rpartition("/")
        files.setdefault(folder, {})[name] = content.decode("utf-8", "replace")
    jobs = {}
    for app_id in app_ids:
        folder = job_folder(shared, app_id)
        texts = files.get(folder, {})
        document = _document(texts.get("job.json", ""))
        if document is None:
            continue
        job = jobs[app_id] = SharedJob(app_id, document, texts.get("native", "").split())
        if "cancelled" in texts:
            job.cancelled_by = texts["cancelled"].strip() or "somebody"
        job.lease = next(iter(texts.get(LEASE, "").splitlines()), "")
        job.follow_ups = texts.get(FOLLOW_UP_IDS, "").split()
        job.retries = [json.loads(line) for line in texts.get("retries", "").splitlines()]
        job.is_settled = "settled" in texts
        _add_records(job, files.get(f"{folder}/state", {}))
    if with_reports:
        _read_reports(storage, shared, jobs.values())
    return jobs


def _read_reports(storage: Storage, shared: str, jobs: Iterable[SharedJob]) -> None:
    """Add to jobs what their replicas that failed reported, a few of each job; one call for all."""
    paths: dict[str, tuple[SharedJob, tuple[str, int]]] = {}
    for job in jobs:
        folder = job_folder(shared, job.app_id)
        failed = [(key, record) for key, record in job.replicas.items() if record.code]
        failed.sort(key=lambda item: item[1].ended_at or 0.0)
        for key, record in failed[:MOST_REPORTS]:
            paths[f"{base_folder(folder, *key)}/output/failure"] = job, key
            paths[f"{log_folder(folder, *key)}/{record.attempt}.error.json"] = job, key
    contents = storage.contents(paths)
    for path, (job, key) in paths.items():  # of both reports, torchelastic's counts
        report = contents.get(path, b"")[:LONGEST_REPORT].decode("utf-8", "replace").strip()
        if report:
            is_plain = path.endswith("/failure")
            job.reports[key] = json.dumps({"message": {"message": report}}) if is_plain else report


def _add_records(job: SharedJob, texts: Mapping[str, str]) -> None:
    """Read the records of a job; of submissions only the last attempt counts."""
    records: dict[str, dict[int, AttemptRecord]] = {}
    for name, text in texts.items():
        stem, _, kind = name.rpartition(".")
        what, _, number = stem.rpartition(".")
        if kind in ("start", "exit", "hung") and number.isdecimal():
            attempts = records.setdefault(what, {})
            _fill(attempts.setdefault(int(number), AttemptRecord(int(number))), kind, text)
        role, _, index = stem.rpartition("-")
        if kind == "cancelled" and index.isdecimal():
            job.cancelled[role, int(index)] = text.strip() or "somebody"
    for what, attempts in records.items():
        *earlier, last = (attempts[number] for number in sorted(attempts))
        job.attempts = max(job.attempts, last.attempt + 1)
        role, _, index = what.rpartition("-")
        if what == "job":
            job.submission = last
        elif index.isdecimal():
            job.earlier[role, int(index)], job.replicas[role, int(index)] = earlier, last


def _fill(record: AttemptRecord, kind: str, text: str) -> None:
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    record.host = values.get("host", record.host)
    if kind == "hung":
        record.hung = values.get("note", "")
    elif kind == "start":
        record.started_at = _number(values.get("time"))
        record.link = int(_number(values.get("link")) or 0)
        record.native_id = values.get("native", "")
    else:
        record.ended_at = _number(values.get("time"))
        code = _number(values.get("code"))
        record.code = None if code is None else int(code)
        record.why = values.get("why", "ended")
        record.reason = values.get("reason", "")


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _document(text: str) -> dict[str, Any] | None:
    """Return ``job.json``; None if it is damaged, so that the folder counts as no job's."""
    try:
        document: dict[str, Any] = json.loads(text)
        return document if [(str(role), int(count)) for role, count in document["layout"]] else None
    except (ValueError, TypeError, LookupError):
        return None

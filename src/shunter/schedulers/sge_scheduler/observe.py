"""Read the output of `qstat -xml`, `qstat -xml -j` and `qacct -j`.

Pure functions of text. The formats are those of qstat(1), qstat.xsd, detailed_job_info.xsd, qacct(1) and
accounting(5) of 8.1.9, recorded with that version. Elements that are not known are left alone. A state
with a letter that is not known counts as open.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from shunter.schedulers.hpc.queries import PRECEDENCE, NativeJob, NativeReplica
from shunter.schedulers.sge_scheduler.reasons import LOST, RAN, RESCHEDULED, judge, reason_of, state_of
from shunter.specs.status import AppState

#: The jobs that `qstat -s z` still lists have ended, but it does not say how.
ZOMBIE = "z"
_STAMP = re.compile(r"^\d\d/\d\d/\d{4} \d\d:\d\d:\d\d \[\d+:\d+\]: (?:error: )?")


class QueueRow(NamedTuple):
    """A job, or some tasks of an array, in one state."""

    native_id: str
    name: str
    letters: str
    host: str
    tasks: tuple[int, ...]
    time: float | None


class Details(NamedTuple):
    """What `qstat -j` adds: when it was submitted and started, why it waits, and what went wrong."""

    submitted_at: float | None
    started_at: float | None
    messages: list[str]
    errors: list[str]


class AccountedRun(NamedTuple):
    """One run of a job or task, from the accounting."""

    native_id: str
    name: str
    task: int | None
    host: str
    failed: str
    words: str
    exit_code: int
    deleted_by: str
    submitted_at: float | None
    started_at: float | None
    ended_at: float | None


# ---- qstat


def parse_queue(text: str) -> list[QueueRow]:
    """Read `qstat -xml`.

    Raises:
        ValueError: it is not such a document.
    """
    rows = []
    for item in _document(text).iter("job_list"):
        fields = {child.tag: (child.text or "").strip() for child in item}
        number = fields.get("JB_job_number", "")
        if not number:
            continue
        rows.append(
            QueueRow(
                number,
                fields.get("full_job_name") or fields.get("JB_name", ""),
                fields.get("state", ""),
                fields.get("queue_name", "").partition("@")[2],
                tuple(task_numbers(fields.get("tasks", ""))),
                _iso(fields.get("JAT_start_time") or fields.get("JB_submission_time") or ""),
            )
        )
    return rows


def parse_details(text: str) -> dict[str, Details]:
    """Read `qstat -xml -j ID,...`. Jobs that have left the queue are missing in it.

    Raises:
        ValueError: it is not such a document.
    """
    document = _document(text)
    messages: dict[str, list[str]] = {}
    for item in document.iterfind("./messages/element/SME_message_list/element"):
        said = (item.findtext("MES_message") or "").strip()
        for number in item.iter("ULNG_value"):
            messages.setdefault((number.text or "").strip(), []).append(said)
    found = {}
    for job in document.iterfind("./djob_info/element"):
        key = (job.findtext("JB_job_number") or "").strip()
        starts = [_number(each.text) for each in job.iter("JAT_start_time")]
        errors = [_STAMP.sub("", (each.text or "").strip()) for each in job.iter("QIM_message")]
        found[key] = Details(
            _number(job.findtext("JB_submission_time")),
            min(filter(None, starts), default=None),
            messages.get(key, []),
            list(dict.fromkeys(errors)),
        )
    return found


def app_id_of(name: str) -> str:
    """Return the id of the job that has this name; see `job_name` of the request."""
    return name[1:] if name[:1] == "_" and name[1:2].isdigit() else name


def task_numbers(text: str) -> Iterator[int]:
    """Yield the tasks of an array as qstat writes them: ``1``, ``3,4``, ``3-10:1``, and mixtures."""
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is not None:
            first, last, step = match.groups()
            yield from range(int(first), int(last or first) + 1, int(step or 1))


def native_jobs(rows: Iterable[QueueRow], details: Mapping[str, Details]) -> dict[str, NativeJob]:
    """Return the jobs that the queue lists, by native id; without those that have ended."""
    grouped: dict[str, list[QueueRow]] = {}
    for row in rows:
        if row.letters != ZOMBIE:
            grouped.setdefault(row.native_id, []).append(row)
    return {number: _native_job(number, found, details.get(number)) for number, found in grouped.items()}


def _native_job(number: str, rows: list[QueueRow], details: Details | None) -> NativeJob:
    states = [state_of(row.letters) for row in rows]
    leading = min(states, key=PRECEDENCE.index)
    main = rows[states.index(leading)]
    letters = ",".join(dict.fromkeys(row.letters for row in rows))
    running = [row for row, state in zip(rows, states, strict=True) if state == AppState.RUNNING]
    reasons = [reason_of(row, details) for row in rows]
    replicas = {
        task - 1: NativeReplica(state, None, row.host, reason)
        for row, state, reason in zip(rows, states, reasons, strict=True)
        for task in row.tasks
    }
    return NativeJob(
        native_id=number,
        app_id=app_id_of(main.name),
        state=leading,
        native_state=letters,
        reason=reasons[rows.index(main)] or next(filter(None, reasons), ""),
        hosts=list(dict.fromkeys(row.host for row in running if row.host)),
        submitted_at=details.submitted_at if details else None if running else main.time,
        started_at=(details.started_at if details else None) or (running[0].time if running else None),
        replicas=replicas,
    )


# ---- qacct


def parse_accounting(text: str) -> list[AccountedRun]:
    """Read `qacct -j`, oldest first.

    What a parallel job started on its other hosts has records, too; qacct of 8.1.9 does not distinguish them
    from the record of the job, which is the last one.
    """
    endings = []
    for block in re.split(r"^=+\s*$", text, flags=re.M):
        fields = {
            parts[0]: parts[1].strip() if len(parts) == 2 else ""
            for line in block.splitlines()
            if (parts := line.split(None, 1))
        }
        if "jobnumber" not in fields or fields.get("pe_taskid", "NONE") not in ("NONE", "undefined", ""):
            continue
        failed, _, words = fields.get("failed", "0").partition(":")
        deleted_by = fields.get("deleted_by", "NONE")
        endings.append(
            AccountedRun(
                fields["jobnumber"],
                fields.get("jobname", ""),
                int(fields["taskid"]) if fields.get("taskid", "").isdigit() else None,
                fields.get("hostname", ""),
                failed.strip(),
                words.strip(),
                int(_number(fields.get("exit_status", "").partition(" ")[0]) or 0),
                "" if deleted_by in ("NONE", "undefined") else deleted_by,
                _clock(fields.get("qsub_time", "")),
                _clock(fields.get("start_time", "")),
                _clock(fields.get("end_time", "")),
            )
        )
    return endings


def ended_jobs(endings: Iterable[AccountedRun]) -> dict[str, NativeJob]:
    """Return the jobs whose accounting says how they ended, by native id.

    Runs that were followed by another one, after exit code 99 for example, count as restarts. A job that has
    no other records has not ended.
    """
    grouped: dict[str, dict[int | None, list[AccountedRun]]] = {}
    for ending in endings:
        grouped.setdefault(ending.native_id, {}).setdefault(ending.task, []).append(ending)
    found = {}
    for number, tasks in grouped.items():
        last = {task: runs[-1] for task, runs in tasks.items() if runs[-1].failed not in RESCHEDULED}
        if len(last) < len(tasks):
            continue
        verdicts = {task: judge(run) for task, run in last.items()}
        worst = min(verdicts, key=lambda task: PRECEDENCE.index(verdicts[task][0]))
        state, reason = verdicts[worst]
        runs = list(last.values())
        found[number] = NativeJob(
            native_id=number,
            app_id=app_id_of(runs[0].name),
            state=state,
            native_state=f"failed {last[worst].failed}" if last[worst].failed != RAN else "done",
            reason=reason,
            exit_code=last[worst].exit_code,
            hosts=list(dict.fromkeys(run.host for run in runs)),
            submitted_at=runs[0].submitted_at,
            started_at=min(filter(None, (run.started_at for run in runs)), default=None),
            ended_at=max(filter(None, (run.ended_at for run in runs)), default=None),
            restarts=max(
                sum(run.failed in (*RESCHEDULED, *LOST) for run in each[:-1]) for each in tasks.values()
            ),
            is_lost=last[worst].failed in LOST,
            replicas={
                task - 1: NativeReplica(verdicts[task][0], run.exit_code, run.host, verdicts[task][1])
                for task, run in last.items()
                if task is not None
            },
        )
    return found


# ---- texts


def _document(text: str) -> Element:
    try:
        return ET.fromstring(text)
    except ET.ParseError as error:
        raise ValueError(f"qstat's answer is not XML: {error}") from None


def _number(text: str | None) -> float | None:
    try:
        return float(text or "") or None
    except ValueError:
        return None


def _iso(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _clock(text: str) -> float | None:
    for layout in ("%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S"):
        try:
            return time.mktime(time.strptime(text.partition(".")[0], layout)) or None  # 0: it does not know
        except (ValueError, OverflowError):
            continue
    return None

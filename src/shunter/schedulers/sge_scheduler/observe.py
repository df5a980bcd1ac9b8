"""Read the output of `qstat -xml`, `qstat -xml -j` and `qacct -j`.

Pure functions of text. The formats are those of qstat(1), qstat.xsd, detailed_job_info.xsd, qacct(1) and
accounting(5) of 8.1.9, recorded with that version. Elements that are not known are left alone. A state
with a letter that is not known counts as open.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from shunter.schedulers.hpc.queries import NativeJob, combined, numbers_in
from shunter.schedulers.sge_scheduler.reasons import LOST, RAN, RESCHEDULED, judge, reason_of, state_of

#: The jobs that `qstat -s z` still lists have ended, but it does not say how.
ZOMBIE = "z"
_STAMP = re.compile(r"^\d\d/\d\d/\d{4} \d\d:\d\d:\d\d \[\d+:\d+\]: (?:error: )?")
_ACCOUNTED_TIMES = ("%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S")


@dataclass
class Details:
    """What `qstat -j` adds: when it was submitted and started, why it waits, and what went wrong."""

    submitted_at: float | None = None
    started_at: float | None = None
    messages: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


# ---- qstat


def jobs_from_queue(text: str) -> list[NativeJob]:
    """Read `qstat -xml`: jobs, and the tasks of arrays one by one, without those that have ended.

    Raises:
        ValueError: it is not such a document.
    """
    parts = []
    for item in _document(text).iter("job_list"):
        fields = {child.tag: (child.text or "").strip() for child in item}
        number, letters = fields.get("JB_job_number", ""), fields.get("state", "")
        if not number or letters == ZOMBIE:
            continue
        host = fields.get("queue_name", "").partition("@")[2]
        numbers: list[int | None] = [task - 1 for task in numbers_in(fields.get("tasks", ""))]
        parts += [
            NativeJob(
                number,
                app_id=app_id_of(fields.get("full_job_name") or fields.get("JB_name", "")),
                state=state_of(letters),
                native_state=letters,
                hosts=[host] if host else [],
                submitted_at=_time(fields.get("JB_submission_time", ""), "%Y-%m-%dT%H:%M:%S"),
                started_at=_time(fields.get("JAT_start_time", ""), "%Y-%m-%dT%H:%M:%S"),
                number=task,
            )
            for task in numbers or [None]
        ]
    return parts


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


def with_details(parts: list[NativeJob], details: Mapping[str, Details]) -> dict[str, NativeJob]:
    """Return what the queue lists, by native id, with what is known of why jobs wait."""
    for part in parts:
        more = details.get(part.native_id, Details())
        part.reason = reason_of(part, more.messages, more.errors)
        part.submitted_at = more.submitted_at or part.submitted_at
        part.started_at = part.started_at or more.started_at
    return combined(parts)


# ---- qacct


def jobs_from_accounting(text: str) -> dict[str, NativeJob]:
    """Read `qacct -j`, oldest first: the jobs whose accounting says how they ended, by native id.

    What a parallel job started on its other hosts has records, too; qacct of 8.1.9 does not distinguish them
    from the record of the job, which is the last one. Runs that were followed by another one, after exit code
    99 for example, count as restarts. A job that has no other records has not ended.
    """
    runs: dict[tuple[str, str], list[dict[str, str]]] = {}
    for block in re.split(r"^=+\s*$", text, flags=re.M):
        lines = (line.split(None, 1) for line in block.splitlines() if line.strip())
        fields = {words[0]: words[1].strip() if len(words) == 2 else "" for words in lines}
        if "jobnumber" in fields and fields.get("pe_taskid", "NONE") in ("NONE", "undefined", ""):
            runs.setdefault((fields["jobnumber"], fields.get("taskid", "")), []).append(fields)
    again = {number for (number, _), records in runs.items() if _failed(records[-1]) in RESCHEDULED}
    return combined(_part(records) for (number, _), records in runs.items() if number not in again)


def _part(records: list[dict[str, str]]) -> NativeJob:
    """Return how a job or task ended, from the records of its runs."""
    last = records[-1]
    failed, host, task = _failed(last), last.get("hostname", ""), last.get("taskid", "")
    code = int(_number(last.get("exit_status", "").partition(" ")[0]) or 0)
    deleted_by = last.get("deleted_by", "NONE")
    words = last.get("failed", "").partition(":")[2].strip()
    state, reason = judge(
        failed, words, host, code, "" if deleted_by in ("NONE", "undefined") else deleted_by
    )
    return NativeJob(
        last["jobnumber"],
        app_id=app_id_of(last.get("jobname", "")),
        state=state,
        native_state="done" if failed == RAN else f"failed {failed}",
        reason=reason,
        exit_code=code,
        hosts=[host],
        submitted_at=_time(last.get("qsub_time", ""), *_ACCOUNTED_TIMES),
        started_at=_time(last.get("start_time", ""), *_ACCOUNTED_TIMES),
        ended_at=_time(last.get("end_time", ""), *_ACCOUNTED_TIMES),
        restarts=sum(_failed(record) in (*RESCHEDULED, *LOST) for record in records[:-1]),
        is_lost=failed in LOST,
        number=int(task) - 1 if task.isdigit() else None,
    )


def _failed(record: Mapping[str, str]) -> str:
    return record.get("failed", "0").partition(":")[0].strip()


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


def _time(text: str, *layouts: str) -> float | None:
    for layout in layouts:
        try:
            return time.mktime(time.strptime(text.partition(".")[0], layout)) or None  # 0: it does not know
        except (ValueError, OverflowError):
            continue
    return None

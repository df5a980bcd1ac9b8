"""Read the output of `bjobs -json -o`, and of `bhist -UF` for jobs that bjobs no longer lists.

Pure functions of text, by the documents of 10.1 (bjobs -o, -json; bhist; "Termination reasons displayed by
bacct, bhist, and bjobs") and by answers that users have published: LSF itself cannot be installed here.
Fields that are not known are left alone, missing ones are empty, and a state that is not known counts as
open.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping

from shunter.schedulers.hpc.queries import PRECEDENCE, NativeJob, NativeReplica
from shunter.schedulers.lsf_scheduler.reasons import exit_code, judge
from shunter.specs.status import is_terminal

#: The fields that are requested. All of them are in 10.1.
FIELDS = (
    "jobid jobindex job_name stat exec_host exit_code exit_reason pend_reason submit_time start_time "
    "finish_time"
)

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_STAMP = re.compile(r"(?:\w{3} )?(\w{3}) +(\d+) (\d+):(\d+)(?::(\d+))?(?: (\d{4}))?")


def parse_jobs(text: str) -> dict[str, list[dict[str, str]]]:
    """Read `bjobs -json`: the records of each job, by its id; an array has one for each element.

    Lines before the document ("Cannot connect to LSF. Please wait ...") are skipped, and so are jobs that LSF
    does not find.

    Raises:
        ValueError: there is no such document.
    """
    start = text.find("{")
    if start < 0:
        raise ValueError(text.strip()[:200] or "nothing")
    document, _ = json.JSONDecoder(strict=False).raw_decode(text[start:])
    found: dict[str, list[dict[str, str]]] = {}
    for record in document.get("RECORDS", ()) if isinstance(document, dict) else ():
        if not isinstance(record, dict) or "ERROR" in record:
            continue
        fields = {str(key): "" if value in (None, "-") else str(value) for key, value in record.items()}
        number, _, index = fields.get("JOBID", "").partition("[")
        if number:
            fields.setdefault("JOBINDEX", index.rstrip("]"))
            found.setdefault(number, []).append(fields)
    return found


def native_jobs(records: Mapping[str, list[dict[str, str]]], now: float) -> dict[str, NativeJob]:
    """Return jobs by their id."""
    return {number: _native_job(number, found, now) for number, found in records.items()}


def _native_job(number: str, records: list[dict[str, str]], now: float) -> NativeJob:
    seen = [judge(record) for record in records]
    states = [state for state, _ in seen]
    leading = min(states, key=PRECEDENCE.index)
    which = states.index(leading)
    main = records[which]
    stats = list(dict.fromkeys(record.get("STAT", "") for record in records))
    starts = [at for record in records if (at := moment(record.get("START_TIME", ""), now)) is not None]
    ends = [at for record in records if (at := moment(record.get("FINISH_TIME", ""), now)) is not None]
    hosts = [host for record in records for host in host_names(record.get("EXEC_HOST", ""))]
    replicas = {}
    for record, (state, reason) in zip(records, seen, strict=True):
        index = record.get("JOBINDEX", "")
        if index.isdecimal() and int(index) > 0:
            host = next(iter(host_names(record.get("EXEC_HOST", ""))), "")
            code = exit_code(record) if is_terminal(state) else None
            replicas[int(index) - 1] = NativeReplica(state, code, host, reason)
    return NativeJob(
        native_id=number,
        app_id=main.get("JOB_NAME", "").partition("[")[0],
        state=leading,
        native_state=",".join(stats),
        reason=seen[which][1],
        exit_code=exit_code(main) if is_terminal(leading) else None,
        hosts=list(dict.fromkeys(hosts)),
        submitted_at=moment(main.get("SUBMIT_TIME", ""), now),
        started_at=min(starts, default=None),
        ended_at=max(ends, default=None) if is_terminal(leading) else None,
        replicas=replicas,
    )


def host_names(text: str) -> list[str]:
    """Return the hosts of ``4*hostA:hostB``, each once."""
    names = [part.rpartition("*")[2].strip() for part in text.split(":")]
    return list(dict.fromkeys(filter(None, names)))


def moment(text: str, now: float) -> float | None:
    """Return a time of LSF, "May 28 12:45" or with seconds and year; letters behind it say how exact it is.

    Without a year it is the last such time that is not in the future.
    """
    match = _STAMP.match(text.strip())
    if match is None or match[1] not in _MONTHS:
        return None
    month, day, hour, minute, second = (
        _MONTHS.index(match[1]) + 1,
        *(int(part or 0) for part in match.group(2, 3, 4, 5)),
    )
    year = int(match[6]) if match[6] else time.localtime(now).tm_year
    try:
        found = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
        if not match[6] and found > now + 86400:
            found = time.mktime((year - 1, month, day, hour, minute, second, 0, 0, -1))
    except (ValueError, OverflowError):
        return None
    return found


# ---- what bjobs has forgotten


_JOB = re.compile(r"^Job <(\d+)(?:\[(\d+)\])?>,(?: Job Name <([^>]*)>,)?", re.M)
_EVENT = re.compile(r"^(\w{3} \w{3} +\d+ \d+:\d+:\d+(?: \d{4})?): (.*)$", re.M)


def parse_history(text: str, now: float) -> dict[str, NativeJob]:
    """Read `bhist -n 0 -UF`: jobs that have ended, by id; others are left out."""
    records: dict[str, list[dict[str, str]]] = {}
    matches = list(_JOB.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    for match, end in zip(matches, ends, strict=False):
        block = text[match.start() : end]
        record = {
            "JOBID": match[1],
            "JOBINDEX": match[2] or "0",
            "JOB_NAME": match[3] or "",
            **_history(block),
        }
        records.setdefault(match[1], []).append(record)
    found = native_jobs(records, now)
    return {number: job for number, job in found.items() if is_terminal(job.state)}


def _history(block: str) -> dict[str, str]:
    """Return the fields that follow from a job's events; later events override earlier ones."""
    fields = {"STAT": "PEND"}
    for stamp, said in _EVENT.findall(block):
        if said.startswith("Submitted"):
            fields["SUBMIT_TIME"] = stamp
        elif re.match(r"(Dispatched|Started|Starting)", said):
            fields |= {"STAT": "RUN", "START_TIME": stamp, "EXIT_REASON": ""}
            hosts = re.findall(
                r"(?:[Dd]ispatched.*? to|on Host\(s\)|Started.*? on)\s+((?:<[^>]+>\s*)+)", said
            )
            if hosts:
                fields["EXEC_HOST"] = ":".join(re.findall(r"<([^>]+)>", hosts[0]))
        elif said.startswith("Done successfully"):
            fields |= {"STAT": "DONE", "FINISH_TIME": stamp}
        elif said.startswith(("Exited", "Completed <exit>")):
            fields |= {"STAT": "EXIT", "FINISH_TIME": stamp}
            if code := re.search(r"exit code (\d+)", said):
                fields["EXIT_CODE"] = code[1]
            if number := re.search(r"by signal (\d+)", said):
                fields["EXIT_CODE"] = str(128 + int(number[1]))
        elif re.match(r"(Pending|Requeued|Job has been requeued)", said):
            fields |= {"STAT": "PEND"}
        if reason := re.search(r"(TERM_\w+: [^;.]*)", said):
            fields["EXIT_REASON"] = reason[1]
    return fields

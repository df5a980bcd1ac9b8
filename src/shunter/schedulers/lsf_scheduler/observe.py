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

from shunter.schedulers.hpc.queries import NativeJob, combined
from shunter.schedulers.lsf_scheduler.reasons import exit_code, judge
from shunter.specs.status import is_terminal

#: The fields that are requested. All of them are in 10.1.
FIELDS = (
    "jobid jobindex job_name stat exec_host exit_code exit_reason pend_reason submit_time start_time "
    "finish_time"
)

_STAMP = re.compile(r"(?:\w{3} )?(\w{3} +\d+) (\d+:\d+(?::\d+)?)(?: (\d{4}))?")


def jobs_from_json(text: str, now: float) -> dict[str, NativeJob]:
    """Read `bjobs -json`: jobs by id; an array has a record for each element.

    Lines before the document ("Cannot connect to LSF. Please wait ...") are skipped, and so are jobs that LSF
    does not find.

    Raises:
        ValueError: there is no such document.
    """
    start = text.find("{")
    if start < 0:
        raise ValueError(text.strip()[:200] or "nothing")
    document, _ = json.JSONDecoder(strict=False).raw_decode(text[start:])
    parts = []
    for record in document.get("RECORDS", ()) if isinstance(document, dict) else ():
        if not isinstance(record, dict) or "ERROR" in record:
            continue
        fields = {str(key): "" if value in (None, "-") else str(value) for key, value in record.items()}
        number, _, index = fields.get("JOBID", "").partition("[")
        if number:
            fields.setdefault("JOBINDEX", index.rstrip("]"))
            parts.append(_part(number, fields, now))
    return combined(parts)


def _part(native_id: str, record: Mapping[str, str], now: float) -> NativeJob:
    state, reason = judge(record)
    index = record.get("JOBINDEX", "")
    return NativeJob(
        native_id,
        app_id=record.get("JOB_NAME", "").partition("[")[0],
        state=state,
        native_state=record.get("STAT", ""),
        reason=reason,
        exit_code=exit_code(record) if is_terminal(state) else None,
        hosts=host_names(record.get("EXEC_HOST", "")),
        submitted_at=moment(record.get("SUBMIT_TIME", ""), now),
        started_at=moment(record.get("START_TIME", ""), now),
        ended_at=moment(record.get("FINISH_TIME", ""), now),
        number=int(index) - 1 if index.isdecimal() and int(index) > 0 else None,
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
    if match is None:
        return None
    this_year = time.localtime(now).tm_year
    for year in [match[3]] if match[3] else [this_year, this_year - 1]:
        for clock in ("%H:%M", "%H:%M:%S"):
            try:
                found = time.mktime(time.strptime(f"{match[1]} {match[2]} {year}", f"%b %d {clock} %Y"))
            except (ValueError, OverflowError):
                continue
            if match[3] or found <= now + 86400:
                return found
    return None


# ---- what bjobs has forgotten


_JOB = re.compile(r"^Job <(\d+)(?:\[(\d+)\])?>,(?: Job Name <([^>]*)>,)?", re.M)
_EVENT = re.compile(r"^(\w{3} \w{3} +\d+ \d+:\d+:\d+(?: \d{4})?): (.*)$", re.M)


def jobs_from_history(text: str, now: float) -> dict[str, NativeJob]:
    """Read `bhist -n 0 -UF`: jobs that have ended, by id; others are left out."""
    matches = list(_JOB.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    parts = [
        _part(
            match[1],
            {
                "JOBINDEX": match[2] or "0",
                "JOB_NAME": match[3] or "",
                **_history(text[match.start() : end]),
            },
            now,
        )
        for match, end in zip(matches, ends, strict=False)
    ]
    return {number: job for number, job in combined(parts).items() if is_terminal(job.state)}


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

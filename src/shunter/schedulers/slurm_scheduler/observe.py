"""Read the output of squeue, sacct and sinfo, of old and new versions of Slurm. Pure functions of text.

Text is requested in a format of ours, since its fields have been the same for many years, and since ``squeue
--json`` lists all jobs of all users before 23.02. From 23.11 on, JSON is requested, which contains more. Its
schema changes: states became lists (data parser 0.0.40), numbers became ``{"set", "infinite", "number"}``
(0.0.39). Both forms are read here; unknown fields are ignored.
"""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shunter.schedulers.hpc.queries import PRECEDENCE, NativeJob, NativeReplica
from shunter.schedulers.slurm_scheduler.reasons import reason_of, state_of
from shunter.specs.status import AppState, is_terminal

#: The fields of squeue's text, see squeue(1), --format. The reason comes last but one: it may hold any
#: character.
QUEUE_FORMAT = "%A|%i|%j|%T|%N|%V|%S|%e|%u|%k|%r"
#: The fields of sacct's text, see sacct(1), --format.
ACCOUNTING_FIELDS = "JobIDRaw,JobID,JobName,State,ExitCode,NodeList,Submit,Start,End,Reason"
#: The format in which both are asked to write times.
TIME_FORMAT = "%s"
#: From this version on, squeue's JSON contains only the requested jobs, with states as lists.
JSON_SINCE = (23, 11)


@dataclass
class QueueEntry:
    """One job, array task or component of a heterogeneous job, in one run.

    ``task`` is a text of indices such as ``0-3,7%2`` for tasks that have not been started; "" for other jobs.
    """

    job_id: str
    name: str
    native_state: str
    state: AppState
    reason: str
    task: str = ""
    component: int | None = None
    nodes: str = ""
    exit_code: int | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    restarts: int = 0
    raw_id: str = ""

    def __post_init__(self) -> None:
        if not expand_hosts(self.nodes):
            self.started_at = None  # Slurm gives the end of a job that never ran as its start, too


@dataclass
class StepPlace:
    """Where srun can start a step: a job, a node, and a component of heterogeneous jobs (None in others)."""

    job_id: str
    host: str
    component: int | None = None


@dataclass
class SlurmJob(NativeJob):
    """A submission, with the place of a step beside each task of an array, or on each node."""

    places: dict[int, StepPlace] = field(default_factory=dict)


# ---- jobs


def jobs_of(entries: Iterable[QueueEntry]) -> list[SlurmJob]:
    """Combine array tasks and components of heterogeneous jobs into one value for each submission.

    Of several entries of the same thing, such as the runs of a requeued job, the last one counts.
    """
    grouped: dict[str, dict[tuple[str, int | None], QueueEntry]] = {}
    for entry in entries:
        grouped.setdefault(entry.job_id, {})[entry.task, entry.component] = entry
    return [_job(job_id, list(parts.values())) for job_id, parts in grouped.items()]


def _job(job_id: str, parts: list[QueueEntry]) -> SlurmJob:
    tasks: dict[int, QueueEntry] = {}
    # tasks that have been started come after the rest of the array, or have their own text
    for entry in parts:
        for task in task_indices(entry.task):
            if task not in tasks or not entry.task or entry.task.isdecimal():
                tasks[task] = entry
    units = list(tasks.values()) or parts
    leader = _leader(units)
    job = SlurmJob(
        native_id=job_id,
        app_id=leader.name,
        state=leader.state,
        native_state=leader.native_state,
        reason=reason_of(leader.native_state, leader.reason),
        exit_code=leader.exit_code,
        submitted_at=_first(entry.submitted_at for entry in units),
        started_at=_first(entry.started_at for entry in units),
        ended_at=max((entry.ended_at or 0 for entry in units), default=0) or None,
        restarts=max(entry.restarts for entry in units),
    )
    if not is_terminal(job.state):
        job.ended_at = None
    if tasks:
        job.replicas = {
            task: NativeReplica(
                entry.state,
                entry.exit_code,
                next(iter(expand_hosts(entry.nodes)), ""),
                reason_of(entry.native_state, entry.reason),
            )
            for task, entry in tasks.items()
        }
        job.places = {task: StepPlace(tasks[task].raw_id, said.host) for task, said in job.replicas.items()}
    else:
        places = [
            StepPlace(entry.raw_id if entry.component is None else job_id, host, entry.component)
            for entry in sorted(units, key=lambda entry: entry.component or 0)
            for host in expand_hosts(entry.nodes)
        ]
        job.hosts = [place.host for place in places]
        job.places = dict(enumerate(places))
    return job


def _first(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time), default=None)


def _leader(units: list[QueueEntry]) -> QueueEntry:
    """Return the task or component whose state stands for the whole submission."""
    open_ones = [entry for entry in units if not is_terminal(entry.state)]
    if open_ones:
        found = min(open_ones, key=lambda entry: PRECEDENCE.index(entry.state))
        if found.native_state == "COMPLETING":  # one that is about to end says nothing of the others
            found = next((entry for entry in open_ones if entry.native_state == "RUNNING"), found)
        if found.state == AppState.PENDING and len(open_ones) < len(units):
            found = copy.copy(found)
            found.state = AppState.RUNNING  # some have ended: the job is under way
        return found
    return min(units, key=lambda entry: PRECEDENCE.index(entry.state))


def task_indices(text: str) -> list[int]:
    """Return the indices in a text such as ``0-3,7,10-20:5%2``; [] if there are none."""
    found: list[int] = []
    for part in text.split("%")[0].strip("[]").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
        if match:
            last = int(match[2] or match[1])
            found += range(int(match[1]), last + 1, int(match[3] or 1))
    return found


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a list such as ``n[1-2,07],login1``, in order."""
    hosts: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):  # at the commas that are not in brackets
        match = re.match(r"([^\[]*)\[([^\]]*)\](.*)\Z", part)
        if match is None:
            hosts += [part] if part not in ("", "(null)", "None assigned", "None") else []
            continue
        for item in match[2].split(","):
            first, _, last = item.partition("-")
            for number in range(int(first), int(last or first) + 1):
                hosts += expand_hosts(f"{match[1]}{number:0{len(first)}d}{match[3]}")
    return hosts


# ---- text


def queue_from_text(text: str) -> list[QueueEntry]:
    """Read squeue's text of `QUEUE_FORMAT`. Truncated lines are left out: a missing job has not ended."""
    entries = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < 11:
            continue
        # a name or comment may have the separator; the ids, and what has a fixed form, do not
        raw, job_id, rest = fields[0], fields[1], fields[2:]
        at = next((i for i, word in enumerate(rest) if i and _is_state(word) and _is_time(rest, i + 2)), 1)
        name, (state, nodes, submitted, started, ended) = "|".join(rest[:at]), rest[at : at + 5]
        reason = rest[-1]
        base, task, component = split_id(job_id)
        ours, native = state_of(state)
        entries.append(
            QueueEntry(
                base,
                name,
                native,
                ours,
                reason,
                task,
                component,
                nodes,
                None,
                seconds(submitted),
                seconds(started) if ours != AppState.PENDING else None,
                seconds(ended) if is_terminal(ours) else None,
                raw_id=raw,
            )
        )
    return entries


def accounting_from_text(text: str) -> list[QueueEntry]:
    """Read sacct's --parsable2 text of `ACCOUNTING_FIELDS`."""
    entries = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < 10 or fields[0] == "JobIDRaw" or "." in fields[0]:
            continue
        raw, job_id = fields[:2]
        at = next(
            (i for i in range(3, len(fields) - 1) if _is_state(fields[i]) and _EXIT.fullmatch(fields[i + 1])),
            3,
        )
        if len(fields) - at < 7:
            continue
        name = "|".join(fields[2:at])
        state, exit_code, nodes, submitted, started, ended = fields[at : at + 6]
        reason = "|".join(fields[at + 6 :])
        base, task, component = split_id(job_id)
        ours, native = state_of(state)
        by = re.match(r"CANCELLED by (\S+)", state)
        entries.append(
            QueueEntry(
                base,
                name,
                native,
                ours,
                reason if not by else "",
                task,
                component,
                nodes,
                exit_code_of(exit_code) if is_terminal(ours) else None,
                seconds(submitted),
                seconds(started),
                seconds(ended) if is_terminal(ours) else None,
                raw_id=raw,
            )
        )
    return entries


_EXIT = re.compile(r"\d+:\d+")


def _is_state(word: str) -> bool:
    return re.fullmatch(r"[A-Z][A-Z_]+\+?( by \S+)?", word) is not None


def _is_time(fields: list[str], index: int) -> bool:
    return index < len(fields) and (fields[index] in ("N/A", "Unknown") or seconds(fields[index]) is not None)


def split_id(text: str) -> tuple[str, str, int | None]:
    """Split a job's id as it is printed into id, tasks and component: ``4_[2-5%2]``, ``4_0``, ``6+1``."""
    base, _, task = text.partition("_")
    if task:
        return base, task.strip("[]"), None
    base, _, component = text.partition("+")
    return base, "", int(component) if component.isdecimal() else None


def exit_code_of(text: str) -> int | None:
    """Return the exit code of ``CODE:SIGNAL``, 128 + N after signal N."""
    code, _, signal = text.partition(":")
    if not code.isdecimal():
        return None
    return 128 + int(signal) if signal.isdecimal() and int(signal) else int(code)


def seconds(text: str) -> float | None:
    """Return a time as seconds since the epoch, None if it is not known; local times are taken too."""
    if text.isdecimal():
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


# ---- JSON


def queue_from_json(text: str) -> list[QueueEntry]:
    """Read ``squeue --json``.

    Raises:
        ValueError: it is not JSON, or has no jobs.
    """
    document = json.loads(text)
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list):
        raise ValueError("there is no list of jobs")  # noqa: TRY004 - it is the text that is wrong
    return [
        _queue_entry(job) for job in jobs if isinstance(job, dict) and number(job.get("job_id")) is not None
    ]


def _queue_entry(job: dict[str, Any]) -> QueueEntry:
    state, native = state_of(job.get("job_state") or "")
    array, het = number(job.get("array_job_id")), number(job.get("het_job_id"))
    task = number(job.get("array_task_id"))
    tasks = str(job.get("array_task_string") or "") if task is None else str(task)
    raw = str(number(job["job_id"]))
    return QueueEntry(
        job_id=str(array or het or raw),
        name=str(job.get("name") or ""),
        native_state=native,
        state=state,
        reason=str(job.get("state_reason") or ""),
        task=tasks if array else "",
        component=number(job.get("het_job_offset")) if het else None,
        nodes=str(job.get("nodes") or ""),
        exit_code=_exit_code(job.get("exit_code")) if is_terminal(state) else None,
        submitted_at=number(job.get("submit_time")) or None,
        started_at=(number(job.get("start_time")) or None) if state != AppState.PENDING else None,
        ended_at=(number(job.get("end_time")) or None) if is_terminal(state) else None,
        restarts=number(job.get("restart_cnt")) or 0,
        raw_id=raw,
    )


def number(value: Any) -> int | None:
    """Return a number of Slurm's JSON: plain, or ``{"set", "infinite", "number"}``; None if it is not set."""
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set", True):
            return None
        value = value.get("number", value.get("id"))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value)


def _exit_code(value: Any) -> int | None:
    """Return an exit code: a wait status before 23.02, an object later."""
    if not isinstance(value, dict):
        status = number(value)
        if status is None:
            return None
        return 128 + (status & 127) if status & 127 else status >> 8
    signal = value.get("signal") or {}
    if isinstance(signal, dict):
        signal = signal.get("id", signal.get("signal_id"))
    killed = number(signal)
    return 128 + killed if killed else number(value.get("return_code"))


# ---- versions and partitions


def version_of(text: str) -> tuple[int, int]:
    """Return the version in ``slurm 24.05.3`` or ``slurm-wlm 22.05.8``; (0, 0) if it is not found."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


#: The fields of sinfo's text, see sinfo(1), --format: nodes of a partition that are alike share a line.
PARTITION_FORMAT = "%P|%a|%l|%L|%D|%c|%m|%G|%T"


@dataclass
class PartitionNodes:
    """Nodes of a partition that are alike. Times are Slurm's texts; ``default_time`` may be ``n/a``."""

    partition: str
    is_up: bool
    max_time: str
    default_time: str
    count: int
    cpus: int
    memory: int
    gpus: int
    state: str


def partitions_from_text(text: str) -> list[PartitionNodes]:
    """Read sinfo's text of `PARTITION_FORMAT`."""
    found = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 9:
            continue
        name, availability, most, default, count, cpus, memory, gres, state = fields
        found.append(
            PartitionNodes(
                name,
                availability == "up",
                most,
                default,
                _leading(count),
                _leading(cpus),
                _leading(memory),
                gpus_in(gres),
                state.rstrip("*~#!%$@^-+"),
            )
        )
    return found


def gpus_in(gres: str) -> int:
    """Return how many GPUs are in a text such as ``gpu:h100:4(S:0-1),nvme:1``."""
    total = 0
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, _, rest = part.partition(":")
        count = rest.rpartition(":")[2] or "1"
        if name == "gpu":
            total += int(count) if count.isdecimal() else 1
    return total


def _leading(text: str) -> int:
    match = re.match(r"\d+", text)  # "8+" means at least 8
    return int(match[0]) if match else 0


def minutes(text: str) -> float | None:
    """Return a time limit in minutes; None for one without an end or not known.

    sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes,
    days-hours:minutes:seconds.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        return None
    days, first, second, third = (int(part) if part is not None else None for part in match.groups())
    if days is not None:
        return days * 1440 + (first or 0) * 60 + (second or 0) + (third or 0) / 60
    if third is not None:
        return (first or 0) * 60 + (second or 0) + third / 60
    return (first or 0) + (second or 0) / 60


def position_from_text(text: str, job_id: str) -> str:
    """Return a job's place among the waiting ones, and its planned start, in words; "" if it is not there.

    Args:
        text: lines ``ID START`` of ``squeue --start``, the job of the highest priority first.
        job_id: the job.
    """
    jobs: dict[str, str] = {}
    for line in text.splitlines():
        native_id, _, start = line.strip().partition(" ")
        jobs.setdefault(native_id, start)
    if job_id not in jobs:
        return ""
    place = list(jobs).index(job_id) + 1
    start = jobs[job_id] if jobs[job_id] not in ("", "N/A") else "not planned yet"
    return f"number {place} of {len(jobs)} waiting jobs in its partition; start: {start}"

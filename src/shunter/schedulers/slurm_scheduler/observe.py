"""Read the output of squeue, sacct and sinfo. Pure functions of text.

Text is requested in a format of ours: its fields have been the same for many years, in contrast to those of
``--json``, whose schema differs between versions and which lists all jobs of all users before 23.02.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from shunter.schedulers.hpc.queries import NativeJob, combined, numbers_in
from shunter.schedulers.slurm_scheduler.reasons import reason_of, state_of
from shunter.specs.status import AppState, is_terminal

#: The same fields of squeue, which has no exit codes, and of sacct: squeue(1) and sacct(1), --format.
#: The name comes last, since it may contain the separator.
QUEUE_FORMAT = "%A|%i|%T|%N|%V|%S|%e|%r||%j"
ACCOUNTING_FIELDS = "JobIDRaw,JobID,State,NodeList,Submit,Start,End,Reason,ExitCode,JobName"
#: The format in which both are asked to write times.
TIME_FORMAT = "%s"


@dataclass
class SlurmJob(NativeJob):
    """A submission, or a part of it: tasks of an array, a component of a heterogeneous job (None in others).

    ``raw_id`` is the id of the part alone, which srun takes.
    """

    raw_id: str = ""
    component: int | None = None


def jobs_from_text(text: str) -> dict[str, NativeJob]:
    """Read the text of squeue or sacct: submissions by id.

    Truncated lines are left out: a missing job has not ended. Of several entries of the same thing, such as
    the runs of a requeued job, the last one counts.
    """
    parts: dict[tuple[str, int | None, int | None], SlurmJob] = {}
    for line in text.splitlines():
        fields = line.split("|", 9)
        if len(fields) < 10 or not fields[0].isdecimal():  # such as a step of sacct
            continue
        for part in _parts(*fields):
            parts[part.native_id, part.number, part.component] = part
    return combined(parts.values())


def _parts(
    raw_id: str,
    job_id: str,
    said: str,
    nodes: str,
    submitted: str,
    started: str,
    ended: str,
    reason: str,
    exit_code: str,
    name: str,
) -> Iterable[SlurmJob]:
    """Yield what one line tells of: one part, or each of the tasks that have not been started."""
    state, native_state = state_of(said)
    hosts = expand_hosts(nodes)
    # the id is printed as 4, 4_0, 4_[2-5%2] or 6+1; tasks that have been started have lines of their own
    base, _, task = job_id.partition("_")
    base, _, component = base.partition("+")
    numbers: list[int | None] = [*numbers_in(task.partition("%")[0].strip("[]"))]
    for number in numbers or [None]:
        yield SlurmJob(
            native_id=base,
            app_id=name,
            state=state,
            native_state=native_state,
            reason=reason_of(native_state, "" if said.startswith("CANCELLED by") else reason),
            exit_code=_exit_code(exit_code) if is_terminal(state) else None,
            hosts=hosts,
            submitted_at=_seconds(submitted),
            # of a job that waits it is planned, and of one that never ran it is the end
            started_at=_seconds(started) if hosts and state != AppState.PENDING else None,
            ended_at=_seconds(ended) if is_terminal(state) else None,
            number=number,
            raw_id=raw_id,
            component=int(component) if component.isdecimal() else None,
        )


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


def _exit_code(text: str) -> int | None:
    """Return the exit code of ``CODE:SIGNAL``, 128 + N after signal N."""
    code, _, signal = text.partition(":")
    if not code.isdecimal():
        return None
    return 128 + int(signal) if signal.isdecimal() and int(signal) else int(code)


def _seconds(text: str) -> float | None:
    """Return a time as seconds since the epoch, None if it is not known; local times are taken too."""
    if text.isdecimal():
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


# ---- partitions


#: The fields of sinfo's text, see sinfo(1), --format: nodes of a partition that are alike share a line.
PARTITION_FORMAT = "%P|%a|%l|%L|%D|%c|%m|%G|%T"


@dataclass
class PartitionNodes:
    """Nodes of a partition that are alike. Times are Slurm's texts; ``default_time`` may be ``n/a``."""

    partition: str
    is_default: bool
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
        name, availability, most, default, *amounts, gres, state = fields
        count, cpus, memory = (
            int((re.match(r"\d+", text) or ["0"])[0]) for text in amounts
        )  # "8+": at least 8
        found.append(
            PartitionNodes(
                name.rstrip("*"),
                name.endswith("*"),
                availability == "up",
                most,
                default,
                count,
                cpus,
                memory,
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

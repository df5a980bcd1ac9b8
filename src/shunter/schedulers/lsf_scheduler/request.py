"""Make the LSF script of a job. Pure. Options: bsub(1) of 10.1, its -R, -gpu, -wa and -w pages."""

from __future__ import annotations

import math
import posixpath
import re

from shunter.errors import ConfigError
from shunter.schedulers.hpc.directives import Directives
from shunter.schedulers.hpc.follow_up_request import AFTER, JOB_NAME, MINUTES, QueueWords
from shunter.schedulers.hpc.request import JobPlan, cpus_of, ignored_fields
from shunter.schedulers.lsf_scheduler.options import COUNTED, PER_CORE, PER_JOB, LsfOpts
from shunter.schedulers.lsf_scheduler.reasons import STATES, TERMINATIONS
from shunter.specs.status import is_terminal

_TIME = re.compile(r"(?:(\d+):)?(\d+)")
#: The hosts of the job in lines "HOST SLOTS", rank 0's first: the host file has a line for each slot; where
#: there is none, LSB_MCPU_HOSTS has pairs.
_HOSTS = (
    'if [ -s "${LSB_DJOB_HOSTFILE:-}" ]; then awk \'NF { print $1, 1 }\' "$LSB_DJOB_HOSTFILE"; '
    'else echo "${LSB_MCPU_HOSTS:-$(hostname) 1}" | '
    "awk '{ for (i = 1; i < NF; i += 2) print $i, $(i + 1) }'; fi"
)
#: Runs a command on another host of the job, within its limits and its accounting.
_START = ("blaunch",)
_LONGEST_NAME = 4094
#: What bsub prints; other lines may precede it.
ID_PATTERN = r"Job <(\d+)> is submitted"


def make_script(plan: JobPlan, opts: LsfOpts) -> tuple[list[str], str]:
    """Return the submit command, and the script that goes to its standard input.

    Raises:
        ConfigError: LSF cannot run such a job.
    """
    roles = plan.app.roles
    if opts.mem_per not in COUNTED:
        raise ConfigError(f"mem_per must be one of {', '.join(COUNTED)}, not {opts.mem_per!r}")
    directives = Directives("#BSUB", opts.omit)
    directives.add("-J", _quoted(_name(plan, opts) if plan.is_array else plan.app_id))
    directives.add("-o", _quoted(plan.log_path("script.out")))
    directives.add("-r" if plan.retries else "-rn", "")
    for flag, value in (("-q", opts.queue), ("-P", opts.project), ("-g", opts.group), ("-app", opts.app)):
        directives.add(flag, None if value is None else _quoted(value))
    minutes = limit_minutes(opts.time)
    if minutes is not None:
        directives.add("-W", f"{minutes // 60}:{minutes % 60:02d}")
        warning = math.ceil(opts.grace_period / 60)
        if 0 < warning < minutes:
            directives.add("-wa", "USR2")
            directives.add("-wt", warning)
    _add_resources(directives, plan, opts)
    directives.add("-Q", None if opts.requeue is None else _quoted(opts.requeue))
    directives.add_native(opts.native)
    plan.warnings += [*ignored_fields("lsf", roles), *directives.warnings()]
    script = ["#!/bin/sh", *directives.lines(), "", *_body(plan)]
    return ["bsub"], "\n".join(script) + "\n"


#: Prints how a submission ended: LSF's termination reason if it names one, or else its state.
_LOOK = """\
bjobs -a -json -o 'stat exit_reason' "$1" 2>/dev/null | tr -d '\\n' | tr '}' '\\n' |
    sed -n '/TERM_/{s/.*\\(TERM_[A-Z_]*\\).*/native=\\1/p;d;}; s/.*"STAT" *: *"\\([A-Z_]*\\)".*/native=\\1/p'
"""


def queue_words(plan: JobPlan, opts: LsfOpts, command: list[str]) -> QueueWords:
    """Return LSF's words for a job's follow-up."""
    directives = Directives("#BSUB", opts.omit)
    directives.add("-J", JOB_NAME)
    directives.add("-o", _quoted(posixpath.join(plan.folder, "logs", "follow-up.out")))
    directives.add("-r", "")
    directives.add("-n", 1)
    directives.add("-W", f"0:{MINUTES:02d}")
    for flag, value in (("-q", opts.queue), ("-P", opts.project), ("-app", opts.app)):
        directives.add(flag, None if value is None else _quoted(value))
    directives.add_native(opts.follow_up_args)
    memory = max(role.resource.memMB for role in plan.app.roles)
    reserved = 1.0
    if opts.mem_per == PER_JOB:
        reserved = sum(count for _, count in plan.allocated)
    elif opts.mem_per == PER_CORE:
        reserved = 1 / min(cpus_of(role) for role, _ in plan.allocated)
    limit = ["-M", "%sMB"] if opts.mem_limit and opts.mem_per != PER_CORE else []
    return QueueWords(
        directives=["#!/bin/sh", *directives.lines()],
        submit=command,
        follow=[*command, "-w", f"ended({AFTER})"],
        id_pattern=ID_PATTERN,
        look=_LOOK,
        states={
            **dict.fromkeys(("DONE", "POST_DONE"), ("SUCCEEDED", "")),
            **dict.fromkeys(("EXIT", "POST_ERR"), ("", "")),
            **{name: (state.name, words) for name, (state, words) in TERMINATIONS.items()},
        },
        live=[name for name, state in STATES.items() if not is_terminal(state)],
        cancel=["bkill"],
        memory_option=[*limit, "-R", "rusage[mem=%sMB]"] if memory > 0 else [],
        memory_factor=reserved,
        exclude_option=["-R", "select[%s]"],
        exclude_item="hname!='%s'",
        exclude_separator=" && ",
    )


def limit_minutes(text: str | None) -> int | None:
    """Return a time limit in minutes.

    Raises:
        ConfigError: it is not MINUTES or HOURS:MINUTES.
    """
    if text is None or not text.strip():
        return None
    match = _TIME.fullmatch(text.strip())
    minutes = int(match[1] or 0) * 60 + int(match[2]) if match else 0
    if minutes <= 0:
        raise ConfigError(
            f"time={text!r} is not a time limit of LSF",
            hint="Write it in minutes or as HOURS:MINUTES: 12:00.",
        )
    return minutes


def _name(plan: JobPlan, opts: LsfOpts) -> str:
    throttle = "" if opts.max_running is None else f"%{opts.max_running}"
    return f"{plan.app_id}[1-{plan.replicas}]{throttle}"


def _add_resources(directives: Directives, plan: JobPlan, opts: LsfOpts) -> None:
    roles = plan.app.roles
    directives.add("-n", sum(cpus_of(role) * count for role, count in plan.allocated))
    sizes = {cpus_of(role) for role, _ in plan.allocated}
    if not plan.is_gang:
        directives.add("-R", _quoted("span[hosts=1]"))
    elif len(sizes) == 1:
        directives.add("-R", _quoted(f"span[ptile={sizes.pop()}]"))  # a host for each replica
    memory = max(role.resource.memMB for role in roles)
    if memory > 0:
        reserved = memory
        if opts.mem_per == PER_JOB:
            reserved = memory = sum(max(role.resource.memMB, 0) * count for role, count in plan.allocated)
        elif opts.mem_per == PER_CORE:  # of reservations; -M limits a process, or a job, never a core
            reserved = max(math.ceil(role.resource.memMB / cpus_of(role)) for role, _ in plan.allocated)
        directives.add("-M", f"{memory}MB" if opts.mem_limit else None)
        directives.add("-R", _quoted(f"rusage[mem={reserved}MB]"))
    gpus = max(role.resource.gpu for role in roles)
    if gpus > 0:
        more = f":{opts.gpu_mode}" if opts.gpu_mode else ""
        directives.add("-gpu", _quoted(f"num={gpus}{more}"))
    directives.add("-R", None if opts.resources is None else _quoted(opts.resources))


def _body(plan: JobPlan) -> list[str]:
    return [
        "export SHUNTER_WARNING_SIGNALS='USR2 XCPU'  # -wa, and LSF's own at the end of the time",
        "trap : INT TERM USR2 XCPU  # the queue signals this shell, too; it waits for what it started",
        *plan.start_lines("LSB_JOBINDEX-1", _HOSTS, _START),
    ]


def _quoted(text: str) -> str:
    """Quote a value of a line, if it needs it; bsub reads lines as a shell does."""
    if '"' in text or len(text) > _LONGEST_NAME:
        raise ConfigError(
            f"LSF's options cannot have a quotation mark, or {_LONGEST_NAME} characters: {text!r}"
        )
    return text if re.fullmatch(r"[\w./:@%+=,-]+", text) else f'"{text}"'

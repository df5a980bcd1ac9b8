"""Make the LSF script of a job. Pure. Options: bsub(1) of 10.1, its -R, -gpu, -wa and -w pages."""

from __future__ import annotations

import math
import re

from shunter.errors import ConfigError
from shunter.schedulers.hpc.directives import directives
from shunter.schedulers.hpc.follow_up_request import JOB_NAME, MINUTES, QueueWords
from shunter.schedulers.hpc.options import PER_HOST, PER_JOB
from shunter.schedulers.hpc.request import JobPlan, cpus_of, ignored_fields
from shunter.schedulers.lsf_scheduler.options import COUNTED, PER_CORE, LsfOpts
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


def make_script(plan: JobPlan, opts: LsfOpts) -> tuple[list[str], str]:
    """Return the submit command, and the script that goes to its standard input.

    Raises:
        ConfigError: LSF cannot run such a job.
    """
    if opts.mem_per not in COUNTED:
        raise ConfigError(f"mem_per must be one of {', '.join(COUNTED)}, not {opts.mem_per!r}")
    minutes = limit_minutes(opts.time)
    warning = math.ceil(opts.grace_period / 60)
    is_warned = minutes is not None and 0 < warning < minutes
    lines, warnings = directives(
        "#BSUB",
        [
            ("-J", _quoted(_name(plan, opts) if plan.is_array else plan.app_id)),
            ("-o", _quoted(plan.log_path("script.out"))),
            ("-r" if plan.retries else "-rn", ""),
            ("-q", _quoted(opts.queue)),
            ("-P", _quoted(opts.project)),
            ("-g", _quoted(opts.group)),
            ("-app", _quoted(opts.app)),
            ("-W", None if minutes is None else f"{minutes // 60}:{minutes % 60:02d}"),
            ("-wa", "USR2" if is_warned else None),
            ("-wt", warning if is_warned else None),
            *_resources(plan, opts),
            ("-R", _quoted(opts.resources)),
            ("-Q", _quoted(opts.requeue)),
        ],
        opts.omit,
        opts.native,
    )
    plan.warnings += [*ignored_fields("lsf", plan.app.roles), *warnings]
    return ["bsub"], "\n".join(["#!/bin/sh", *lines, "", *_body(plan)]) + "\n"


#: Prints how a submission ended: LSF's termination reason if it names one, or else its state.
_LOOK = """\
bjobs -a -json -o 'stat exit_reason' "$1" 2>/dev/null | tr -d '\\n' | tr '}' '\\n' |
    sed -n '/TERM_/{s/.*\\(TERM_[A-Z_]*\\).*/native=\\1/p;d;}; s/.*"STAT" *: *"\\([A-Z_]*\\)".*/native=\\1/p'
"""


def queue_words(plan: JobPlan, opts: LsfOpts, command: list[str]) -> QueueWords:
    """Return LSF's words for a job's follow-up."""
    lines, _ = directives(
        "#BSUB",
        [
            ("-J", JOB_NAME),
            ("-o", _quoted(plan.log_path("follow-up.out"))),
            ("-r", ""),
            ("-n", 1),
            ("-W", f"0:{MINUTES:02d}"),
            ("-q", _quoted(opts.queue)),
            ("-P", _quoted(opts.project)),
            ("-app", _quoted(opts.app)),
        ],
        opts.omit,
        opts.follow_up_args,
    )
    has_memory = any(role.resource.memMB > 0 for role in plan.app.roles)
    limit = ["-M", "%sMB"] if opts.mem_limit and opts.mem_per != PER_CORE else []
    return QueueWords(
        directives=["#!/bin/sh", *lines],
        submit=command,
        look=_LOOK,
        states={
            **dict.fromkeys(("DONE", "POST_DONE"), ("SUCCEEDED", "")),
            **dict.fromkeys(("EXIT", "POST_ERR"), ("", "")),
            **{name: (state.name, words) for name, (state, words) in TERMINATIONS.items()},
        },
        live=[name for name, state in STATES.items() if not is_terminal(state)],
        cancel=["bkill"],
        memory_option=[*limit, "-R", "rusage[mem=%sMB]"] if has_memory else [],
        memory_factor=plan.memory_factor(opts.mem_per),
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


def _resources(plan: JobPlan, opts: LsfOpts) -> list[tuple[str, object]]:
    sizes = {cpus_of(role) for role, _ in plan.allocated}
    span = "span[hosts=1]"
    if plan.is_gang:  # a host for each replica, where they are alike
        span = f"span[ptile={max(sizes)}]" if len(sizes) == 1 else ""
    reserved = math.ceil(plan.amount(lambda role: role.resource.memMB, opts.mem_per))
    # -M limits a process, or a job, never a core
    per = PER_JOB if opts.mem_per == PER_JOB else PER_HOST
    limit = math.ceil(plan.amount(lambda role: role.resource.memMB, per))
    gpus = max(role.resource.gpu for role in plan.app.roles)
    more = f":{opts.gpu_mode}" if opts.gpu_mode else ""
    return [
        ("-n", sum(cpus_of(role) * count for role, count in plan.allocated)),
        ("-R", _quoted(span or None)),
        ("-M", f"{limit}MB" if limit and opts.mem_limit else None),
        ("-R", _quoted(f"rusage[mem={reserved}MB]") if reserved else None),
        ("-gpu", _quoted(f"num={gpus}{more}") if gpus > 0 else None),
    ]


def _body(plan: JobPlan) -> list[str]:
    return [
        "export SHUNTER_WARNING_SIGNALS='USR2 XCPU'  # -wa, and LSF's own at the end of the time",
        "trap : INT TERM USR2 XCPU  # the queue signals this shell, too; it waits for what it started",
        *plan.start_lines("LSB_JOBINDEX-1", _HOSTS, _START),
    ]


def _quoted(text: str | None) -> str | None:
    """Quote a value of a line, if it needs it; bsub reads lines as a shell does."""
    if text is None:
        return None
    if '"' in text or len(text) > _LONGEST_NAME:
        raise ConfigError(
            f"LSF's options cannot have a quotation mark, or {_LONGEST_NAME} characters: {text!r}"
        )
    return text if re.fullmatch(r"[\w./:@%+=,-]+", text) else f'"{text}"'

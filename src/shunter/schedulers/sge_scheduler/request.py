"""Make the Grid Engine script of a job. Pure. Options: qsub(1), complex(5), sge_pe(5)."""

from __future__ import annotations

import math
import re
import shlex

from shunter.errors import ConfigError
from shunter.schedulers.hpc.directives import directives
from shunter.schedulers.hpc.follow_up_request import JOB_NAME, MINUTES, QueueWords
from shunter.schedulers.hpc.request import JobPlan, cpus_of, ignored_fields
from shunter.schedulers.hpc.shared_folder import RUN_SCRIPT
from shunter.schedulers.sge_scheduler.options import COUNTED, PER_SLOT, SgeOpts
from shunter.schedulers.sge_scheduler.reasons import BY_EXIT_CODE, ENDS

_TIME = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+)")
#: The hosts of a parallel job and their slots: the first two columns of sge_pe(5)'s file.
_HOSTS = "awk '{ print $1, $2 }' \"$PE_HOSTFILE\""
#: Runs a command on another host of the job, within its limits and its accounting.
_START = ("qrsh", "-inherit", "-nostdin")
#: What it writes when that host is lost; it may well end with 0 then.
_LOST = "commlib error: got read error"
_MOST_PRIORITY = 1024


def make_script(plan: JobPlan, opts: SgeOpts) -> tuple[list[str], str]:
    """Return the submit command, and the script that goes to its standard input.

    Raises:
        ConfigError: Grid Engine, or this site's, cannot run such a job.
    """
    _check(opts)
    seconds = limit_seconds(opts.time)
    warning = (seconds or 0) - int(opts.grace_period)
    is_warned = seconds is not None and 0 < warning < seconds
    lines, warnings = directives(
        "#$",
        [
            ("-N", job_name(plan.app_id)),
            ("-S", "/bin/sh"),
            ("-o", _word(f":{plan.log_path('script.out')}")),
            ("-j", "y"),
            ("-r", "y" if plan.retries else "n"),
            ("-notify", ""),
            *_place(opts),
            ("-p", opts.priority),
            ("-R", "y" if opts.reserve else None),
            ("-M", opts.mail),
            ("-m", opts.mail_on),
            ("-l", None if seconds is None else f"h_rt={seconds}"),
            ("-l", f"s_rt={warning}" if is_warned else None),
            ("-pe", _slots(plan, opts)),
            *_resources(plan, opts),
            ("-t", f"1-{plan.replicas}" if plan.is_array else None),
            ("-tc", opts.max_running if plan.is_array else None),
        ],
        opts.omit,
        opts.native,
    )
    plan.warnings += [*ignored_fields("sge", plan.app.roles), *warnings]
    return ["qsub", "-terse"], "\n".join(["#!/bin/sh", *lines, "", *_body(plan)]) + "\n"


#: Prints how a submission ended: "live" while the queue has it, "deleted", or "failed" of accounting(5).
_LOOK = """\
if qstat -j "$1" >/dev/null 2>&1; then
    echo native=live
else
    qacct -j "$1" 2>/dev/null | awk '
        /^failed / { failed = $2 } /^deleted_by / { by = $2 }
        /^exit_status / {
            print "native=" (by != "" && by != "NONE" && by != "undefined" ? "deleted" : failed)
            by = ""
        }'
fi
"""
#: Puts Grid Engine's programs on the PATH of a host that runs jobs.
_SETTINGS = """\
settings="${SGE_ROOT:-}/${SGE_CELL:-default}/common/settings.sh"
[ ! -r "$settings" ] || . "$settings"
"""
_ON_HOST = f'{_SETTINGS}exec "$@"'


def queue_words(plan: JobPlan, opts: SgeOpts, command: list[str]) -> QueueWords:
    """Return Grid Engine's words for a job's follow-up."""
    lines, _ = directives(
        "#$",
        [
            ("-N", JOB_NAME),
            ("-S", "/bin/sh"),
            ("-o", _word(f":{plan.log_path('follow-up.out')}")),
            ("-j", "y"),
            ("-r", "y"),
            *_place(opts),
            ("-l", f"h_rt={MINUTES * 60}" if opts.time else None),
        ],
        opts.omit,
        opts.follow_up_args,
    )
    submit = ["sh", "-c", _ON_HOST, "sh", *command]
    has_memory = opts.memory and any(role.resource.memMB > 0 for role in plan.app.roles)
    return QueueWords(
        directives=["#!/bin/sh", *lines],
        submit=submit,
        look=_SETTINGS + _LOOK,
        states={
            **dict.fromkeys(BY_EXIT_CODE, ("", "")),
            **{end: (state.name, text) for end, (state, text) in ENDS.items()},
        },
        live=["live"],
        cancel=["sh", "-c", _ON_HOST, "sh", "qdel"],
        memory_option=["-l", f"{opts.memory}=%sM"] if has_memory else [],
        memory_factor=plan.memory_factor(opts.mem_per),
        exclude_option=["-l", "h=%s"],
        exclude_item="!%s",
        exclude_separator="&",
    )


def job_name(app_id: str) -> str:
    """Return the name that a job has in Grid Engine: names do not begin with a digit there."""
    return f"_{app_id}" if app_id[:1].isdigit() else app_id


def limit_seconds(text: str | None) -> int | None:
    """Return a time limit in seconds.

    Raises:
        ConfigError: it is not SECONDS or [HOURS:]MINUTES:SECONDS.
    """
    if text is None or not text.strip():
        return None
    match = _TIME.fullmatch(text.strip())
    parts = match.groups() if match else ()
    seconds = sum(int(part or 0) * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if seconds <= 0:
        raise ConfigError(
            f"time={text!r} is not a time limit",
            hint="Write it as HOURS:MINUTES:SECONDS or in seconds: 12:00:00.",
        )
    return seconds


def _check(opts: SgeOpts) -> None:
    problems = [
        f"{name} must be one of {', '.join(COUNTED)}, not {value!r}"
        for name, value in (("mem_per", opts.mem_per), ("gpu_per", opts.gpu_per))
        if value not in COUNTED
    ]
    problems += [  # further words of such a line would be further options
        f"{name} must be one word, not {value!r}"
        for name in ("pe", "smp_pe", "memory", "gpu", "mail", "mail_on")
        if len((value := getattr(opts, name) or "").split()) > 1
    ]
    if opts.priority is not None and not -_MOST_PRIORITY < opts.priority <= _MOST_PRIORITY:
        problems.append(f"priority={opts.priority} is not between -1023 and 1024")
    if problems:
        raise ConfigError("; ".join(problems))


def _place(opts: SgeOpts) -> list[tuple[str, object]]:
    given = (("-q", opts.queue), ("-P", opts.project), ("-A", opts.account))
    return [(flag, None if value is None else _word(value)) for flag, value in given]


def _slots(plan: JobPlan, opts: SgeOpts) -> str | None:
    """Return parallel environment and slots; None for a single slot."""
    slots = sum(cpus_of(role) * count for role, count in plan.allocated)
    if plan.is_gang and not opts.pe:
        raise ConfigError(
            f"{plan.replicas} replicas that run together need a parallel environment",
            hint="Name one that the site has for jobs on several hosts: -cfg pe=NAME (`shunter "
            "doctor -s sge` lists them). Replicas that need not run together: -cfg array=True.",
        )
    if slots > 1 and not plan.is_gang and not opts.smp_pe:
        raise ConfigError(
            f"a replica with {slots} cpus needs a parallel environment of one host",
            hint="Name one: -cfg smp_pe=NAME (`qconf -spl` lists them).",
        )
    environment = opts.pe if plan.is_gang else opts.smp_pe
    return f"{environment} {slots}" if plan.is_gang or slots > 1 else None


def _resources(plan: JobPlan, opts: SgeOpts) -> list[tuple[str, object]]:
    """Return the requests for memory and gpus, as the site counts them."""
    memory = math.ceil(plan.amount(lambda role: role.resource.memMB, opts.mem_per))
    gpus = plan.amount(lambda role: role.resource.gpu, opts.gpu_per)
    shares = {max(role.resource.gpu, 0) / cpus_of(role) for role, _ in plan.allocated}
    if opts.gpu and gpus and opts.gpu_per == PER_SLOT and (gpus % 1 or len(shares) > 1):
        raise ConfigError(
            "gpu_per=slot: the gpus of a replica must be a multiple of its cpus",
            hint="Sites that count gpus for each host or job: -cfg gpu_per=host or gpu_per=job.",
        )
    return [
        ("-l", f"{opts.memory}={memory}M" if opts.memory and memory else None),
        ("-l", f"{opts.gpu}={gpus:.0f}" if opts.gpu and gpus else None),
    ]


def _body(plan: JobPlan) -> list[str]:
    return [
        "export SHUNTER_WARNING_SIGNALS='USR1 XCPU'  # s_rt, s_cpu; USR2 (-notify) is the end",
        "trap : TERM USR1 USR2 XCPU  # the queue signals this shell, too; it waits for what it started",
        *plan.start_lines("SGE_TASK_ID-1", _HOSTS, _START, _LOST),
        "code=$?",
        *_again(plan),
        'case $code in 99 | 100) code=1 ;; esac  # to Grid Engine: "run it again", "repair the job"',
        'exit "$code"',
    ]


def _again(plan: JobPlan) -> list[str]:
    """Return the lines that ask Grid Engine to run the job again, on other hosts, after it has lost one."""
    if not plan.is_gang or not plan.retries:
        return []
    return [
        f"set -- {shlex.quote(f'{plan.folder}/state')}/lost.*",
        f'if [ "$code" != 0 ] && [ -e "$1" ] && [ $# -le {plan.retries} ]; then exit 99; fi  # "again"',
    ]


def _word(text: str) -> str:
    """Quote a value of a line: qsub splits lines at blanks, and knows double quotes."""
    if '"' in text:
        raise ConfigError(f"Grid Engine's options cannot have a quotation mark: {text!r}")
    return f'"{text}"' if re.search(r"\s", text) else text


def with_check(script: str, folder: str, others: list[str]) -> str:
    """Return a script that first checks whether the jobs in these folders succeeded, and gives up otherwise.

    ``-hold_jid`` alone waits for any end, not for success.
    """
    check = f"sh {shlex.quote(f'{folder}/{RUN_SCRIPT}')} require {shlex.join(others)} || exit 0\n"
    head, mark, rest = script.partition("\nexport SHUNTER_WARNING_SIGNALS")
    return f"{head}\n{check}{mark.lstrip()}{rest}"

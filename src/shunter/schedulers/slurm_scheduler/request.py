"""Make the Slurm script of a job. Pure: no command is run, so a dry run shows what will be submitted.

There are three kinds of jobs:

- Roles of equal shape share one allocation, in which each role is a job step (``srun --exact``).
- Roles of different shapes are the components of a heterogeneous job. It has a price: such jobs are
  preempted and backfilled badly, and cannot be arrays.
- Independent replicas are the tasks of an array, each with an allocation of its size.

Options of sbatch: sbatch(1), of srun: srun(1), both 22.05; heterogeneous jobs:
https://slurm.schedmd.com/heterogeneous_jobs.html. Pyxis: https://github.com/NVIDIA/pyxis.
"""

from __future__ import annotations

import math
import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from shunter.errors import ConfigError
from shunter.schedulers.hpc.follow_up_request import JOB_NAME, MINUTES, QueueWords
from shunter.schedulers.hpc.request import JobPlan
from shunter.schedulers.hpc.shared_folder import SCRIPT
from shunter.schedulers.slurm_scheduler import rules
from shunter.schedulers.slurm_scheduler.observe import minutes
from shunter.schedulers.slurm_scheduler.options import GRES, OCI, PYXIS, SlurmOpts
from shunter.schedulers.slurm_scheduler.reasons import FLAG_STATE, STATE_OF, STATE_TEXTS
from shunter.schedulers.slurm_scheduler.rules import Shape, shape_of
from shunter.specs.app import NO_IMAGE, Role
from shunter.specs.mounts import BindMount
from shunter.specs.retries import NODE, PREEMPTED
from shunter.specs.status import is_terminal

#: Runs sbatch with a few variables only, which the job then has too. Slurm keeps a job's environment, so
#: nothing else of it, such as credentials, may get there. `--export=NAMES` would do the same at a price: the
#: nodes run the user's login scripts first (--get-user-env), and a slow one delays or requeues the job.
CLEAN_ENVIRONMENT = """\
for name in $(env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do
    case $name in
    HOME | USER | LOGNAME | SHELL | PATH | LANG | LC_* | TZ | MODULEPATH | MODULESHOME | LD_LIBRARY_PATH) ;;
    KRB5CCNAME | SLURM_CONF | SLURM_CLUSTERS | SBATCH_* | MUNGE_*) ;;
    *) command unset "$name" 2>/dev/null ;;
    esac
done
exec "$@"
"""
#: What the batch script gets before the time limit; `run.sh` passes it on to the programs.
WARNING_SIGNAL = "USR1"
#: Slurm may send the signal a minute too early. If the limit is shorter, in minutes, the script sends it.
SHORTEST_WARNED = 2.0
RANK0 = '"$rank0"'
_BARE = frozenset({RANK0})

_RANK0_LINES = """\
# The first node of the allocation, by the name that the other nodes know it by.
rank0=$(scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null | head -n 1)
rank0=${rank0:-${SLURMD_NODENAME:-$(hostname)}}"""

_STEPS = """\
steps() {{
    # Each role is a step. The first that fails ends the others, and its exit code is the job's.
    local code=0 stopped= left={count}
    local -a nodes=({nodes})
    trap 'stopped=yes; kill -TERM $(jobs -rp) 2>/dev/null' TERM
{steps}
    while [ "$left" -gt 0 ]; do
        stopped=
        wait -n
        ended=$?
        [ -z "$stopped" ] || continue
        left=$((left - 1))
        if [ "$ended" != 0 ] && [ "$code" = 0 ]; then
            code=$ended
            kill -TERM $(jobs -rp) 2>/dev/null
        fi
    done
    return "$code"
}}
if [ "${{1:-}}" = steps ]; then
    steps
    exit
fi"""


def make_script(plan: JobPlan, opts: SlurmOpts) -> tuple[list[str], str]:
    """Return the submit command and the script.

    Raises:
        ConfigError: the job or its options do not fit Slurm.
    """
    rules.check(plan.app, opts)
    plan.warnings += rules.warnings(plan.app, opts)
    shapes = [shape_of(role) for role in plan.app.roles]
    if opts.array:
        body, groups = _array(plan, opts), [(shapes[0], 1)]
    elif any(shape != shapes[0] for shape in shapes):
        body = _gang(plan, opts, is_heterogeneous=True)
        groups = [(shape, role.num_replicas) for shape, role in zip(shapes, plan.app.roles, strict=True)]
    else:
        body, groups = _gang(plan, opts, is_heterogeneous=False), [(shapes[0], plan.replicas)]
    lines = ["#!/bin/bash"]
    for number, (shape, replicas) in enumerate(groups):
        if number:
            lines.append("#SBATCH hetjob")
        options = {
            **(_job_options(plan, opts) if number == 0 else {}),
            **_shape_options(opts, shape, replicas),
        }
        lines += [f"#SBATCH {line}" for line in merged(options, opts.sbatch_args or (), opts.omit or ())]
    command = ["sbatch", "--parsable", *(["--clusters=" + opts.clusters] if opts.clusters else [])]
    plan.details["slurm"] = {
        "heterogeneous": len(groups) > 1,
        "needs": rules.needs(opts, groups),
    }
    return command, "\n".join([*lines, "", *body]) + "\n"


# ---- the follow-up

#: Prints the states of a submission, of all its tasks or components; of one that the controller has forgotten
#: those that accounting has.
_LOOK = """\
found=$(scontrol -o show job "$1" 2>/dev/null | tr ' ' '\\n' | sed -n 's/^JobState=/native=/p' | sort -u)
if [ -z "$found" ]; then
    found=$(sacct -n -X -P -j "$1" -o State 2>/dev/null | sed 's/ .*//; s/^/native=/' | sort -u)
fi
printf '%s\\n' "$found"
"""
#: Options by which a site decides where a job may run; the small job that follows takes them over.
_PLACES = ("partition", "account", "qos", "reservation", "clusters", "wckey")


def queue_words(plan: JobPlan, opts: SlurmOpts, command: Sequence[str]) -> QueueWords:
    """Return Slurm's words for a job's follow-up.

    Raises:
        ConfigError: a job of roles with different needs is to be retried by class.
    """
    if opts.retry is not None and plan.details["slurm"]["heterogeneous"]:
        raise ConfigError(
            "retry: slurm cannot retry a job by class of failure if its roles need different resources",
            hint="Give all roles equal resources, or use --max_retries.",
        )
    has_memory = shape_of(plan.app.roles[0]).memory > 0
    options = {
        "job-name": JOB_NAME,
        "output": posixpath.join(plan.folder, "logs", "follow-up.out").replace("%", "%%"),
        "open-mode": "append",
        "export": "ALL",
        "requeue": True,
        "time": MINUTES,
        "ntasks": 1,
        "cpus-per-task": 1,
        "mem": "64M" if has_memory else None,
        **{name: getattr(opts, name, None) for name in _PLACES},
    }
    given = [word for word in opts.sbatch_args or () if word.removeprefix("--").partition("=")[0] in _PLACES]
    lines = merged(options, [*given, *(opts.follow_up_args or ())], opts.omit or ())
    clean = ["sh", "-c", CLEAN_ENVIRONMENT, command[0], *command]
    replicas = min(opts.replicas_per_node, plan.replicas)
    avoided = f"{opts.exclude},%s" if opts.exclude else "%s"
    return QueueWords(
        directives=["#!/bin/sh", *(f"#SBATCH {line}" for line in lines)],
        submit=clean,
        look=_LOOK,
        states={name: _end_of(name) for name, state in STATE_OF.items() if is_terminal(state)},
        live=[name for name, state in [*STATE_OF.items(), *FLAG_STATE.items()] if not is_terminal(state)],
        cancel=["scancel", *(["--clusters=" + opts.clusters] if opts.clusters else [])],
        memory_option=["--mem=%sM"] if has_memory else [],
        memory_factor=replicas,
        exclude_option=[f"--exclude={avoided}"],
        down=["sinfo", "-h", "-N", "-n", "@HOSTS@", "-t", "down,fail,drain,no_respond,unknown", "-o", "%N"],
    )


def _end_of(native_state: str) -> tuple[str, str]:
    """Return our state and a reason for a state of Slurm that is an end; "" where the records say more."""
    text = STATE_TEXTS.get(native_state, "")
    return ("" if native_state == "FAILED" else STATE_OF[native_state].name, text)


# ---- the lines for sbatch


def _job_options(plan: JobPlan, opts: SlurmOpts) -> dict[str, object]:
    """Return the options that apply to the whole job."""
    name = "slurm-%A_%a.out" if opts.array else "slurm-%j.out"
    is_warned = warning_seconds(opts) and not _is_short(opts)
    throttle = f"%{opts.max_running}" if opts.max_running else ""
    return {
        "job-name": plan.app_id,
        "output": posixpath.join(plan.folder, "logs").replace("%", "%%") + f"/{name}",
        "open-mode": "append",
        "export": "ALL",
        ("requeue" if opts.requeue and not _is_retried_by_node(opts) else "no-requeue"): True,
        "comment": opts.comment,
        "mail-user": opts.mail_user,
        "mail-type": opts.mail_type,
        "signal": f"B:{WARNING_SIGNAL}@{warning_seconds(opts)}" if is_warned else None,
        "array": f"0-{plan.replicas - 1}{throttle}" if opts.array else None,
    }


def _is_retried_by_node(opts: SlurmOpts) -> bool:
    """Tell whether the follow-up decides where a job that lost its nodes continues."""
    return bool({NODE, PREEMPTED} & {*(opts.retry or ())})


def warning_seconds(opts: SlurmOpts) -> int:
    """Return how long before the time limit programs are warned: the grace period, or half of the limit.

    0 for never.
    """
    limit = _limit_minutes(opts)
    seconds = math.ceil(opts.grace_period)
    return min(seconds, limit * 30) if limit else seconds


def _is_short(opts: SlurmOpts) -> bool:
    return 0 < (minutes(opts.time or "") or 0) < SHORTEST_WARNED


def _limit_minutes(opts: SlurmOpts) -> int:
    """Return the time limit, which Slurm rounds up to whole minutes (sbatch(1), --time); 0 without one."""
    return math.ceil(minutes(opts.time or "") or 0)


def _own_warning(opts: SlurmOpts) -> list[str]:
    """Return the line that sends the warning where Slurm's would come too early."""
    seconds = warning_seconds(opts)
    omitted = {name.strip().removeprefix("--") for name in opts.omit or ()}
    if not _is_short(opts) or not seconds or "signal" in omitted:
        return []
    return [f"(sleep {_limit_minutes(opts) * 60 - seconds} && kill -{WARNING_SIGNAL} $$) &"]


def _shape_options(opts: SlurmOpts, shape: Shape, replicas: int) -> dict[str, object]:
    """Return the options of each component of a job."""
    each = opts.replicas_per_node
    gpus = shape.gpus * min(each, replicas)
    kind = "gpu:" if opts.gpu_flag == GRES else ""
    kind += f"{opts.gpu_type}:" if opts.gpu_type else ""
    return {
        "partition": opts.partition,
        "time": opts.time,
        "account": opts.account,
        "qos": opts.qos,
        "reservation": opts.reservation,
        "constraint": opts.constraint,
        "nodelist": opts.nodelist,
        "exclude": opts.exclude,
        "switches": opts.switches,
        "segment": opts.segment,
        "nodes": -(-replicas // each),
        "ntasks": replicas,
        "ntasks-per-node": each if replicas >= each else None,
        "cpus-per-task": shape.cpus if shape.cpus > 0 else None,
        "mem": f"{shape.memory * min(each, replicas)}M" if shape.memory > 0 else None,
        **({"gres": opts.gres} if opts.gres else {opts.gpu_flag: f"{kind}{gpus}" if gpus > 0 else None}),
        "exclusive": opts.exclusive or None,
    }


def merged(ours: Mapping[str, object], theirs: Iterable[str], omitted: Iterable[str]) -> list[str]:
    """Return lines for sbatch: ours, without those that are omitted or that the user gives, and the user's.

    Args:
        ours: values by long name; True for a flag, None for what is not asked for.
        theirs: options as typed, such as ``--nice=100`` or ``-x n1``.
        omitted: names of ours to leave out, with or without ``--``.
    """
    given = {word.removeprefix("--").partition("=")[0].split()[0] for word in theirs if word.startswith("--")}
    left_out = {name.strip().removeprefix("--") for name in omitted} | given
    if {"gres", "gpus-per-node", "gpus", "gpus-per-task"} & given:
        left_out |= {"gres", "gpus-per-node"}
    if given & {"mem-per-cpu", "mem-per-gpu"}:
        left_out.add("mem")
    lines = [
        f"--{name}" if value is True else f"--{name}={_sbatch_quoted(str(value))}"
        for name, value in ours.items()
        if value is not None and name not in left_out
    ]
    return lines + [word.strip() for word in theirs]


def _sbatch_quoted(value: str) -> str:
    """Quote a value for an ``#SBATCH`` line, in which quotes work as in a shell."""
    if re.fullmatch(r"[\w%@/.,:=+~^\[\]&|*()!<>-]*", value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


# ---- what the script does


def _gang(plan: JobPlan, opts: SlurmOpts, *, is_heterogeneous: bool) -> list[str]:
    """Return the lines that start all replicas together."""
    retries = 0 if opts.retry is not None else min(role.max_retries for role in plan.app.roles)
    roles = plan.app.roles
    if len(roles) == 1:
        command = _step(plan, opts, roles[0], ["--ntasks=" + str(roles[0].num_replicas)])
        words = plan.around_job(*command, retries=retries, rank0=RANK0)
        return [_RANK0_LINES, *_own_warning(opts), "exec " + quoted(words)]
    steps = []
    first = 0
    for number, role in enumerate(roles):
        if is_heterogeneous:
            place = [f"--het-group={number}"]
            rank0 = f'"$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_{number}" | head -n 1)"'
        else:
            count = -(-role.num_replicas // opts.replicas_per_node)
            place = ["--exact", f"--relative={first}", f"--nodes={count}"]
            rank0 = f'"${{nodes[{first}]}}"'
            first += count
        command = _step(plan, opts, role, [*place, f"--ntasks={role.num_replicas}"])
        steps.append(f"    SHUNTER_RANK0={rank0} {quoted(command)} &")
    nodes = "" if is_heterogeneous else '$(scontrol show hostnames "$SLURM_JOB_NODELIST")'
    text = _STEPS.format(count=len(roles), nodes=nodes, steps="\n".join(steps))
    if is_heterogeneous:
        text = text.replace("    local -a nodes=()\n", "")
    # not by `export -f`: shells other than bash drop such functions from the environment; nor as an argument,
    # which must not be longer than 128 KiB: some 500 roles
    words = plan.around_job("bash", posixpath.join(plan.folder, SCRIPT), "steps", retries=retries)
    return [text, *_own_warning(opts), "exec " + quoted(words)]


def _step(plan: JobPlan, opts: SlurmOpts, role: Role, place: Sequence[str]) -> list[str]:
    """Return the srun that starts a role's replicas."""
    shape = shape_of(role)
    flags = ["--export=ALL", "--kill-on-bad-exit=1", "--wait=0", *place]
    if role.num_replicas >= opts.replicas_per_node:
        flags.append(f"--ntasks-per-node={opts.replicas_per_node}")
    if shape.cpus > 0 and "cpus-per-task" not in (opts.omit or ()):
        flags.append(f"--cpus-per-task={shape.cpus}")
    if shape.gpus > 0 and opts.replicas_per_node > 1 and not opts.gres:
        flags.append(f"--gpus-per-task={shape.gpus}")
    run_flags, prefix = _container(plan, opts, role)
    # srun kills all tasks when one fails (-K), so a replica that failed stays until the others have stopped
    outlives = any(word.startswith(("--kill-on-bad-exit", "-K")) for word in opts.srun_args or ())
    grace = math.ceil(opts.grace_period) if plan.is_gang and not outlives else 0
    wrapper = plan.replica(role.name, "SLURM_PROCID", grace=grace)
    return ["srun", *flags, *run_flags, *(opts.srun_args or ()), *prefix, *wrapper]


def _array(plan: JobPlan, opts: SlurmOpts) -> list[str]:
    """Return the lines that run one task of an array."""
    role = plan.app.roles[0]
    run_flags, prefix = _container(plan, opts, role)
    wrapper = plan.replica(
        role.name, "SLURM_ARRAY_TASK_ID", alone=True, retries=role.max_retries, rank0=RANK0
    )
    steps = ["srun", "--export=ALL", "--ntasks=1", *run_flags, *(opts.srun_args or ())]
    is_step = bool(run_flags or opts.srun_args)
    return [
        "rank0=${SLURMD_NODENAME:-$(hostname)}",
        *_own_warning(opts),
        "exec " + quoted([*(steps if is_step else []), *prefix, *wrapper]),
    ]


def _container(plan: JobPlan, opts: SlurmOpts, role: Role) -> tuple[list[str], list[str]]:
    """Return options for srun and words before the command that run a role's replicas in its image."""
    if not opts.container or role.image in ("", NO_IMAGE):
        return [], []
    seen = [f"{plan.shared_dir}:{plan.shared_dir}"]
    if not posixpath.normpath(plan.workdir).startswith(plan.shared_dir + "/"):
        seen.append(f"{plan.workdir}:{plan.workdir}")
    binds = [mount for mount in role.mounts if isinstance(mount, BindMount)]  # others are refused
    seen += [f"{mount.src_path}:{mount.dst_path}{':ro' if mount.read_only else ''}" for mount in binds]
    if opts.container == PYXIS:
        return [f"--container-image={role.image}", f"--container-mounts={','.join(seen)}"], []
    if opts.container == OCI:
        return [f"--container={role.image}"], []
    options = [word for place in seen for word in ("--bind", place)]
    graphics = ["--nv"] if shape_of(role).gpus > 0 or (opts.gres or "").startswith("gpu") else []
    image = role.image
    if "://" not in image and not image.startswith(("/", ".")) and not image.endswith((".sif", ".img")):
        image = f"docker://{image}"
    return [], [opts.container, "exec", *graphics, *options, image]


def quoted(words: Iterable[str]) -> str:
    """Quote words for the script; what the shell has to fill in stays as it is."""
    return " ".join(word if word in _BARE else shlex.quote(word) for word in words)

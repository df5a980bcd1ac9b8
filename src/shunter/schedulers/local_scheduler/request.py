"""From a job to its supervisor's plan: program, environment and log directory of each replica.

Making a request changes nothing, so that a dry run can make one.
"""

from __future__ import annotations

import binascii
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter._toolkit import stack_dump
from shunter.errors import ConfigError
from shunter.limits import MOST_RETRIES, seconds_problem
from shunter.paths import view_dir
from shunter.redaction import Redactor
from shunter.schedulers.local_scheduler.options import LocalOpts
from shunter.schedulers.native_retries import BY_SHUNTER
from shunter.schedulers.supervision import check_supervision
from shunter.schedulers.supervisor import job_python
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.own_directory import names_of
from shunter.schedulers.supervisor.process_plan import ProcessPlan, ReplicaPlan, RolePlan
from shunter.schedulers.supervisor.slots import slots_dir
from shunter.specs.app import NO_IMAGE, AppDef, RetryPolicy, Role, macros
from shunter.specs.resources import Resource
from shunter.specs.retries import OOM, parse_retries, without_effect
from shunter.specs.sweep_points import own_command
from shunter.specs.training import CALL_KEY, SWEEP_KEY, grace_variables, script_of, specification
from shunter.system.processes import JOB_VARIABLE, find_program, fitting, usable_cpus
from shunter.workspace.directory_shipment import program_problem
from shunter.workspace.manifest import Manifest

RANK0_ENV = "TORCHX_RANK0_HOST"
CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
NVIDIA_SMI_SECONDS = 30
#: A path may have 4095 bytes; those of logs have the job's, the role's and a file's name too.
LONGEST_LOG_DIR = 3500
#: The toolkit's variables for the ports at which the hosts of a distributed job meet.
_PORT_VARIABLES = ("SHUNTER_RENDEZVOUS_PORT", "SHUNTER_MASTER_PORT")
#: Below the kernel's ephemeral ports (ip_local_port_range) and the ports of `sagemaker_local`.
_MEETING_PORTS = range(12000, 20000)
#: Variables that say which job a process belongs to: set by the launcher, and by torchrun for its workers.
_OF_A_JOB = frozenset(
    {
        *("TORCHX_JOB_ID", "TORCHX_ROLE_IDX", "TORCHX_ROLE_NAME", "TORCHX_REPLICA_IDX", "TORCHX_IMAGE"),
        *("TORCHX_INTERNAL_SESSION_ID", "TORCHX_PARENT_RUN_ID", RANK0_ENV, "PET_LOG_DIR"),
        *("TORCHX_TRACKING_EXPERIMENT_NAME", "TORCHX_TRACKING_RUN_NAME"),
    }
)


@dataclass(kw_only=True)
class LocalRequest(ProcessPlan):
    """The plan of a job's supervisor, and what else is known of it; without its environment."""

    path: str
    #: Its Python: version and path, and where that was found in words.
    python: str
    python_origin: str
    notify: list[str] = field(default_factory=list)
    notify_secret: str = ""
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return json.dumps(self.shown(), indent=2)

    def shown(self) -> dict[str, Any]:
        """Return the request as JSON values, with secrets masked."""
        redactor = Redactor()
        roles = [
            {**vars(role), "replicas": [redactor.json(vars(replica)) for replica in role.replicas]}
            for role in self.roles
        ]
        told = [redactor.text(target) for target in self.notify]
        secret = redactor.named("notify_secret", self.notify_secret) if self.notify_secret else ""
        facts = {name: value for name, value in vars(self).items() if name not in ("env", "lease")}  # not yet
        return {**facts, "roles": roles, "notify": told, "notify_secret": secret}


def make_request(
    app: AppDef,
    opts: LocalOpts,
    app_id: str,
    manifest: Manifest | None = None,
    sources: Sequence[str] = (),
) -> LocalRequest:
    """Plan a job.

    The manifest is what will be in its working directory, which will be made; None for the current directory.
    ``sources`` are the directories that it comes from.

    Raises:
        ConfigError: a program does not exist, the GPUs do not suffice, or an option is out of range.
    """
    _check_options(opts)
    check_supervision(opts)
    job = JobDirectory.of(app_id)
    rules, ignored_rules = _retry_rules(opts)
    log_root = os.path.join(os.path.abspath(opts.log_dir), app_id) if opts.log_dir else job.file("logs")
    cwd = os.getcwd() if manifest is None else view_dir(app_id)
    python = job_python.choose(job_python.places_of(app, sources or [cwd]))
    path = f"{cwd}{os.pathsep}{python.search_path}" if opts.prepend_cwd else python.search_path
    own = _own_directories(app, app_id, cwd, is_shipped=manifest is not None)
    names = None if own is None else own["names"]
    roles = [
        _plan_role(role, app_id, job, log_root, cwd, path, opts.grace_period, names) for role in app.roles
    ]
    slots = _slots_to_give(app, opts) if opts.slots else _gpus_to_give(app, opts)
    if opts.auto_set_cuda_visible_devices and slots is None:
        _hide_gpus(app, roles)
    if opts.hang_timeout is not None:
        _add_stack_handler(job, roles)
    if opts.array:
        for plan in roles:
            plan.retry_policy = RetryPolicy.REPLICA.value
    found = [(role.name, _find_program(role, cwd, path, manifest)) for role in roles]
    found += [(role.name, _script_problem(role, cwd, manifest)) for role in app.roles]
    problems = [f"\n  - role {name!r}: {problem}" for name, problem in found if problem]
    if problems:
        raise ConfigError(
            "the job cannot run here:" + "".join(problems),
            hint="Programs are looked up in PATH, then, like scripts and other paths, in "
            f"{cwd if manifest is None else 'the workspace'}.",
        )
    return LocalRequest(
        app_id=app_id,
        job_dir=job.path,
        roles=roles,
        timeout=opts.timeout,
        grace_period=opts.grace_period,
        fail_fast=opts.fail_fast,
        cwd=cwd,
        path=path,
        python=str(python),
        python_origin=python.origin,
        chain=opts.chain,
        retry=rules,
        hang_timeout=opts.hang_timeout,
        on_hang=opts.on_hang,
        notify=list(opts.notify or ()),
        notify_secret=opts.notify_secret or "",
        array=opts.array,
        max_running=_most_running(app, opts),
        slots=slots,
        own_directories=own,
        warnings=[
            *(warning for role in app.roles for warning in _ignored(role)),
            *ignored_rules,
            *filter(None, [python.warning]),
        ],
    )


def _retry_rules(opts: LocalOpts) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Return the rules for retries as the supervisor takes them, and what of them has no effect."""
    if not opts.retry:
        return {}, []
    rules = parse_retries(opts.retry)
    ignored = without_effect("local_cwd", rules, BY_SHUNTER["local_cwd"])
    if OOM in rules and rules[OOM].most_mb:
        ignored.append("local_cwd ignores the size in retry oom: it does not limit memory")
        rules[OOM].most_mb = 0
    return {name: {**vars(rule)} for name, rule in rules.items()}, ignored


def without_enclosing_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of the job that this process itself runs in, if any."""
    in_job = "TORCHX_JOB_ID" in environ
    in_torchrun = in_job or "TORCHELASTIC_RUN_ID" in environ
    return {
        key: value
        for key, value in environ.items()
        if not (
            key.startswith("SHUNTER_LOCAL_")
            or (in_job and key in _OF_A_JOB)
            or (in_torchrun and key.startswith("TORCHELASTIC_"))
        )
    }


def _own_directories(app: AppDef, app_id: str, cwd: str, *, is_shipped: bool) -> dict[str, Any] | None:
    """Return how each point of a sweep gets a working directory of its own; None for other jobs.

    Calls of functions return their values, and share the directory as calls in one process do.
    """
    if not any(SWEEP_KEY in role.metadata and CALL_KEY not in role.metadata for role in app.roles):
        return None
    beside = "" if is_shipped else cwd
    return {"template": view_dir(app_id), "beside": beside, "names": names_of(beside)}


def _plan_role(
    role: Role,
    app_id: str,
    job: JobDirectory,
    log_root: str,
    cwd: str,
    path: str,
    grace: float,
    own: list[str] | None,
) -> RolePlan:
    if role.name in (".", ".."):
        raise ConfigError(
            f"a role cannot be named {role.name!r} here", hint="Its logs need a directory name."
        )
    is_distributed = role.num_replicas > 1 and specification(role.metadata).get("distribution")
    ports = _meeting_ports(f"{app_id}/{role.name}") if is_distributed else {}
    replicas = []
    for index in range(role.num_replicas):
        log_dir = os.path.join(log_root, role.name, str(index))
        place = "" if own is None else job.point_directory(role.name, index, own)
        values = macros.Values(
            img_root=place or cwd, app_id=app_id, replica_id=str(index), rank0_env=RANK0_ENV
        )
        applied_env = {key: values.substitute(value) for key, value in role.env.items()}
        command = [role.entrypoint, *role.args]
        if SWEEP_KEY in role.metadata:
            command = own_command(role.entrypoint, role.args, index)
        env = {
            "PYTHONUNBUFFERED": "1",
            RANK0_ENV: "localhost",
            "TORCHELASTIC_ERROR_FILE": os.path.join(log_dir, "error.json"),
            "PET_LOG_DIR": os.path.join(log_dir, "torchelastic"),
            **ports,
            **applied_env,
            **grace_variables(applied_env, grace),
            JOB_VARIABLE: job.path,
        }
        if "PATH" in applied_env and path.startswith(cwd + os.pathsep):
            env["PATH"] = cwd + os.pathsep + applied_env["PATH"]
        replicas.append(ReplicaPlan("", [values.substitute(word) for word in command], env, log_dir, place))
    return RolePlan(role.name, role.max_retries, role.retry_policy.value, replicas)


def _meeting_ports(name: str) -> dict[str, str]:
    """Return where the toolkits of a role's hosts meet: jobs share this machine's ports.

    Free ports are searched from one that depends on the name, so that jobs made together differ.
    """
    found: list[int] = []
    start = binascii.crc32(name.encode("utf-8", "surrogateescape"))
    for step in range(len(_MEETING_PORTS)):
        port = _MEETING_PORTS[(start + step) % len(_MEETING_PORTS)]
        try:
            socket.create_server(("", port)).close()
        except OSError:  # taken
            continue
        found.append(port)
        if len(found) == len(_PORT_VARIABLES):
            return dict(zip(_PORT_VARIABLES, map(str, found), strict=True))
    raise ConfigError(
        f"no two ports of {_MEETING_PORTS.start} to {_MEETING_PORTS.stop - 1} are free on this machine"
    )


def _check_options(opts: LocalOpts) -> None:
    if opts.log_dir and len(os.fsencode(os.path.abspath(opts.log_dir))) > LONGEST_LOG_DIR:
        raise ConfigError(f"log_dir is too long: it may have {LONGEST_LOG_DIR} bytes")
    problem = seconds_problem("timeout", opts.timeout)
    problem = problem or seconds_problem("grace_period", opts.grace_period, may_be_zero=True)
    if problem:
        raise ConfigError(problem)
    if opts.chain < 1 or opts.chain > MOST_RETRIES:
        raise ConfigError(f"chain is {opts.chain}; it must be from 1 to {MOST_RETRIES}")
    if opts.chain > 1 and opts.timeout is None:
        raise ConfigError(
            f"chain={opts.chain} continues a job after its time limit, but this job has no time limit",
            hint="Set one: -cfg timeout=SECONDS.",
        )
    if opts.array and opts.chain > 1:
        raise ConfigError("chain is for jobs whose replicas run together", hint="Leave out array or chain.")
    if opts.max_running is not None and not opts.array:
        raise ConfigError("max_running is for arrays", hint="Set array=true, too.")
    if opts.max_running is not None and opts.max_running < 1:
        raise ConfigError(f"max_running is {opts.max_running}; it must be at least 1")


def _find_program(role: RolePlan, cwd: str, path: str, manifest: Manifest | None) -> str:
    """Find the program of a role's replicas; returns what is wrong with it, or "".

    A name is searched in PATH, then in the working directory; the other way round if PATH begins with that.
    """
    program = role.replicas[0].argv[0]
    searched_path = role.replicas[0].env.get("PATH", path)
    found = find_program(program, searched_path)
    if found is None and program == "python":  # many systems call it python3 alone
        found = find_program("python3", searched_path)
        for replica in role.replicas if found else ():
            replica.argv[0] = "python3"  # by which it finds itself in PATH: `sys.executable`
    is_name = os.sep not in program
    comes_first = is_name and path.startswith(cwd + os.pathsep)
    located = os.path.join(cwd, program)
    if manifest is None:
        if found is None and is_name and os.path.isfile(located) and os.access(located, os.X_OK):
            found = program
    elif not os.path.isabs(program) and (not is_name or comes_first or found is None):
        problem = program_problem(manifest, program)
        if not problem:
            found = program
        elif not is_name or (found is None and program in manifest.by_path):
            return problem
    if found is not None:
        for replica in role.replicas:
            replica.program = os.path.join(replica.cwd or cwd, found)
        return ""
    if os.path.isdir(located):
        return f"{program} is a directory"
    if os.path.exists(located):
        return f"{program} is not executable (chmod +x?)"
    return f"there is no program {program!r}"


def _script_problem(role: Role, cwd: str, manifest: Manifest | None) -> str:
    """Return what is wrong with the script of a role's program, or ""."""
    script = script_of(role.args, role.metadata)
    if not script:
        return ""
    if manifest is not None and not os.path.isabs(script) and not script.startswith(os.pardir):
        return program_problem(manifest, script, is_executed=False)
    located = os.path.join(cwd, script)
    if os.path.isdir(located):
        return f"{script} is a directory"
    return "" if os.path.exists(located) else f"there is no script {script}"


def _ignored(role: Role) -> list[str]:
    """Return a warning for each field of a role that has no effect here."""
    ignored = []  # port_map asks for nothing here: ports are this machine's
    if role.image not in ("", NO_IMAGE):
        ignored.append(f"the image {role.image}, in which it runs with -s local_docker")
    limits = Resource(cpu=-1, gpu=-1, memMB=-1)
    if role.resource.devices and role.resource != limits:
        ignored.append("resource.devices")
    return [f"role {role.name!r}: local_cwd ignores {name}" for name in ignored]


def _add_stack_handler(job: JobDirectory, roles: list[RolePlan]) -> None:
    """Have Python processes write their stacks when they get a signal; `submission` writes the module."""
    for replica in (replica for role in roles for replica in role.replicas):
        found = replica.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        replica.env[stack_dump.VARIABLE] = str(int(stack_dump.SIGNAL))
        replica.env["PYTHONPATH"] = os.pathsep.join(filter(None, [job.python_dir(), found]))


# ---- slots and GPUs


def cpus_of(role: Role) -> int:
    """Return how many CPUs a replica of a role counts for: what it asks for, at least 1."""
    return max(role.resource.cpu, 1)


def _most_running(app: AppDef, opts: LocalOpts) -> int | None:
    """Return how many replicas run at a time; None where something else limits them, or nothing does."""
    if opts.max_running or opts.slots or not opts.array:
        return opts.max_running
    return fitting(max(map(cpus_of, app.roles)))


def _slots_to_give(app: AppDef, opts: LocalOpts) -> dict[str, Any]:
    """Return what the supervisor has to know of this machine's slots.

    Raises:
        ConfigError: the option cannot be read, or the job can never have what it asks for.
    """
    cpus, gpus = usable_cpus(), visible_gpus()
    if opts.slots != "auto":
        first, _, second = str(opts.slots).partition(":")
        if not first.isdigit() or (second and not second.isdigit()) or not int(first):
            raise ConfigError(
                f"slots must be 'auto', CPUS or CPUS:GPUS, not {opts.slots!r}",
                hint="For example: -cfg slots=auto, or -cfg slots=8:2 for 8 CPUs and 2 GPUs.",
            )
        cpus = int(first)
        if second:
            named = [*gpus, *(str(index) for index in range(int(second)) if str(index) not in gpus)]
            gpus = named[: int(second)]
    needs = {role.name: (cpus_of(role), max(role.resource.gpu, 0)) for role in app.roles}
    for kind, there, wanted in (
        ("CPUs", cpus, _wanted_at_once(app, opts, {name: each[0] for name, each in needs.items()})),
        ("GPUs", len(gpus), _wanted_at_once(app, opts, {name: each[1] for name, each in needs.items()})),
    ):
        if wanted > there:
            raise ConfigError(
                f"the job can never start: it asks for {wanted} {kind}, but slots={opts.slots} has only "
                f"{there}",
                hint="Ask for fewer, or say how many slots there are: -cfg slots=CPUS:GPUS.",
            )
    return _slots(cpus, gpus, needs)


def _gpus_to_give(app: AppDef, opts: LocalOpts) -> dict[str, Any] | None:
    """Return slots of GPUs alone, for a job that asks for GPUs; None for another.

    Raises:
        ConfigError: this machine does not have as many.
    """
    needs = {role.name: (0, role.resource.gpu) for role in app.roles}
    wanted = _wanted_at_once(app, opts, {name: max(each[1], 0) for name, each in needs.items()})
    if not wanted:
        return None
    gpus = visible_gpus()
    if wanted > len(gpus):
        raise ConfigError(
            f"the job asks for {_counted(wanted)} at a time, but this machine has {len(gpus)}",
            hint="Ask for fewer, or choose a scheduler with GPUs (-s). Those of this machine are what "
            f"{CUDA_VARIABLE} names, or else what `nvidia-smi -L` lists.",
        )
    return _slots(0, gpus, needs)


def _slots(cpus: int, gpus: list[str], needs: dict[str, tuple[int, int]]) -> dict[str, Any]:
    within = os.environ.get(JOB_VARIABLE, "")
    return {"folder": slots_dir(), "cpus": cpus, "gpus": gpus, "needs": needs, "within": within}


def _wanted_at_once(app: AppDef, opts: LocalOpts, needs: Mapping[str, int]) -> int:
    """Return how much the replicas need that start together: all of them, or one of an array."""
    if opts.array:
        return max(needs[role.name] for role in app.roles)
    return sum(role.num_replicas * needs[role.name] for role in app.roles)


def _counted(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the ids of the GPUs that this process may use: of CUDA_VISIBLE_DEVICES, else all there are."""
    if CUDA_VARIABLE in environ:
        return [part.strip() for part in environ[CUDA_VARIABLE].split(",") if part.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi", path=environ.get("PATH")) is None:
        return []
    try:
        result = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            env=dict(environ),
            timeout=NVIDIA_SMI_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line for line in result.stdout.splitlines() if line.startswith("GPU ")]
    return [str(index) for index in range(len(lines))] if result.returncode == 0 else []


def _hide_gpus(app: AppDef, roles: list[RolePlan]) -> None:
    """Hide all GPUs from the replicas of roles that want none, in a job that asks for no GPU."""
    for role, plan in zip(app.roles, roles, strict=True):
        for replica in plan.replicas:
            if role.resource.gpu == 0:
                replica.env[CUDA_VARIABLE] = ""

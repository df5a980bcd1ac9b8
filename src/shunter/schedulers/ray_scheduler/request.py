"""The request to Ray: a submission for its Jobs API, and the plan that the job's driver carries out.

The plan travels as a package, not in the submission: Ray shows submissions, environment variables included,
to everybody who may look at its dashboard.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shunter import __version__
from shunter.diagnosis.causes import causes_table
from shunter.errors import ConfigError, refuse
from shunter.limits import seconds_problem
from shunter.paths import read_regular_file
from shunter.redaction import Redactor
from shunter.schedulers.ray_scheduler.options import STRATEGIES, RayOpts
from shunter.schedulers.supervision import check_supervision
from shunter.schedulers.supervisor.outbox import SECRET_VARIABLE
from shunter.specs.app import NO_IMAGE, AppDef, Role
from shunter.specs.retries import parse_retries
from shunter.specs.training import CALL_KEY, grace_variables, output_of, specification
from shunter.system.identity import user_name

#: Keys of our metadata.
VERSION, NAME, USER, ROLES, RESULTS, TOKEN, EXEC_OF = (
    f"shunter.{key}" for key in ("version", "name", "user", "roles", "results", "token", "exec_of")
)
DRIVER = "ray_driver.py"
#: Seconds that the driver has beyond the replicas' grace period, before Ray kills it too.
DRIVER_GRACE = 15
STOP_WAIT_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"


@dataclass
class RayRequest:
    """A job for Ray.

    Args:
        app_id: the job's id, which is its submission id in Ray.
        address: the dashboard's URL.
        submission: what is sent to ``POST /api/jobs/``; the plan's package is added when it is sent.
        plan: what the driver reads; `RayScheduler._depend_on` adds the jobs to wait for.
    """

    app_id: str
    address: str
    submission: dict[str, Any]
    plan: dict[str, Any]

    def shown(self) -> dict[str, Any]:
        """Return the request as JSON values, with secrets masked."""
        redactor, plan = Redactor(), {key: value for key, value in self.plan.items() if key != "table"}
        if "notify" in plan:
            plan["notify"] = [redactor.text(target) for target in plan["notify"]["targets"]]
        plan["roles"] = [
            {**role, "argv": redactor.words(role["argv"]), "env": redactor.json(role["env"])}
            for role in plan["roles"]
        ]
        return {"address": self.address, "POST /api/jobs/": redactor.json(self.submission), "plan": plan}

    def __str__(self) -> str:
        return json.dumps(self.shown(), indent=2, ensure_ascii=False)

    def __repr__(self) -> str:
        return str(self)


def make_request(app: AppDef, opts: RayOpts, app_id: str, address: str, package: str) -> RayRequest:
    """Make a job's request.

    Args:
        app: the job.
        opts: the options.
        app_id: its id.
        address: the dashboard's URL.
        package: URI of the package with code, driver and toolkit.

    Raises:
        ConfigError: Ray cannot run the job, or an option cannot be used.
    """
    env = checked_environment(opts)
    for role in app.roles:
        if role.name in (".", "..") or not re.fullmatch(r"\S+", role.name):
            raise ConfigError(
                f"a role cannot be named {role.name!r} on Ray", hint="Its logs need a name without spaces."
            )
    stop_wait = str(math.ceil(opts.grace_period) + DRIVER_GRACE)
    env["env_vars"] = {STOP_WAIT_VARIABLE: stop_wait, **env.get("env_vars", {})}
    env["working_dir"] = package
    submission: dict[str, Any] = {
        "entrypoint": _entrypoint(opts.python),
        "submission_id": app_id,
        "runtime_env": env,
        "metadata": {**app.metadata, **(opts.metadata or {}), **_metadata(app, opts, app_id)},
    }
    given = {
        "entrypoint_num_cpus": opts.entrypoint_num_cpus,
        "entrypoint_num_gpus": opts.entrypoint_num_gpus,
        "entrypoint_memory": opts.entrypoint_memory,
        "entrypoint_resources": _amounts("entrypoint_resources", opts.entrypoint_resources),
        "entrypoint_label_selector": opts.entrypoint_label_selector,
    }
    submission |= {name: value for name, value in given.items() if value is not None}
    plan = {
        "app_id": app_id,
        "grace": opts.grace_period,
        "timeout": opts.timeout,
        "placement_timeout": opts.placement_timeout,
        "strategy": opts.placement,
        "fail_fast": opts.fail_fast,
        "job_dir": opts.job_dir or "",
        "roles": [_role(role, opts) for role in app.roles],
    }
    return RayRequest(app_id, address, submission, {**plan, **_supervision(opts), "after": []})


def _supervision(opts: RayOpts) -> dict[str, Any]:
    """Return what the driver does about failures and at the end, as far as it is asked for."""
    plan: dict[str, Any] = {}
    if opts.retry:
        rules = parse_retries(opts.retry)
        sized = [name for name, rule in rules.items() if rule.most_mb]
        refuse("retry", [f"{name} cannot have a size: Ray does not limit memory" for name in sized])
        plan["retry"] = {name: rule.times for name, rule in rules.items()}
    if opts.hang_timeout is not None:
        plan["hang"] = {"seconds": opts.hang_timeout, "on_hang": opts.on_hang}
    if opts.notify:
        secret = opts.notify_secret or os.environ.get(SECRET_VARIABLE) or ""
        plan["notify"] = {"targets": list(opts.notify), "secret": secret}
    if opts.retry or opts.notify:
        plan["table"] = causes_table()
    return plan


def _entrypoint(python: str | None) -> str:
    """Return the shell's command for the driver: by the first Python that has Ray."""
    if python is not None:
        return f"{shlex.quote(python)} {DRIVER}"
    has_ray = "import importlib.util as u, sys; sys.exit(u.find_spec('ray') is None)"
    return (
        f'for p in python python3; do "$p" -c "{has_ray}" 2>/dev/null && exec "$p" {DRIVER}; done; '
        'echo "shunter: neither python nor python3 in PATH has Ray: $PATH (-cfg python=...)"; exit 127'
    )


def _metadata(app: AppDef, opts: RayOpts, app_id: str) -> dict[str, str]:
    trained = [specification(role.metadata) for role in app.roles]
    results = next((output_of(each, app_id) for each in trained if each), "")
    if not results and opts.job_dir and any(trained):
        results = f"{opts.job_dir.rstrip('/')}/{app_id}"
    metadata = {
        VERSION: __version__,
        NAME: app.name,
        USER: user_name(),
        ROLES: json.dumps([[role.name, role.num_replicas] for role in app.roles]),
    }
    return {**metadata, RESULTS: results} if results else metadata


def _role(role: Role, opts: RayOpts) -> dict[str, Any]:
    elastic = role.min_replicas is not None and role.min_replicas < role.num_replicas
    return {
        "name": role.name,
        "replicas": role.num_replicas,
        "min": role.min_replicas if elastic else None,
        "max_retries": role.max_retries,
        "policy": role.retry_policy.value,
        "argv": [role.entrypoint, *role.args],
        "env": {**role.env, **grace_variables(role.env, opts.grace_period)},
        "bundle": bundle_of(role),
        "labels": dict(opts.label_selector or {}),
    }


def bundle_of(role: Role) -> dict[str, float]:
    """Return what Ray reserves for a replica: CPUs (1 where nothing is said), GPUs, memory and devices."""
    resource = role.resource
    cpu = resource.cpu if resource.cpu >= 0 else 1
    amounts: dict[str, float] = {
        "CPU": cpu,
        "GPU": resource.gpu,
        "memory": resource.memMB << 20,
        **resource.devices,
    }
    bundle = {name: amount for name, amount in amounts.items() if amount > 0}
    return bundle or {"CPU": 0.001}  # Ray refuses to reserve an empty bundle


def warnings_for(app: AppDef, opts: RayOpts) -> list[str]:
    """Return a warning for each setting that has no effect, or another effect than expected."""
    warnings = []
    for role in app.roles:
        if role.image not in ("", NO_IMAGE):
            warnings.append(
                f"role {role.name!r}: ray ignores the image {role.image}; the nodes' own environment is used"
            )
        trained = specification(role.metadata)
        is_call = CALL_KEY in role.metadata  # what a function returns comes with the log
        if trained and not is_call and not (trained.get("output") or {}).get("uri") and not opts.job_dir:
            warnings.append(
                f"role {role.name!r}: its results stay on the node that it runs on, but for 1 MiB that comes "
                "with its log (shunter fetch); send them to storage "
                "(--output URI), or give a directory that all nodes share (-cfg job_dir=...)"
            )
    return warnings


# ---- options


def checked_environment(opts: RayOpts) -> dict[str, Any]:
    """Check the options; returns the runtime environment that they ask Ray for.

    Raises:
        ConfigError: an option has a value that it cannot have, or a file cannot be read.
    """
    for name in ("cluster_config_file", "cluster_name"):
        if getattr(opts, name) is not None:
            raise ConfigError(
                f"{name} is an option of TorchX that is no longer read",
                hint="Instead, name the cluster's dashboard: -cfg dashboard_address=http://HEAD:8265 "
                "(`ray get-head-ip FILE` prints HEAD).",
            )
    if opts.placement not in STRATEGIES:
        raise ConfigError(f"placement is {opts.placement!r}", hint=f"It is one of {', '.join(STRATEGIES)}.")
    for name in ("timeout", "placement_timeout", "grace_period"):
        if problem := seconds_problem(name, getattr(opts, name), may_be_zero=name == "grace_period"):
            raise ConfigError(problem)
    if opts.job_dir is not None and not os.path.isabs(opts.job_dir):
        raise ConfigError(f"job_dir is {opts.job_dir}; it must be an absolute path on the nodes")
    check_supervision(opts)
    env = {} if opts.runtime_env is None else _json_of(opts.runtime_env)
    for name in {"working_dir", "py_modules"} & env.keys():
        raise ConfigError(
            f"runtime_env has {name}, which is made from the job",
            hint="Code travels as the workspace: --workspace DIR.",
        )
    if opts.requirements is not None:
        if {"pip", "uv", "conda"} & env.keys():
            raise ConfigError(
                "requirements and runtime_env both say which packages to install",
                hint="Leave one of them out.",
            )
        env["pip"] = _packages(opts.requirements)
    return env


def _json_of(text: str) -> dict[str, Any]:
    source = text if text.lstrip().startswith("{") else _text_of(text, "runtime_env")
    try:
        env = json.loads(source)
    except ValueError as error:
        raise ConfigError(f"runtime_env is not JSON: {error}") from None
    if not isinstance(env, dict):
        raise ConfigError("runtime_env must be a JSON object")
    return env


def _packages(path: str) -> list[str]:
    lines = [line.split(" #")[0].strip() for line in _text_of(path, "requirements").splitlines()]
    packages = [line for line in lines if line and not line.startswith("#")]
    for line in packages:
        if line.startswith(("-r", "-c", "--requirement", "--constraint", "-e", ".", "/")):
            raise ConfigError(
                f"requirements: {path} has the line {line!r}, which names a file of this machine",
                hint="Ray installs the packages on its nodes, which do not have that file.",
            )
    return packages


def _text_of(path: str, option: str) -> str:
    try:
        return read_regular_file(os.path.expanduser(path)).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path}: {error.strerror or error}") from error


def _amounts(name: str, given: Mapping[str, str] | None) -> dict[str, float] | None:
    try:
        return None if given is None else {key: float(value) for key, value in given.items()}
    except ValueError:
        raise ConfigError(
            f"{name}: an amount is not a number", hint=f"Example: -cfg {name}=special:1"
        ) from None

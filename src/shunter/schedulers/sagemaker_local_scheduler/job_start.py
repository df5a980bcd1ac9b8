"""Starting a job: writing its directory, then its supervisor; and the settings for that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import shunter
from shunter._toolkit import environment_store
from shunter.docker.command import DockerCommand
from shunter.errors import BackendError, ConfigError
from shunter.redaction import Redactor
from shunter.schedulers.aws.doctor import partition_and_account
from shunter.schedulers.aws_sagemaker_scheduler import observe
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import without_secrets
from shunter.schedulers.sagemaker_local_scheduler import filesystems, rules, training_job
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import hosts_of
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervision import REPORT
from shunter.schedulers.supervisor import job_python
from shunter.schedulers.supervisor.job_python import JobPython
from shunter.schedulers.supervisor.process_plan import ContainerPlan, ProcessPlan, ReplicaPlan, RolePlan
from shunter.schedulers.supervisor.start import StartingSupervisor
from shunter.system.identity import machine, myself
from shunter.system.processes import JOB_VARIABLE
from shunter.workspace import environment
from shunter.workspace.toolkit_files import local_command, put_toolkit

SUPERVISOR = "shunter.schedulers.sagemaker_local_scheduler.training_supervisor:TrainingSupervisor"
ACCOUNT = "000000000000"
DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True)
class Settings:
    """How jobs run on this machine.

    Attributes:
        docker: ``always``, ``never``, or ``auto``: containers where a daemon answers.
        grace: seconds between SIGTERM and SIGKILL.
        patience: seconds for which a store may be out of reach before a job fails for it.
        file_systems: the directory of this machine that stands for a file system of the service, by its id.
        hang_timeout: seconds without activity after which a host counts as hung; None not to check.
        on_hang: what becomes of a job with such a host, see `supervision`.
    """

    docker: str = "auto"
    grace: float = 120.0
    patience: float = 300.0
    file_systems: dict[str, str] = field(default_factory=dict)
    hang_timeout: float | None = None
    on_hang: str = REPORT

    @classmethod
    def from_env(cls) -> Settings:
        """Read ``SHUNTER_SAGEMAKER_DOCKER``, ``..._GRACE_SECONDS``, ``..._PATIENCE_SECONDS`` and
        ``..._FILE_SYSTEMS``.

        Raises:
            ConfigError: one of them has an invalid value.
        """
        docker = os.environ.get("SHUNTER_SAGEMAKER_DOCKER", cls.docker)
        if docker not in ("auto", "always", "never"):
            raise ConfigError(
                f"SHUNTER_SAGEMAKER_DOCKER is {docker!r}", hint="It may be auto, always or never."
            )
        mounted = filesystems.parse(os.environ.get(filesystems.VARIABLE, ""))
        return cls(docker, _seconds("GRACE", cls.grace), _seconds("PATIENCE", cls.patience), mounted)


def _seconds(name: str, default: float) -> float:
    variable = f"SHUNTER_SAGEMAKER_{name}_SECONDS"
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{variable} is {text!r}", hint="It is a number of seconds.")
    return value


def region_of_environment() -> str:
    """Return the region that the environment names."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION


def arn_of(name: str, region: str, role: str) -> str:
    """Return the ARN of a job, in the account of its role."""
    partition, account = partition_and_account(role)
    return f"arn:{partition}:sagemaker:{region}:{ACCOUNT if account == '*' else account}:training-job/{name}"


def start_job(
    request: dict[str, Any],
    *,
    region: str = "",
    settings: Settings | None = None,
    app: Any = None,
    python: JobPython | None = None,
    prepare: Callable[[TrainingJob], None] = lambda job: None,
) -> TrainingJob:
    """Start a job for a valid CreateTrainingJob request; the job runs when this returns.

    Args:
        request: the request.
        region: region of the job's ARN; the environment's by default.
        settings: how it runs; the environment's by default.
        app: the `AppDef` as JSON, if a scheduler made the request.
        python: the Python of hosts that are processes; by default the one that is found without a project.
        prepare: called with the job once its directory is there, before it is started.

    Raises:
        FileExistsError: there is a job of this name.
        ApiError: ValidationException: this machine cannot carry it out.
        StateStoreError: the state directory cannot be written.
        BackendError: the supervisor could not be started; nothing is left of the job.
    """
    settings = settings or Settings.from_env()
    rules.check(request, settings.docker, settings.file_systems)
    name = request["TrainingJobName"]
    try:
        supervisor = StartingSupervisor(SUPERVISOR, ["-P"], {"PYTHONPATH": _python_path()})
    except OSError as error:
        raise _not_started(name, str(error)) from error
    try:
        return _start_job(
            request, region or region_of_environment(), settings, app, python, prepare, supervisor
        )
    finally:
        supervisor.discard()


def _start_job(
    request: dict[str, Any],
    region: str,
    settings: Settings,
    app: Any,
    python: JobPython | None,
    prepare: Callable[[TrainingJob], None],
    supervisor: StartingSupervisor,
) -> TrainingJob:
    name = request["TrainingJobName"]
    process_plan = _plan(request, app, settings)
    document = {
        "request": _without_secrets({key: value for key, value in request.items() if key != "Tags"}),
        "arn": arn_of(name, region, request.get("RoleArn", "")),
        "region": region,
        "created_at": time.time(),
        "submitter": list(myself()),
        "supervisor": supervisor.process(),
        "submitted_from": machine(),
        "app": Redactor().json(app or {"name": name, "roles": [], "metadata": {}}),
        "layout": process_plan.layout(),
        "hostnames": {
            f"{role}/{index}": host.name
            for (role, index, _), host in zip(process_plan.layout(), hosts_of(request), strict=True)
        },
        "containers": any(replica.container for role in process_plan.roles for replica in role.replicas),
    }
    tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags") or ()}
    job = training_job.create(name, document, tags)
    plan = {
        "job_dir": job.path,
        "process": process_plan.to_json(),
        "request": request,
        "region": region,
        "arn": document["arn"],
        "settings": asdict(settings),
        "programs": _programs(python or job_python.choose([])),
    }
    try:
        put_toolkit()
        prepare(job)
        problem = supervisor.run(plan)
    except OSError as error:
        problem = str(error)
    if problem:
        job.remove()
        raise _not_started(name, problem)
    return job


def _plan(request: dict[str, Any], app: Any, settings: Settings) -> ProcessPlan:
    """Return the supervisor's plan: a replica for each host, which is filled in when its data are there."""
    name = request["TrainingJobName"]
    job = TrainingJob.of(name)
    docker = DockerCommand().program if rules.uses_containers(settings.docker) else ""
    mark = os.urandom(3).hex()
    places = observe.layout(request)
    roles = (app or {}).get("roles") or []
    if len(roles) == 1:  # the only role's replicas, whichever groups their hosts are in
        places = [(roles[0]["name"], number, host) for number, (_, _, host) in enumerate(places)]
    plans: dict[str, RolePlan] = {}
    for role, index, host in places:
        container = f"shunter-{name}-{host}-{mark}"
        plans.setdefault(role, RolePlan(role, 0, "APPLICATION", [])).replicas.append(
            ReplicaPlan(
                docker,
                [docker, "start", "--attach", container],
                {},
                job.file("logs", role, str(index)),
                container=ContainerPlan(container) if docker else None,
                one_log=True,
            )
        )
    return ProcessPlan(
        app_id=name,
        job_dir=job.path,
        roles=list(plans.values()),
        timeout=None,
        grace_period=settings.grace,
        fail_fast=True,
        cwd="/",
        env={**os.environ, JOB_VARIABLE: job.path},
        hang_timeout=settings.hang_timeout,
        on_hang=settings.on_hang,
    )


def _not_started(name: str, problem: str) -> BackendError:
    return BackendError(
        f"the job {name} was not started: {problem}",
        hint="Nothing of it runs. Fix the cause and submit it again.",
    )


def _without_secrets(request: dict[str, Any]) -> dict[str, Any]:
    redacted = without_secrets(request)
    # Redaction also changes texts; fields that cannot hold secrets stay as they are.
    for key in request:
        if key not in ("Environment", "HyperParameters", "AlgorithmSpecification"):
            redacted[key] = request[key]
    return redacted


def _programs(python: JobPython) -> dict[str, Any]:
    """Return what hosts that are processes run, and find: the user's programs, as in a shell."""
    return {
        "toolkit": [python.path, *local_command()[1:]],
        "environment": {
            "PATH": python.search_path,
            "PYTHONPATH": os.environ.get("PYTHONPATH"),
            environment_store.STORE_VARIABLE: environment.local_store(),
        },
    }


def _python_path() -> str:
    """Return PYTHONPATH with this package in it, for the supervisor."""
    source = os.path.dirname(os.path.dirname(os.path.abspath(shunter.__file__)))
    return os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))

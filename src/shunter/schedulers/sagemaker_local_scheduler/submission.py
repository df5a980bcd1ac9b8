"""From a job and options to a training job of this machine: its request, its code, and starting it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from typing import Any

from shunter.errors import BackendError, ConfigError, WorkspaceChangedError
from shunter.paths import make_private_dir, state_dir, state_error
from shunter.progress import Progress
from shunter.redaction import redact_text
from shunter.schedulers.aws.service_model import is_installed
from shunter.schedulers.aws_sagemaker_scheduler import names
from shunter.schedulers.aws_sagemaker_scheduler.channels import check_exists, local_path
from shunter.schedulers.aws_sagemaker_scheduler.code_archive import CodePackage
from shunter.schedulers.aws_sagemaker_scheduler.option_rules import check_options
from shunter.schedulers.aws_sagemaker_scheduler.options import QUEUE_OPTIONS
from shunter.schedulers.aws_sagemaker_scheduler.request import AWSSageMakerJob, Needs, make_job, settle
from shunter.schedulers.sagemaker_local_scheduler import filesystems, rules
from shunter.schedulers.sagemaker_local_scheduler.job_start import (
    ACCOUNT,
    Settings,
    region_of_environment,
    start_job,
)
from shunter.schedulers.sagemaker_local_scheduler.options import SageMakerLocalOpts
from shunter.schedulers.sagemaker_local_scheduler.request_validation import ApiError, check_request
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervision import check_supervision
from shunter.schedulers.supervisor import job_python, outbox
from shunter.schedulers.supervisor.job_python import JobPython
from shunter.specs.app import NO_IMAGE, AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.handles import make_app_handle
from shunter.specs.named_resources_aws import INSTANCE_TYPE
from shunter.specs.serialize import to_json

PROCESS_IMAGE = "this-machine"
DEFAULT_TYPE = "ml.m5.large"
CODE_ATTEMPTS = 3


def code_dir() -> str:
    """Return the directory of the jobs' code, by content."""
    return os.path.join(state_dir(), "sagemaker-code")


def default_output() -> str:
    """Return the directory of results of jobs without an output_path."""
    return os.path.join(state_dir(), "sagemaker-results")


def check(app: AppDef, opts: SageMakerLocalOpts) -> None:
    """Refuse inconsistent jobs and options.

    Raises:
        InvalidRunConfigException: the job or its options are inconsistent.
    """
    if opts.image_repo:
        raise ConfigError(
            "image_repo is given, but code travels to jobs of this machine without an image",
            hint="Leave image_repo out.",
        )
    check_supervision(opts)
    if not _uses_docker(app):
        for role in app.roles:  # processes need no image, but the request does
            if role.image in ("", NO_IMAGE):
                role.image = PROCESS_IMAGE
    check_options(app, _completed(app, opts), region=opts.region or region_of_environment(), local=True)


#: Options that only AWS can act on; they stay in the request where it has a member for them.
ONLY_ON_AWS = (
    "batch_queue",
    "debugger_rules",
    "experiment_config",
    "instance_placement_config",
    "mlflow_config",
    "model_package_config",
    "profiler_config",
    "profiler_rules",
    "tensorboard_output_config",
    "training_plan",
)


def not_acted_upon(opts: SageMakerLocalOpts) -> str:
    """Return in words which of the options do nothing here; "" if none does."""
    given = [option for option in ONLY_ON_AWS if getattr(opts, option)]
    return f"on this machine these options do nothing: {', '.join(given)}" if given else ""


def _started_once(app: AppDef) -> AppDef:
    """Return a job without the retries that its queue would make."""
    return dataclasses.replace(app, roles=[dataclasses.replace(role, max_retries=0) for role in app.roles])


def _without_queue(opts: SageMakerLocalOpts) -> SageMakerLocalOpts:
    """Return the options of a job that starts at once."""
    apart: dict[str, Any] = dict.fromkeys(("batch_queue", *QUEUE_OPTIONS))
    return dataclasses.replace(opts, **apart)


def _uses_docker(app: AppDef) -> bool:
    """Tell whether hosts will be containers. The daemon is asked only if that matters: without an image."""
    settings = Settings.from_env()
    if settings.docker == "auto" and any(role.image in ("", NO_IMAGE) for role in app.roles):
        return rules.uses_containers(settings.docker)
    return settings.docker != "never"


def _completed(app: AppDef, opts: SageMakerLocalOpts) -> SageMakerLocalOpts:
    """Return the options, completed with those that AWS would require."""
    changes: dict[str, Any] = {}
    typed = all(INSTANCE_TYPE in role.resource.capabilities for role in app.roles)
    named = opts.instance_type or opts.instance_groups or opts.instance_preferences
    if not named and not typed:
        changes["instance_type"] = DEFAULT_TYPE
    spec = app.roles[0].metadata.get("train") or {}
    if not opts.output_path and not (spec.get("output") or {}).get("uri"):
        changes["output_path"] = local_path(default_output()).uri
    if opts.code_location:
        changes["code_location"] = None
    return dataclasses.replace(opts, **changes)


def make_request(app: AppDef, opts: SageMakerLocalOpts, code: CodePackage | None) -> AWSSageMakerJob:
    """Return the job with the request that AWS would get, except for paths on this machine.

    Raises:
        ConfigError: the request would be refused.
    """
    region = opts.region or region_of_environment()
    planned = code.planned if code is not None else None
    completed = _completed(app, opts)
    check_options(app, completed, region=region, local=True)
    app = _started_once(app) if completed.batch_queue else app
    job = make_job(app, _without_queue(completed), code=planned, region=region, local=True)
    check_exists(job.needs.uploads)
    job.needs.role_name, job.needs.role_check, job.needs.checkpoint_check = "", False, ""  # nobody to ask
    replacements = {names.ACCOUNT: ACCOUNT}
    if job.needs.code_uri:
        here = f"{local_path(code_dir()).uri}/{planned.key if planned is not None else ''}/"
        replacements = {job.needs.code_uri: here, **replacements}
        job.needs.code_uri = here
    job.job_def = settle(job.job_def, replacements)
    settings = settings_of(opts.file_systems, job.job_def)
    _check(settle(job.job_def, {names.CONTENT: "content"}), settings)
    told = {"notify": opts.notify, "notify_secret": opts.notify_secret, "hang_timeout": opts.hang_timeout}
    job.supervision = {key: value for key, value in told.items() if value}
    if opts.hang_timeout is not None:
        job.supervision["on_hang"] = opts.on_hang
    return job


def settings_of(file_systems: dict[str, str] | None, request: dict[str, Any]) -> Settings:
    """Return how a job is to be carried out: as the environment says, with the job's own file systems.

    Raises:
        ConfigError: one of the settings makes no sense.
    """
    settings = Settings.from_env()
    if request["AlgorithmSpecification"].get("TrainingImage") == PROCESS_IMAGE:
        settings = dataclasses.replace(settings, docker="never")
    own = filesystems.checked(file_systems or {}, "file_systems")
    return dataclasses.replace(settings, file_systems={**settings.file_systems, **own})


def _check(request: dict[str, Any], settings: Settings) -> None:
    try:
        check_request(request, by_model=is_installed())
        rules.check(request, settings.docker, settings.file_systems)
    except ApiError as error:
        raise ConfigError(f"SageMaker would refuse the job: {redact_text(error.message)}") from None


def ship(job: AWSSageMakerJob, code: CodePackage, progress: Progress) -> None:
    """Put the code into its directory, whole or not at all, and its content's name into the request.

    Raises:
        StateStoreError: it cannot be written.
        WorkspaceChangedError: the files are changed again and again.
    """
    uri = job.needs.code_uri
    if not uri:
        return
    try:
        code.resolve(progress)
        for attempt in range(1, CODE_ATTEMPTS + 1):
            try:
                _write(code)
                break
            except WorkspaceChangedError:
                if attempt == CODE_ATTEMPTS or not code.reread():
                    raise
        job.job_def = settle(job.job_def, {uri: f"{local_path(code_dir()).uri}/{code.key}/"})
        job.needs = Needs()
    finally:
        code.close()


def _write(code: CodePackage) -> None:
    target = os.path.join(code_dir(), code.key)
    if os.path.isdir(target):
        os.utime(target)
        return
    make_private_dir(code_dir())
    try:
        staged = tempfile.mkdtemp(prefix=".new-", dir=code_dir())
        try:
            code.write(staged)
            try:
                os.rename(staged, target)
            except OSError:
                if not os.path.isdir(target):  # another process was quicker with the same content
                    raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    except OSError as error:
        raise state_error("write the job's code to", target, error) from error
    code.keep()


def unchecked() -> str:
    """Return in words which check is left out on this machine; "" if none is."""
    if is_installed():
        return ""
    return (
        "boto3 is not installed: it has not been checked that AWS would take this request (pip install boto3)"
    )


def python_of(app: AppDef | None, request: dict[str, Any]) -> JobPython | None:
    """Return the Python of a job's hosts; None if they may be containers."""
    if settings_of(None, request).docker != "never":
        return None
    return job_python.choose(job_python.places_of(app, [os.getcwd()]))


def submit(info: AppDryRunInfo[AWSSageMakerJob]) -> str:
    """Start a job's supervisor; returns the job's id."""
    job = info.request
    settings = settings_of(info.cfg.get("file_systems"), job.job_def)
    _check(job.job_def, settings)
    opts = SageMakerLocalOpts(**info.cfg)
    settings = dataclasses.replace(settings, hang_timeout=opts.hang_timeout, on_hang=opts.on_hang)

    def prepare(started: TrainingJob) -> None:
        if opts.notify:
            handle = make_app_handle(names.LOCAL_BACKEND, info.session or "", job.job_name)
            outbox.prepare(started.path, handle, opts.notify, opts.notify_secret)

    region = info.cfg.get("region") or region_of_environment()
    app = to_json(info.app) if info.app is not None else None
    try:
        python = python_of(info.app, job.job_def)
        start_job(job.job_def, region=region, settings=settings, app=app, python=python, prepare=prepare)
    except FileExistsError:
        raise BackendError(
            f"there is a training job {job.job_name} already",
            hint=f"It is in {TrainingJob.of(job.job_name).path}.",
        ) from None
    return job.job_name

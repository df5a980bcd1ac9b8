"""From a job and options to a CreateTrainingJob request. Nothing is read, uploaded or asked here.

What only AWS or a disk can tell stands in the request by a name of its own until then: the account
(``<account>``), the content of a repository (``<content>``), paths of this machine (``file://...``).
`settle` puts what they have come to be in their place.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trainyard
from trainyard.errors import ConfigError
from trainyard.schedulers.aws import s3, service_model
from trainyard.schedulers.aws.sagemaker import configs, names, request_rules
from trainyard.schedulers.aws.sagemaker.channels import (
    MODEL_CONTENT_TYPE,
    Channels,
    Upload,
    is_s3,
    local_path,
)
from trainyard.schedulers.aws.sagemaker.container import Programs
from trainyard.schedulers.aws.sagemaker.instances import Instances
from trainyard.schedulers.aws.sagemaker.network_isolation import problems_of as isolation_problems
from trainyard.schedulers.aws.sagemaker.option_rules import (
    WITHOUT_DEBUGGER,
    check_options,
    metric_pairs,
    refuse,
    tag_pairs,
    variable_problems,
)
from trainyard.schedulers.aws.sagemaker.options import FILE, AWSSageMakerOpts
from trainyard.schedulers.aws.sagemaker.queue_request import queue_name, submission_of
from trainyard.schedulers.aws.sagemaker.training_script import script_of
from trainyard.specs.app import AppDef
from trainyard.system.identity import user_name

DEFAULT_MODEL_CHANNEL = "model"


def make_job(
    app: AppDef,
    opts: AWSSageMakerOpts,
    *,
    job_name: str | None = None,
    code: PlannedCode | None = None,
    region: str = "us-east-1",
    local: bool = False,
) -> AWSSageMakerJob:
    """Make the request. Pure: calls nothing, reads nothing.

    Args:
        app: the job; it is not changed.
        opts: the options.
        job_name: name of the training job; a new one by default.
        code: the code that goes with it; None for none.
        region: where it is to run.
        local: whether it runs on this machine: results and checkpoints may go to paths, given as
            ``file://`` URIs in the request.

    Raises:
        ConfigError: the job or the options do not fit SageMaker, or each other.
    """
    check_options(app, opts, region=region, local=local)
    job = _Builder(
        app, opts, job_name or names.make_job_name(opts.base_job_name or app.name), code, region
    ).job()
    problems = request_rules.problems_of(job.job_def, request_rules.as_options, is_local=local)
    problems += variable_problems(job.job_def.get("Environment", {}))
    refuse(app, [*problems, *isolation_problems(job.job_def)])
    return job


class _Builder:
    """Makes one request, part by part."""

    def __init__(
        self, app: AppDef, opts: AWSSageMakerOpts, job_name: str, code: PlannedCode | None, region: str
    ) -> None:
        self.app = app
        self.opts = opts
        self.job_name = job_name
        queue = queue_name(opts.batch_queue or "")
        self.app_id = f"{queue}:{job_name}" if queue else job_name
        self.region = region
        self.needs = Needs()
        self.script = script_of(app.roles[0]) if len(app.roles) == 1 else None
        self.instances = Instances(app, opts)
        self.output_path = self._output_path()
        if code is not None and code.key:
            self.needs.code_uri = self._code_uri(code.key)
        self.programs = Programs(self, code)

    def job(self) -> AWSSageMakerJob:
        opts = self.opts
        channels = self._channels()
        parts: dict[str, Any] = {
            "TrainingJobName": self.job_name,
            "RoleArn": self._role(),
            "AlgorithmSpecification": self._algorithm(),
            "OutputDataConfig": self._output(),
            "ResourceConfig": self.instances.config,
            "StoppingCondition": self._stopping(),
            "HyperParameters": self.programs.hyperparameters,
            "Environment": self.programs.environment,
            "InputDataConfig": channels.entries,
            "VpcConfig": self._vpc(),
            "CheckpointConfig": self._checkpoints(),
            "DebugHookConfig": self._debug_hook(),
            "DebugRuleConfigurations": configs.rules_of(opts, "debugger_rules", self.region),
            "ProfilerConfig": self._profiler(),
            "ProfilerRuleConfigurations": configs.rules_of(opts, "profiler_rules", self.region),
            "TensorBoardOutputConfig": configs.config_of(opts, "tensorboard_output_config"),
            "ExperimentConfig": configs.config_of(opts, "experiment_config"),
            "MlflowConfig": configs.config_of(opts, "mlflow_config"),
            "ModelPackageConfig": configs.config_of(opts, "model_package_config"),
            "Tags": self._tags(),
        }
        switches = {
            "EnableManagedSpotTraining": opts.use_spot_instances,
            "EnableNetworkIsolation": opts.enable_network_isolation,
            "EnableInterContainerTrafficEncryption": opts.encrypt_inter_container_traffic,
        }
        request = {key: value for key, value in parts.items() if value}
        request |= {key: True for key, on in switches.items() if on}
        request |= self._small_configs()
        self.needs.uploads = channels.uploads
        self.needs.extension = opts.training_plan_extension or ""
        job = AWSSageMakerJob(self.job_name, request, needs=self.needs, runs=self.programs.runs)
        if opts.batch_queue:
            job.submission = submission_of(self.app, opts, self.job_name, request["Tags"])
        return job

    def _role(self) -> str:
        role = self.opts.role
        if role.startswith("arn:"):
            # a look-up is worth it where the job is to survive what others do not, or hands tags on
            again = self.opts.max_retry_attempts is not None
            self.needs.role_check = again or bool(self.opts.enable_session_tag_chaining)
            return role
        self.needs.role_name = role.rpartition("/")[2]
        return f"arn:aws:iam::{names.ACCOUNT}:role/{role.strip('/')}"

    def _algorithm(self) -> dict[str, Any]:
        opts = self.opts
        algorithm: dict[str, Any] = {
            "TrainingImage": self.app.roles[0].image,
            "TrainingInputMode": opts.input_mode or FILE,
        }
        if self.programs.entrypoint:
            algorithm["ContainerEntrypoint"] = self.programs.entrypoint
        if self.programs.arguments:
            algorithm["ContainerArguments"] = self.programs.arguments
        metrics = self._metrics()
        if metrics:
            algorithm["MetricDefinitions"] = metrics
        if opts.enable_sagemaker_metrics is not None:
            algorithm["EnableSageMakerMetricsTimeSeries"] = opts.enable_sagemaker_metrics
        if opts.training_repository_access_mode is not None:
            config: dict[str, Any] = {"TrainingRepositoryAccessMode": opts.training_repository_access_mode}
            provider = opts.training_repository_credentials_provider_arn
            if provider:
                config["TrainingRepositoryAuthConfig"] = {
                    "TrainingRepositoryCredentialsProviderArn": provider
                }
            algorithm["TrainingImageConfig"] = config
        return algorithm

    def _metrics(self) -> list[dict[str, str]]:
        pairs = [pair for given in self.opts.metric_definitions or [] for pair in metric_pairs(given)]
        if self.script is not None:
            pairs += [(metric["name"], metric["regex"]) for metric in self.script.metrics]
        twice = sorted({name for name, _ in pairs if [other for other, _ in pairs].count(name) > 1})
        if twice:
            raise ConfigError(f"the metric {twice[0]!r} is defined twice")
        return [{"Name": name, "Regex": regex} for name, regex in pairs]

    def _output_path(self) -> str:
        wanted = self.script.output.get("uri", "") if self.script is not None else ""
        given = _one_of("output", wanted, "output_path", self.opts.output_path)
        if given:
            return _destination("output", given)
        return self._default_bucket()

    def _default_bucket(self) -> str:
        self.needs.default_bucket = True
        return s3.join_uri(names.default_bucket(self.region))

    def _output(self) -> dict[str, Any]:
        output: dict[str, Any] = {"S3OutputPath": self.output_path}
        if self.opts.output_kms_key:
            output["KmsKeyId"] = self.opts.output_kms_key
        uncompressed = self.opts.disable_output_compression
        if self.script is not None and self.script.output.get("compression") == "none":
            uncompressed = True
        if uncompressed:
            output["CompressionType"] = "NONE"
        return output

    def _stopping(self) -> dict[str, int]:
        opts = self.opts
        max_run = opts.max_run
        if max_run is None and self.script is not None:
            max_run = self.script.max_run
        stopping = {"MaxRuntimeInSeconds": request_rules.DEFAULT_RUN if max_run is None else max_run}
        if opts.max_wait is not None:
            stopping["MaxWaitTimeInSeconds"] = opts.max_wait
        if opts.max_pending is not None:
            stopping["MaxPendingTimeInSeconds"] = opts.max_pending
        return stopping

    def _channels(self) -> Channels:
        channels = Channels()
        given: dict[str, Any] = dict(self.opts.channels or {})
        wanted = self.script.channels if self.script is not None else {}
        for name, uri in [*given.items(), *wanted.items()]:
            channels.add(name, uri)
        if self.opts.model_uri:
            channels.add(
                self.opts.model_channel_name or DEFAULT_MODEL_CHANNEL,
                self.opts.model_uri,
                ContentType=MODEL_CONTENT_TYPE,
                InputMode=FILE,
            )
        for name, uri in self.programs.channels.items():
            channels.add(name, uri, InputMode=FILE)
        channels.assign(self.instances.groups)
        return channels

    def _vpc(self) -> dict[str, list[str]]:
        if not self.opts.subnets:
            return {}
        return {"Subnets": self.opts.subnets, "SecurityGroupIds": self.opts.security_group_ids or []}

    def _checkpoints(self) -> dict[str, str]:
        wanted = self.script.checkpoints if self.script is not None else {}
        uri = _one_of("checkpoints", wanted.get("uri", ""), "checkpoint_s3_uri", self.opts.checkpoint_s3_uri)
        if not uri:
            return {}
        again = self.opts.max_retry_attempts is not None or self.opts.use_spot_instances
        if again and uri.startswith("s3://") and not s3.is_directory_bucket(uri):
            self.needs.checkpoint_check = uri
        path = self.opts.checkpoint_local_path or wanted.get("path")
        return {"S3Uri": _destination("checkpoints", uri), **({"LocalPath": str(path)} if path else {})}

    def _debug_hook(self) -> dict[str, Any]:
        given = self.opts.debugger_hook_config
        # as the SDK has it: Debugger does not go together with parameter servers
        is_default = given is None and not self.opts.debugger_rules
        if given is False or self.region in WITHOUT_DEBUGGER or (is_default and self._has_parameter_server()):
            return {}
        config = configs.config_of(self.opts, "debugger_hook_config")
        return {"S3OutputPath": self.output_path, "CollectionConfigurations": [], **config}

    def _has_parameter_server(self) -> bool:
        return bool((self.opts.distribution or {}).get("parameter_server", {}).get("enabled"))

    def _profiler(self) -> dict[str, Any]:
        trainium = any(kind.startswith("ml.trn") for kind in self.instances.types)
        given = configs.config_of(self.opts, "profiler_config")
        if given and not given.get("DisableProfiler"):
            return {"S3OutputPath": self.output_path, "DisableProfiler": False, **given}
        if self.opts.disable_profiler or self.region in WITHOUT_DEBUGGER or trainium or given:
            return {"DisableProfiler": True}
        return {"S3OutputPath": self.output_path, "DisableProfiler": False}

    def _small_configs(self) -> dict[str, Any]:
        opts = self.opts
        configs: dict[str, Any] = {}
        if opts.max_retry_attempts is not None:
            configs["RetryStrategy"] = {"MaximumRetryAttempts": opts.max_retry_attempts}
        if opts.enable_infra_check is not None:
            configs["InfraCheckConfig"] = {"EnableInfraCheck": opts.enable_infra_check}
        if opts.enable_remote_debug is not None:
            configs["RemoteDebugConfig"] = {"EnableRemoteDebug": opts.enable_remote_debug}
        if opts.enable_session_tag_chaining is not None:
            configs["SessionChainingConfig"] = {"EnableSessionTagChaining": opts.enable_session_tag_chaining}
        return configs

    def _tags(self) -> list[dict[str, str]]:
        tags = {key: value for given in self.opts.tags or [] for key, value in tag_pairs(given)}
        tags |= {key: str(value) for key, value in self.app.metadata.items()}
        tags[names.TAG_VERSION] = trainyard.__version__
        if self.opts.batch_queue:
            tags[names.TAG_QUEUED] = self.app_id
        tags[names.TAG_APP_NAME] = names.tag_value(self.app.name)
        user = user_name() if self.opts.user is None else self.opts.user
        if user:
            tags[names.TAG_USER] = names.tag_value(user)
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    def _code_uri(self, key: str) -> str:
        """Return where the code goes: code_location, or the bucket of the results."""
        if self.opts.code_location:
            bucket, prefix = s3.split_uri(self.opts.code_location)
        elif is_s3(self.output_path):
            bucket, prefix = s3.split_uri(self.output_path)[0], ""
        else:
            bucket, prefix = s3.split_uri(self._default_bucket())[0], ""
        return s3.join_uri(bucket, prefix, "trainyard/code", key) + "/"


def _one_of(name: str, wanted: str, option: str, given: str | None) -> str:
    if wanted and given and wanted.rstrip("/") != given.rstrip("/"):
        raise ConfigError(
            f"the script's {name} go to {wanted}, and {option} is {given}", hint="Give one of them."
        )
    return given or wanted


def _destination(what: str, uri: str) -> str:
    if is_s3(uri):
        return uri
    if "://" in uri and not uri.startswith("file://"):
        raise ConfigError(
            f"{what}: SageMaker writes to no {uri.partition('://')[0]}:// URIs", hint="s3://bucket/prefix"
        )
    return local_path(uri).uri


def check_job(job: AWSSageMakerJob) -> None:
    """Check all requests of a job, settled or not, against the services' own models.

    Raises:
        ConfigError: a service would refuse it, or the installed boto3 cannot ask for it.
    """
    from trainyard.schedulers.aws.service_model import problems_of

    problems = operation_too_new("sagemaker", "ExtendTrainingPlan") if job.needs.extension else []
    if job.submission:
        submission = {**job.submission, "serviceRequestPayload": "{}"}
        missing = too_new("batch", "SubmitServiceJob", submission)
        is_known = not operation_too_new("batch", "SubmitServiceJob")
        problems += missing + (problems_of("batch", "SubmitServiceJob", submission) if is_known else [])
    check_request(job.job_def, problems)


def check_request(request: Mapping[str, Any], others: Sequence[str] = ()) -> None:
    """Check a request, settled or not, against the service's own model.

    Args:
        request: the CreateTrainingJob request.
        others: what else is wrong with the job.

    Raises:
        ConfigError: the service would refuse it; everything that is wrong is said at once.
    """
    from trainyard.schedulers.aws.service_model import problems_of

    example = settle(
        request, {names.ACCOUNT: "000000000000", names.CONTENT: "content", "file:///": "s3://local/"}
    )
    missing = too_new("sagemaker", "CreateTrainingJob", example)  # and takes that out of the example
    problems = [*others, *missing, *problems_of("sagemaker", "CreateTrainingJob", example)]
    if problems:
        from trainyard.redaction import redact_text

        text = "".join(f"\n  - {redact_text(problem)}" for problem in problems)
        raise ConfigError(f"SageMaker would refuse the job:{text}")


# ---- What of the services an installed boto3 does not know yet, said before anything is uploaded


_TRAINING = ("sagemaker", "CreateTrainingJob")
_QUEUE = ("batch", "SubmitServiceJob")
#: Members of requests that are newer than the oldest boto3 that is supported, the option that they come from,
#: and the first boto3 that has them.
MEMBERS: dict[tuple[str, str], list[tuple[tuple[str, ...], str, str]]] = {
    _TRAINING: [
        (("ResourceConfig", "InstancePreferences"), "instance_preferences", "1.43.90"),
        (("ResourceConfig", "InstancePlacementConfig"), "instance_placement_config", "1.40.6"),
        (("ResourceConfig", "TrainingPlanArn"), "training_plan", "1.35.75"),
        (("MlflowConfig",), "mlflow_config", "1.42.2"),
        (("ModelPackageConfig",), "model_package_config", "1.42.2"),
    ],
    _QUEUE: [
        (("quotaShareName",), "batch_quota_share", "1.42.72"),
        (("preemptionConfiguration",), "batch_preemption_retries", "1.42.72"),
    ],
}
#: The same of whole operations.
OPERATIONS: dict[tuple[str, str], tuple[str, str]] = {
    ("sagemaker", "ExtendTrainingPlan"): ("training_plan_extension", "1.42.66"),
    _QUEUE: ("batch_queue", "1.39.16"),
}


def too_new(service: str, operation: str, request: dict[str, Any]) -> list[str]:
    """Return what of a request the installed boto3 does not know, and take it out, so that the rest can be
    checked.

    Args:
        service: name of the service, such as ``sagemaker``.
        operation: name of the operation.
        request: the request; it is changed.
    """
    missing = operation_too_new(service, operation)
    if missing:
        return missing
    problems = []
    for path, option, version in MEMBERS.get((service, operation), []):
        place: Any = request
        for name in path[:-1]:
            place = place.get(name) or {}
        if path[-1] in place and not service_model.has_member(service, operation, path):
            del place[path[-1]]
            problems.append(_needs(option, version))
    return problems


def operation_too_new(service: str, operation: str) -> list[str]:
    """Return what is to be said if the installed boto3 does not know an operation."""
    known = OPERATIONS.get((service, operation))
    if known is None or service_model.has_operation(service, operation):
        return []
    return [_needs(*known)]


def _needs(option: str, version: str) -> str:
    from botocore import __version__

    return f"{option} needs boto3 {version} or newer, and {__version__} is installed: pip install -U boto3"


# ---- A training job that can be submitted: the request, and what comes before it


@dataclass
class Needs:
    """What has to be done before a request can be sent.

    Attributes:
        role_name: name of the role whose ARN is to be found; "" where the ARN was given.
        role_check: whether the role is to be looked at, though its ARN was given.
        checkpoint_check: where the checkpoints are, if the role's rights to them are to be looked at.
        default_bucket: whether something goes to the account's own bucket, made if it is missing.
        code_uri: where the code is to be uploaded, a "directory" of S3; "" if there is none to upload.
        uploads: paths of this machine that are to be uploaded.
        extension: id of the offering that the job's training plan is to be extended by; "" for none.
    """

    role_name: str = ""
    role_check: bool = False
    checkpoint_check: str = ""
    default_bucket: bool = False
    code_uri: str = ""
    uploads: list[Upload] = field(default_factory=list)
    extension: str = ""

    def steps(self) -> list[str]:
        """Return in words what will be done."""
        steps = []
        if self.role_name:
            steps.append(f"look up the ARN of the role {self.role_name}, and whether SageMaker may assume it")
        if self.role_check:
            steps.append("look up whether SageMaker may assume the role, if that is allowed")
        if self.checkpoint_check:
            steps.append(
                f"look up whether the role may read and write {self.checkpoint_check}, for when the job is "
                "started again, if that is allowed"
            )
        if self.default_bucket:
            steps.append("make the account's own bucket, unless it is there")
        if self.code_uri:
            steps.append(f"upload the code to {self.code_uri}, unless it is there")
        steps += [f"upload {upload.path}, unless it is there" for upload in self.uploads]
        if self.extension:
            steps.append(
                f"buy the extension {self.extension} of the training plan, which is paid at once, unless the "
                "plan has it"
            )
        return steps


@dataclass
class AWSSageMakerJob:
    """A training job that can be submitted.

    Attributes:
        job_name: its name on SageMaker, which is the job's id.
        job_def: the CreateTrainingJob request.
        images_to_push: images with the workspace, where they are made: name -> repository and tag.
        needs: what has to be done before the request can be sent.
        runs: what each role runs, for people: the request may have it in pieces.
        submission: the SubmitServiceJob request of a job that goes through a Batch queue, without its
            payload, which is the CreateTrainingJob request; empty for others.
    """

    job_name: str
    job_def: dict[str, Any]
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    runs: dict[str, list[str]] = field(default_factory=dict)
    submission: dict[str, Any] = field(default_factory=dict)

    @property
    def app_id(self) -> str:
        """The job's id: its name, and before it the queue if it goes through one."""
        queue = str(self.submission.get("jobQueue", "")).rpartition("/")[2]
        return f"{queue}:{self.job_name}" if queue else self.job_name

    def shown(self) -> dict[str, Any]:
        """Return the request as JSON values, without secrets, with what comes before it and what will run."""
        from trainyard.redaction import Redactor
        from trainyard.schedulers.aws.sagemaker.container import without_secrets

        redactor = Redactor()
        job_def = without_secrets(self.job_def)
        request: dict[str, Any] = {"CreateTrainingJob": job_def}
        if self.submission:
            payload = {"serviceRequestPayload": job_def}
            request = {"SubmitServiceJob": {**redactor.json(self.submission), **payload}}
        before, runs = redactor.json(self.needs.steps()), redactor.json(self.runs)
        shown = {"before": before, **request, "runs": runs}
        return {key: value for key, value in shown.items() if value}

    def __str__(self) -> str:
        """Return the same as text."""
        return json.dumps(self.shown(), indent=2)

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class PlannedCode:
    """What the request has to know of the code.

    Attributes:
        key: names its content; `names.CONTENT` where that is not known yet. "" if there is nothing to upload.
        archive: ``s3://`` URI of an archive that is there already; "" if the code is to be uploaded.
        has_code: whether there is code at all, and not the toolkit alone.
    """

    key: str = ""
    archive: str = ""
    has_code: bool = True


def settle(request: Mapping[str, Any], replacements: Mapping[str, str]) -> dict[str, Any]:
    """Return a request in which texts are replaced wherever they occur, in the order of the mapping."""
    settled = copy.deepcopy(dict(request))
    result: dict[str, Any] = _replaced(settled, replacements)
    return result


def _replaced(value: Any, replacements: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for old, new in replacements.items():
            if old in value:
                value = value.replace(old, new)
        return value
    if isinstance(value, dict):
        return {key: _replaced(item, replacements) for key, item in value.items()}
    return [_replaced(item, replacements) for item in value] if isinstance(value, list) else value

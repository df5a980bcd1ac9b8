"""The options of AWS SageMaker training jobs: each is declared here, once.

An option that is copied into the request as it is needs no more than its declaration: `optional` says which
``member`` it becomes. What `request` makes of the others is named by ``made_into``, for messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shunter._toolkit import metric_shapes
from shunter.errors import InvalidRunConfigException
from shunter.schedulers.supervision import HangOpts, NotifyOpts
from shunter.specs.options import (
    ACCESS,
    ADDRESS,
    CREDENTIALS,
    DESTINATION,
    FILES_OUTSIDE,
    PROGRAM,
    SECONDS,
    option,
)
from shunter.system.identity import user_name

FILE = "File"


def optional(help: str, **metadata: Any) -> Any:
    """Declare an option that may be left out; see `specs.options.option`.

    Args:
        help: what it does, in a sentence.
        metadata: ``member`` and ``batch_member``: the path of the member of CreateTrainingJob or
            SubmitServiceJob that it is copied to; ``made_into``: the path of the member that `request` makes
            of it.
    """
    return option(help, default=None, **metadata)


@dataclass(kw_only=True)
class AWSSageMakerOpts(HangOpts, NotifyOpts):
    """How a job runs on SageMaker. What is None is left to the service, or as its help says."""

    # ---- who and where
    role: str = option("IAM role that the job has in AWS: its ARN, or its name", needs_trust=CREDENTIALS)
    instance_type: str | None = optional(
        "type of the instances, such as ml.g5.xlarge; required, unless instance_groups are given or the "
        "role's resource names an AWS instance type",
        made_into="ResourceConfig.InstanceType",
    )
    instance_count: int = option(
        "number of instances, where the job itself does not say (num_replicas)",
        default=1,
        made_into="ResourceConfig.InstanceCount",
    )
    instance_groups: list[dict[str, Any]] | None = optional(
        "instances of several types, as JSON: "
        '[{"name": "a", "type": "ml.m5.large", "count": 1}, ...]; the names of roles where there are several',
        made_into="ResourceConfig.InstanceGroups",
    )
    user: str = option("name to tag the job with; the current user by default", factory=user_name)
    region: str | None = optional(
        "AWS region; that of the environment or profile by default", needs_trust=DESTINATION
    )
    profile: str | None = optional(
        "profile of ~/.aws/config; that of the environment by default", needs_trust=CREDENTIALS
    )
    base_job_name: str | None = optional("what the job's name begins with; the application's name by default")
    tags: list[dict[str, str]] | None = optional(
        'tags of the job: team=ml, or as JSON [{"Key": "team", "Value": "ml"}]'
    )

    # ---- instances
    keep_alive_period_in_seconds: int | None = optional(
        "keep the instances for the next job this long (warm pool), at most 21600 s",
        member="ResourceConfig.KeepAlivePeriodInSeconds",
    )
    volume_size: int | None = optional(
        "GB of disk of each instance (30 by default)", member="ResourceConfig.VolumeSizeInGB"
    )
    volume_kms_key: str | None = optional(
        "KMS key that encrypts the instances' disks",
        member="ResourceConfig.VolumeKmsKeyId",
        needs_trust=CREDENTIALS,
    )
    max_run: int | None = optional(
        "stop the job after it has run for this many seconds (86400 by default)",
        time_limit=SECONDS,
        member="StoppingCondition.MaxRuntimeInSeconds",
    )
    use_spot_instances: bool | None = optional(
        "run on spare capacity that may be taken away; needs max_wait", member="EnableManagedSpotTraining"
    )
    max_wait: int | None = optional(
        "with spot instances: maximum number of seconds from submission to the end, waiting included; at "
        "least max_run",
        member="StoppingCondition.MaxWaitTimeInSeconds",
    )
    max_pending: int | None = optional(
        "give up if no accelerated instances become available within this many seconds, 1800 to 2419200",
        member="StoppingCondition.MaxPendingTimeInSeconds",
    )
    max_retry_attempts: int | None = optional(
        "how many times the service restarts the job after a fault of the service, 1 to 30",
        member="RetryStrategy.MaximumRetryAttempts",
    )
    retry: dict[str, str] | None = option(
        "number of restarts for each class of failure that the service restarts: node=3 (faults of the "
        "service, as max_retry_attempts), preempted=inf (with spot instances), exception=0",
        default=None,
    )
    training_plan: str | None = optional(
        "ARN of a training plan with reserved capacity",
        member="ResourceConfig.TrainingPlanArn",
    )
    instance_preferences: list[str | dict[str, Any]] | None = optional(
        "up to 5 instance types in place of instance_type; the job runs on the first that has capacity: "
        'ml.p5.48xlarge,ml.p4d.24xlarge, or as JSON [{"type": "ml.p5.48xlarge", "count": 1, '
        '"training_plan_arns": ["arn:..."]}, ...]',
        made_into="ResourceConfig.InstancePreferences",
    )
    instance_placement_config: dict[str, Any] | None = optional(
        "how instances are placed on UltraServers, as JSON: "
        '{"enable_multiple_jobs": true, "placement_specifications": [{"instance_count": 2}]}',
        member="ResourceConfig.InstancePlacementConfig",
    )
    enable_infra_check: bool | None = optional(
        "check the instances' hardware before the job", member="InfraCheckConfig.EnableInfraCheck"
    )

    # ---- a queue of AWS Batch
    batch_queue: str | None = optional(
        "job queue of AWS Batch, by name or ARN, that the job waits in; its type is SAGEMAKER_TRAINING. "
        "Without one SageMaker gets the job at once",
        needs_trust=DESTINATION,
    )
    batch_share_identifier: str | None = optional(
        "share identifier; required if the queue has a fair-share policy, and not allowed otherwise",
        batch_member="shareIdentifier",
    )
    batch_quota_share: str | None = optional(
        "quota share; required if the queue has quota shares, and not allowed otherwise",
        batch_member="quotaShareName",
    )
    batch_priority: int | None = optional(
        "scheduling priority, 0 to 9999, highest first", batch_member="schedulingPriority"
    )
    batch_attempts: int | None = optional("maximum number of attempts, 1 to 10 (max_retries + 1 by default)")
    batch_retry_rules: list[str] | None = optional(
        "after which failures it is restarted: PATTERN:retry or PATTERN:final, where the pattern is "
        "Batch's status reason, or with a * its beginning; the first that fits holds, and where none fits "
        "the job is restarted. Example: 'Received status from SageMaker: Internal*:retry',*:final"
    )
    batch_timeout: int | None = optional(
        "stop each attempt after this many seconds, at least 60",
        batch_member="timeoutConfig.attemptDurationSeconds",
    )
    batch_preemption_retries: int | None = optional(
        "how many times a job of a quota share may be preempted and restarted (without limit by default)",
        batch_member="preemptionConfiguration.preemptionRetriesBeforeTermination",
    )

    # ---- input
    input_mode: str | None = optional(
        "how data comes to the job: File (copied before the start), FastFile, Pipe (File by default)",
        member="AlgorithmSpecification.TrainingInputMode",
    )
    channels: dict[str, str] | None = optional(
        "input data by channel: training=s3://bucket/prefix, a path of this machine (uploaded), "
        "fsx://fs-ID/path or efs://fs-ID/path; settings follow a ?: "
        "s3://b/p?mode=FastFile&distribution=ShardedByS3Key",
        needs_trust=FILES_OUTSIDE,
    )
    model_uri: str | None = optional(
        "a model to start from: s3://..., or a path of this machine, which is uploaded",
        needs_trust=FILES_OUTSIDE,
    )
    model_channel_name: str | None = optional("channel that model_uri is found in ('model' by default)")

    # ---- results
    output_path: str | None = optional(
        "s3://... for the model and other results; a bucket of the account, made if missing, by default",
        made_into="OutputDataConfig.S3OutputPath",
        needs_trust=DESTINATION,
    )
    output_kms_key: str | None = optional(
        "KMS key that encrypts results, and the code on its way",
        member="OutputDataConfig.KmsKeyId",
        needs_trust=CREDENTIALS,
    )
    disable_output_compression: bool | None = optional("upload the model as files and not as model.tar.gz")
    checkpoint_s3_uri: str | None = optional(
        "s3://... that checkpoints go to while the job runs, and come back from", needs_trust=DESTINATION
    )
    checkpoint_local_path: str | None = optional(
        "where the program writes checkpoints (/opt/ml/checkpoints by default); needs checkpoint_s3_uri",
        made_into="CheckpointConfig.LocalPath",
    )
    metric_definitions: list[dict[str, str | None]] | None = optional(
        'metrics to read from the logs: loss, loss=REGEX, or as JSON [{"Name": "loss", "Regex": "..."}]'
    )
    enable_sagemaker_metrics: bool | None = optional(
        "keep metrics as time series", member="AlgorithmSpecification.EnableSageMakerMetricsTimeSeries"
    )
    debugger_hook_config: bool | dict[str, Any] | None = optional(
        "let SageMaker Debugger save tensors below output_path; on by default where the region has it; or as "
        'JSON {"s3_output_path": "s3://...", "hook_parameters": {"save_interval": "100"}, '
        '"collection_configurations": [{"name": "losses"}]}',
        made_into="DebugHookConfig",
        needs_trust=DESTINATION,
    )
    debugger_rules: list[dict[str, Any]] | None = optional(
        'rules that examine saved tensors, as JSON [{"name": "VanishingGradient"}]: a built-in rule, or any '
        "with rule_evaluator_image and rule_parameters",
        made_into="DebugRuleConfigurations",
        needs_trust=PROGRAM,
    )
    disable_profiler: bool | None = optional(
        "no monitoring and profiling by SageMaker Debugger (False by default)"
    )
    profiler_config: dict[str, Any] | None = optional(
        "how the job is profiled: s3_output_path, profiling_interval_in_milliseconds (100, 200, 500, 1000, "
        "5000, 60000), profiling_parameters",
        made_into="ProfilerConfig",
        needs_trust=DESTINATION,
    )
    profiler_rules: list[dict[str, Any]] | None = optional(
        'rules that examine the profile, as JSON [{"name": "ProfilerReport"}]; see debugger_rules',
        made_into="ProfilerRuleConfigurations",
        needs_trust=PROGRAM,
    )
    tensorboard_output_config: dict[str, Any] | None = optional(
        "where TensorBoard's files go: s3_output_path=s3://bucket/prefix, and local_path "
        "(/opt/ml/output/tensorboard by default)",
        member="TensorBoardOutputConfig",
        needs_trust=DESTINATION,
    )
    experiment_config: dict[str, str] | None = optional(
        "the SageMaker experiment that the job is part of: experiment_name, trial_name, run_name, "
        "trial_component_display_name",
        member="ExperimentConfig",
    )
    mlflow_config: dict[str, str] | None = optional(
        "managed MLflow that keeps the run: resource_arn, experiment_name, run_name",
        member="MlflowConfig",
        needs_trust=DESTINATION,
    )
    model_package_config: dict[str, str] | None = optional(
        "model package that the model becomes: model_package_group_arn, source_model_package_arn",
        member="ModelPackageConfig",
        needs_trust=DESTINATION,
    )

    # ---- network and access
    subnets: list[str] | None = optional(
        "subnets of a VPC; with security_group_ids", member="VpcConfig.Subnets", needs_trust=ACCESS
    )
    security_group_ids: list[str] | None = optional(
        "security groups in the VPC; with subnets", member="VpcConfig.SecurityGroupIds", needs_trust=ACCESS
    )
    encrypt_inter_container_traffic: bool | None = optional(
        "encrypt the traffic between instances (False by default)",
        member="EnableInterContainerTrafficEncryption",
    )
    enable_network_isolation: bool | None = optional(
        "no network for the container; code and data still come and go (False by default)",
        member="EnableNetworkIsolation",
    )
    enable_remote_debug: bool | None = optional(
        "let people connect to the running container (SSM)",
        member="RemoteDebugConfig.EnableRemoteDebug",
        needs_trust=ACCESS,
    )
    enable_session_tag_chaining: bool | None = optional(
        "pass the submitter's session tags on to the job's role",
        member="SessionChainingConfig.EnableSessionTagChaining",
        needs_trust=CREDENTIALS,
    )
    training_repository_access_mode: str | None = optional(
        "where the image is pulled from: Platform, or Vpc for a registry inside the VPC",
        member="AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAccessMode",
    )
    training_repository_credentials_provider_arn: str | None = optional(
        "ARN of a Lambda function with the registry's login; with access mode Vpc",
        member="AlgorithmSpecification.TrainingImageConfig.TrainingRepositoryAuthConfig.TrainingRepositoryCredentialsProviderArn",
        needs_trust=CREDENTIALS,
    )

    # ---- the program
    environment: dict[str, str] | None = optional("environment variables, in addition to those of the job")
    hyperparameters: dict[str, Any] | None = optional(
        "hyperparameters, besides the script's arguments: lr=0.1, or as JSON with values of any kind; names "
        "with sagemaker_ go to what starts the script"
    )
    distribution: dict[str, Any] | None = optional(
        "how the image's toolkit starts a script on all instances, as the SageMaker SDK has it: "
        '{"torch_distributed": {"enabled": true}}, or smdistributed, mpi, parameter_server, '
        "multi_worker_mirrored_strategy, pytorchxla, pytorchddp"
    )
    container_log_level: int | None = optional(
        "level of Python's logging in the container (20, INFO, by default)"
    )
    source_dir: str | None = optional(
        "directory of the code, or s3://.../sourcedir.tar.gz; the workspace, that is the current directory, "
        "by default",
        needs_trust=FILES_OUTSIDE,
    )
    git_config: dict[str, Any] | None = optional(
        "clone the code: repo, branch, commit, username, password, token, 2FA_enabled; source_dir and "
        "dependencies are in it then. A password or token is better left to GIT_PASSWORD or GIT_TOKEN",
        needs_trust=ADDRESS,
    )
    dependencies: list[str] | None = optional(
        "more directories and files to put next to the code, each under the last part of its path",
        needs_trust=FILES_OUTSIDE,
    )
    code_location: str | None = optional(
        "s3://... that code is uploaded to; the bucket of output_path by default", needs_trust=DESTINATION
    )
    toolkit: bool = option(
        "start scripts with shunter's toolkit, which travels with the code and needs Python in the image; "
        "false: with the image's own `train` command, which gets the arguments as hyperparameters",
        default=True,
    )
    image_repo: str | None = optional(
        "image repository to push images to, with the workspace or with a script's environment; by default "
        "code goes through S3, and environments are installed at the start",
        needs_trust=DESTINATION,
    )
    quiet: bool = option("show no progress while code is packed and uploaded", default=False)


def declared(key: str) -> dict[str, str]:
    """Return what options declare: their names, and the metadata of this key where it is given."""
    fields = dataclasses.fields(AWSSageMakerOpts)
    return {field.name: field.metadata[key] for field in fields if field.metadata.get(key)}


#: The options that say how a job waits in the queue of ``batch_queue``.
QUEUE_OPTIONS = tuple(
    field.name
    for field in dataclasses.fields(AWSSageMakerOpts)
    if field.name.startswith("batch_") and field.name != "batch_queue"
)
#: Which option a member of the request comes from, for messages.
OPTION_OF_MEMBER = {
    path.rpartition(".")[2]: name for key in ("member", "made_into") for name, path in declared(key).items()
} | {"VpcConfig": "subnets and security_group_ids"}


def copied(opts: AWSSageMakerOpts, key: str) -> Iterator[tuple[str, Any]]:
    """Return the path and the value of every option that a request has as it is given.

    ``key`` is "member" for those of CreateTrainingJob, "batch_member" for those of SubmitServiceJob.
    """
    for name, path in declared(key).items():
        value = getattr(opts, name)
        value = as_object(opts, name) if isinstance(value, Mapping) else value
        if value not in (None, "", [], {}):
            yield path, value


# ---- options that are objects of the request

_OUTPUT = {"container_local_output_path": "LocalPath"}
_RULE = {**_OUTPUT, "name": "RuleConfigurationName", "image_uri": "RuleEvaluatorImage"}
_INSTANCES = {"type": "InstanceType", "count": "InstanceCount"}
#: Other names of members, by option or by the list that they stand in: the SDK's, and short ones. Every
#: member can be written as the service does and in snake_case, too; the service's model has them all.
OTHER_NAMES: dict[str, dict[str, str]] = {
    "debugger_hook_config": {**_OUTPUT, "collection_configs": "CollectionConfigurations"},
    "CollectionConfigurations": {"name": "CollectionName", "parameters": "CollectionParameters"},
    "debugger_rules": _RULE,
    "profiler_config": {
        "system_monitor_interval_millis": "ProfilingIntervalInMilliseconds",
        "profiling_interval_in_millis": "ProfilingIntervalInMilliseconds",
    },
    "profiler_rules": _RULE,
    "tensorboard_output_config": _OUTPUT,
    "instance_groups": {"name": "InstanceGroupName", **_INSTANCES},
    "instance_preferences": _INSTANCES,
    "mlflow_config": {
        "resource_arn": "MlflowResourceArn",
        "experiment_name": "MlflowExperimentName",
        "run_name": "MlflowRunName",
    },
}
_LISTS = ("CollectionConfigurations", "PlacementSpecifications")
#: Objects whose values are strings: numbers and booleans are converted to strings.
_TEXTS = {"HookParameters", "CollectionParameters", "ProfilingParameters", "RuleParameters"}
#: Members whose values arrive as strings if an option is not written as JSON.
_INTEGERS = {"ProfilingIntervalInMilliseconds", "VolumeSizeInGB", "InstanceCount"}
_BOOLEANS = {"EnableMultipleJobs", "DisableProfiler"}


def as_object(opts: AWSSageMakerOpts, name: str) -> dict[str, Any]:
    """Return an option as an object of the request; empty if it is not given."""
    given = getattr(opts, name)
    return _object(name, name, given) if isinstance(given, Mapping) else {}


def as_objects(opts: AWSSageMakerOpts, name: str) -> list[dict[str, Any]]:
    """Return an option as a list of objects of the request; empty if it is not given. See `as_object`."""
    items = getattr(opts, name) or []
    if name == "instance_preferences":
        items = [{"InstanceType": item} if isinstance(item, str) else item for item in items]
    return [_object(name, name, item) for item in items]


def instance_groups(opts: AWSSageMakerOpts) -> list[dict[str, Any]]:
    """Return the option ``instance_groups`` as the request has it."""
    groups = as_objects(opts, "instance_groups")
    for group in groups:
        if len(group) < 3 or not isinstance(group["InstanceCount"], int):
            raise InvalidRunConfigException(
                f"instance_groups: {group} must have a name, a type and a whole number as its count",
                "instance_groups",
                hint='A group is {"name": "a", "type": "ml.m5.large", "count": 1}.',
            )
    return groups


def metric_pairs(metric: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Return names and regexes of a metric definition: ``{"Name", "Regex"}``, or ``{name: regex}``.

    Where only a name is given, the regex is one that finds the metric by its name.
    """
    if metric.keys() == {"Name"}:
        metric = {**metric, "Regex": None}
    pairs = _pairs(metric, "metric_definitions", "Name", "Regex")
    return [(name, regex or metric_shapes.expression(name)) for name, regex in pairs]


def tag_pairs(tag: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return keys and values of a tag: ``{"Key", "Value"}``, or ``{key: value}``."""
    return _pairs(tag, "tags", "Key", "Value")


def _pairs(given: Mapping[str, Any], option: str, first: str, second: str) -> list[tuple[str, Any]]:
    folded = {key.lower(): value for key, value in given.items()}
    if set(folded) == {first.lower(), second.lower()}:
        return [(folded[first.lower()], folded[second.lower()])]
    if first in given or second in given:  # "Regexp" for "Regex"
        raise InvalidRunConfigException(
            f"{option}: {dict(given)} must have {first} and {second}, and nothing else", option
        )
    return list(given.items())


def _object(option: str, place: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidRunConfigException(f"{option}: {given!r} is not an object", option)
    result: dict[str, Any] = {}
    for key, value in given.items():
        member = OTHER_NAMES.get(place, {}).get(key) or _member(str(key))
        if member in result:
            raise InvalidRunConfigException(f"{option} has {member} twice", option)
        result[member] = _value(option, member, value)
    return result


def _member(name: str) -> str:
    """Return the name that the service gives to a member, which may be written in snake_case."""
    if not name.islower():
        return name
    return "".join(map(str.capitalize, name.split("_"))).replace("InGb", "InGB")


def _value(option: str, member: str, value: Any) -> Any:
    if member in _LISTS:
        if not isinstance(value, list):
            raise InvalidRunConfigException(f"{option}: {member} must be a list, not {value!r}", option)
        return [_object(option, member, item) for item in value]
    if member in _TEXTS and isinstance(value, Mapping):
        return {str(key): _text(item) for key, item in value.items()}
    if member == "TrainingPlanArns" and isinstance(value, str):
        return [value]
    if member in _INTEGERS and isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value)
    if member in _BOOLEANS and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value

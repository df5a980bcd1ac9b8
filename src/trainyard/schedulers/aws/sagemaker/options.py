"""Options of AWS SageMaker training jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.specs.options import option

FILE = "File"
INPUT_MODES = (FILE, "FastFile", "Pipe")


@dataclass
class AWSSageMakerOpts:
    """How a job runs on SageMaker. What is None is left to the service, or as its help says."""

    # ---- who and where
    role: str = option("IAM role that the job has in AWS: its ARN, or its name")
    instance_type: str | None = option(
        "type of the instances, such as ml.g5.xlarge; required, unless instance_groups are given or the "
        "role's resource names an AWS instance type",
        default=None,
    )
    instance_count: int = option(
        "number of instances, where the job itself does not say (num_replicas)", default=1
    )
    instance_groups: list[dict[str, Any]] | None = option(
        "instances of several types, as JSON: "
        '[{"name": "a", "type": "ml.m5.large", "count": 1}, ...]; the names of roles where there are several',
        default=None,
    )
    user: str | None = option("name to tag the job with; the current user by default", default=None)
    region: str | None = option(
        "AWS region; that of the environment or profile by default", default=None, sends="to"
    )
    profile: str | None = option(
        "profile of ~/.aws/config; that of the environment by default", default=None, sends="to"
    )
    base_job_name: str | None = option(
        "what the job's name begins with; the application's name by default", default=None
    )
    tags: list[dict[str, str]] | None = option(
        'tags of the job: team=ml, or as JSON [{"Key": "team", "Value": "ml"}]', default=None
    )

    # ---- instances
    keep_alive_period_in_seconds: int | None = option(
        "keep the instances for the next job this long (warm pool), at most 21600 s", default=None
    )
    volume_size: int | None = option("GB of disk of each instance (30 by default)", default=None)
    volume_kms_key: str | None = option("KMS key that encrypts the instances' disks", default=None)
    max_run: int | None = option(
        "stop the job after it has run for this many seconds (86400 by default)", default=None
    )
    use_spot_instances: bool | None = option(
        "run on spare capacity that may be taken away; needs max_wait", default=None
    )
    max_wait: int | None = option(
        "with spot instances: seconds from submission to the end at the latest, waiting included; at least "
        "max_run",
        default=None,
    )
    max_pending: int | None = option(
        "give up if no accelerated instances could be had within this many seconds, 1800 to 2419200",
        default=None,
    )
    max_retry_attempts: int | None = option(
        "how often the service starts the job again after a fault of its own, 1 to 30", default=None
    )
    training_plan: str | None = option("ARN of a training plan with reserved capacity", default=None)
    training_plan_extension: str | None = option(
        "id of an offering that extends training_plan (SearchTrainingPlanOfferings); it is bought, and paid, "
        "before the job is created, unless the plan has that extension already",
        default=None,
    )
    instance_preferences: list[str | dict[str, Any]] | None = option(
        "up to 5 instance types in place of instance_type; the job runs on the first that has capacity: "
        'ml.p5.48xlarge,ml.p4d.24xlarge, or as JSON [{"type": "ml.p5.48xlarge", "count": 1, '
        '"training_plan_arns": ["arn:..."]}, ...]',
        default=None,
    )
    instance_placement_config: dict[str, Any] | None = option(
        "how instances are placed on UltraServers, as JSON: "
        '{"enable_multiple_jobs": true, "placement_specifications": [{"instance_count": 2}]}',
        default=None,
    )
    enable_infra_check: bool | None = option("check the instances' hardware before the job", default=None)

    # ---- a queue of AWS Batch
    batch_queue: str | None = option(
        "job queue of AWS Batch, by name or ARN, that the job waits in; its type is SAGEMAKER_TRAINING. "
        "Without one SageMaker gets the job at once",
        default=None,
    )
    batch_share_identifier: str | None = option(
        "share identifier; to be given if, and only if, the queue has a fair-share policy", default=None
    )
    batch_quota_share: str | None = option(
        "quota share; to be given if, and only if, the queue has quota shares", default=None
    )
    batch_priority: int | None = option("scheduling priority, 0 to 9999, highest first", default=None)
    batch_attempts: int | None = option(
        "how often the job is started at most, 1 to 10 (max_retries + 1 by default)", default=None
    )
    batch_retry_rules: list[str] | None = option(
        "after which failures it is started again: PATTERN:retry or PATTERN:final, where the pattern is "
        "Batch's status reason, or with a * its beginning; the first that fits holds, and where none fits "
        "the job is started again. Example: 'Received status from SageMaker: Internal*:retry',*:final",
        default=None,
    )
    batch_timeout: int | None = option("stop each attempt after this many seconds, at least 60", default=None)
    batch_preemption_retries: int | None = option(
        "how often a job of a quota share may be preempted and started again (without limit by default)",
        default=None,
    )

    # ---- input
    input_mode: str | None = option(
        "how data comes to the job: File (copied before the start), FastFile, Pipe (File by default)",
        default=None,
    )
    channels: dict[str, str] | None = option(
        "input data by channel: training=s3://bucket/prefix, a path of this machine (uploaded), "
        "fsx://fs-ID/path or efs://fs-ID/path; settings follow a ?: "
        "s3://b/p?mode=FastFile&distribution=ShardedByS3Key",
        default=None,
        sends="from",
    )
    model_uri: str | None = option(
        "a model to start from: s3://..., or a path of this machine, which is uploaded",
        default=None,
        sends="from",
    )
    model_channel_name: str | None = option(
        "channel that model_uri is found in ('model' by default)", default=None
    )

    # ---- results
    output_path: str | None = option(
        "s3://... for the model and other results; a bucket of the account, made if missing, by default",
        default=None,
        sends="to",
    )
    output_kms_key: str | None = option(
        "KMS key that encrypts results, and the code on its way", default=None
    )
    disable_output_compression: bool | None = option(
        "upload the model as files and not as model.tar.gz", default=None
    )
    checkpoint_s3_uri: str | None = option(
        "s3://... that checkpoints go to while the job runs, and come back from", default=None, sends="to"
    )
    checkpoint_local_path: str | None = option(
        "where the program writes checkpoints (/opt/ml/checkpoints by default); needs checkpoint_s3_uri",
        default=None,
    )
    metric_definitions: list[dict[str, str]] | None = option(
        'values to read from the logs: loss=REGEX, or as JSON [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]',
        default=None,
    )
    enable_sagemaker_metrics: bool | None = option("keep metrics as time series", default=None)
    debugger_hook_config: bool | dict[str, Any] | None = option(
        "let SageMaker Debugger save tensors below output_path; on by default where the region has it; or as "
        'JSON {"s3_output_path": "s3://...", "hook_parameters": {"save_interval": "100"}, '
        '"collection_configurations": [{"name": "losses"}]}',
        default=None,
    )
    debugger_rules: list[dict[str, Any]] | None = option(
        'rules that look at saved tensors, as JSON [{"name": "VanishingGradient"}]: a built-in rule, or any '
        "with rule_evaluator_image and rule_parameters",
        default=None,
    )
    disable_profiler: bool | None = option(
        "no monitoring and profiling by SageMaker Debugger (False by default)", default=None
    )
    profiler_config: dict[str, Any] | None = option(
        "how the job is profiled: s3_output_path, profiling_interval_in_milliseconds (100, 200, 500, 1000, "
        "5000, 60000), profiling_parameters",
        default=None,
    )
    profiler_rules: list[dict[str, Any]] | None = option(
        'rules that look at the profile, as JSON [{"name": "ProfilerReport"}]; see debugger_rules',
        default=None,
    )
    tensorboard_output_config: dict[str, Any] | None = option(
        "where TensorBoard's files go: s3_output_path=s3://bucket/prefix, and local_path "
        "(/opt/ml/output/tensorboard by default)",
        default=None,
    )
    experiment_config: dict[str, str] | None = option(
        "the SageMaker experiment that the job is part of: experiment_name, trial_name, run_name, "
        "trial_component_display_name",
        default=None,
    )
    mlflow_config: dict[str, str] | None = option(
        "managed MLflow that keeps the run: resource_arn, experiment_name, run_name", default=None
    )
    model_package_config: dict[str, str] | None = option(
        "model package that the model becomes: model_package_group_arn, source_model_package_arn",
        default=None,
    )

    # ---- network and access
    subnets: list[str] | None = option("subnets of a VPC; with security_group_ids", default=None)
    security_group_ids: list[str] | None = option("security groups in the VPC; with subnets", default=None)
    encrypt_inter_container_traffic: bool | None = option(
        "encrypt the traffic between instances (False by default)", default=None
    )
    enable_network_isolation: bool | None = option(
        "no network for the container; code and data still come and go (False by default)", default=None
    )
    enable_remote_debug: bool | None = option(
        "let people connect to the running container (SSM)", default=None
    )
    enable_session_tag_chaining: bool | None = option(
        "pass the session tags of who submits on to the job's role", default=None
    )
    training_repository_access_mode: str | None = option(
        "where the image is pulled from: Platform, or Vpc for a registry inside the VPC", default=None
    )
    training_repository_credentials_provider_arn: str | None = option(
        "ARN of a Lambda function with the registry's login; with access mode Vpc", default=None
    )

    # ---- the program
    environment: dict[str, str] | None = option(
        "environment variables, beside those of the job", default=None
    )
    hyperparameters: dict[str, Any] | None = option(
        "hyperparameters, beside the script's arguments: lr=0.1, or as JSON with values of any kind; names "
        "with sagemaker_ go to what starts the script",
        default=None,
    )
    distribution: dict[str, Any] | None = option(
        "how the image's toolkit starts a script on all instances, as the SageMaker SDK has it: "
        '{"torch_distributed": {"enabled": true}}, or smdistributed, mpi, parameter_server, '
        "multi_worker_mirrored_strategy, pytorchxla, pytorchddp",
        default=None,
    )
    container_log_level: int | None = option(
        "level of Python's logging in the container (20, INFO, by default)", default=None
    )
    source_dir: str | None = option(
        "directory of the code, or s3://.../sourcedir.tar.gz; the workspace, that is the current directory, "
        "by default",
        default=None,
        sends="from",
    )
    git_config: dict[str, Any] | None = option(
        "clone the code: repo, branch, commit, username, password, token, 2FA_enabled; source_dir and "
        "dependencies are in it then. A password or token is better left to GIT_PASSWORD or GIT_TOKEN",
        default=None,
    )
    dependencies: list[str] | None = option(
        "further directories and files that are put beside the code, by their last names",
        default=None,
        sends="from",
    )
    code_location: str | None = option(
        "s3://... that code is uploaded to; the bucket of output_path by default", default=None, sends="to"
    )
    toolkit: bool = option(
        "start scripts by trainyard's toolkit, which travels with the code and needs a Python in the image; "
        "false: by the image's own `train` command, with arguments as hyperparameters",
        default=True,
    )
    image_repo: str | None = option(
        "image repository to push images with the workspace to; code goes through S3 by default",
        default=None,
        sends="to",
    )
    quiet: bool = option("show no progress while code is packed and uploaded", default=False)

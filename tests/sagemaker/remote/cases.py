"""Option sets by which our requests are compared with those of the SageMaker SDK's Estimator (v2).

``options`` are ours; the SDK gets the same names and values unless ``sdk`` says otherwise. ``differs`` names
the places in which the requests differ, with the reason; everywhere else they are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ROLE = "arn:aws:iam::123456789012:role/Training"
KEY = "arn:aws:kms:us-east-1:123456789012:key/abc"
LAMBDA = "arn:aws:lambda:us-east-1:123456789012:function:login"
VPC = {"subnets": ["subnet-1", "subnet-2"], "security_group_ids": ["sg-1"]}
GROUPS = [("a", "ml.m5.large", 1), ("b", "ml.c5.xlarge", 2)]
OUR_GROUPS = [{"name": name, "type": kind, "count": count} for name, kind, count in GROUPS]

#: Why a place differs.
CODE_MODE = "the code comes as files, also where the data comes in another mode"
NO_PLAN = "SDK 2.230 does not know training plans"
OWN_IMAGE = "with a compiler the SDK takes no image but its own"
SERIES = "the PyTorch estimator turns them on by its framework version; here they are as the option says"


_SERIES = "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries"


@dataclass
class Case:
    """One option set."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    sdk: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    region: str = "us-east-1"
    train: dict[str, Any] = field(default_factory=dict)
    framework: str = ""
    program: str = "train.py"
    differs: dict[str, str] = field(default_factory=dict)


def _channel(uri: str, **settings: Any) -> dict[str, dict[str, Any]]:
    return {"training": {"s3_data": uri, **settings}}


def _distribution(name: str, distribution: dict[str, Any], framework: str, **options: Any) -> Case:
    """A case of the option that the SDK has too."""
    without: tuple[str, ...] = ("instance_type", "instance_count") if "instance_groups" in options else ()
    differs = {_SERIES: SERIES}
    if framework.endswith("compiler"):
        without, differs = ("image_uri",), {**differs, "AlgorithmSpecification.TrainingImage": OWN_IMAGE}
    return Case(
        f"distribution: {name}",
        {"distribution": distribution, **options},
        {"instance_groups": GROUPS} if "instance_groups" in options else {},
        without=without,
        framework=framework,
        differs=differs,
    )


ENABLED = {"enabled": True}
TWO_P4 = {"instance_count": 2, "instance_type": "ml.p4d.24xlarge"}
TRAINIUM = {"instance_count": 2, "instance_type": "ml.trn1.32xlarge"}
IN_GROUPS = {"instance_groups": OUR_GROUPS, "instance_type": None}
#: The option ``distribution``, with the SDK's estimator that takes it, and further options.
DISTRIBUTIONS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("torch_distributed", {"torch_distributed": ENABLED}, "PyTorch", TWO_P4),
    ("torch_distributed off", {"torch_distributed": {"enabled": False}}, "PyTorch", TWO_P4),
    ("torch_distributed on Trainium", {"torch_distributed": ENABLED}, "PyTorch", TRAINIUM),
    ("pytorchddp", {"pytorchddp": ENABLED}, "PyTorch", TWO_P4),
    ("pytorchddp, options", {"pytorchddp": {**ENABLED, "custom_mpi_options": "-x A"}}, "PyTorch", TWO_P4),
    ("smdataparallel", {"smdistributed": {"dataparallel": ENABLED}}, "PyTorch", TWO_P4),
    (
        "smdataparallel with options",
        {"smdistributed": {"dataparallel": {**ENABLED, "custom_mpi_options": "-verbose"}}},
        "PyTorch",
        TWO_P4,
    ),
    ("smdataparallel off", {"smdistributed": {"dataparallel": {"enabled": False}}}, "PyTorch", TWO_P4),
    (
        "smdataparallel by torchrun",
        {"torch_distributed": ENABLED, "smdistributed": {"dataparallel": ENABLED}},
        "PyTorch",
        TWO_P4,
    ),
    (
        "smmodelparallel",
        {
            "smdistributed": {"modelparallel": {**ENABLED, "parameters": {"partitions": 2, "ddp": True}}},
            "mpi": {**ENABLED, "processes_per_host": 8},
        },
        "PyTorch",
        TWO_P4,
    ),
    ("mpi", {"mpi": {**ENABLED, "processes_per_host": 4, "custom_mpi_options": "-x A"}}, "PyTorch", {}),
    ("mpi, nothing else", {"mpi": ENABLED}, "PyTorch", {}),
    ("mpi on a group", {"mpi": ENABLED, "instance_groups": ["b"]}, "PyTorch", IN_GROUPS),
    (
        "smdataparallel on a group",
        {"smdistributed": {"dataparallel": ENABLED}, "instance_groups": ["b"]},
        "PyTorch",
        IN_GROUPS,
    ),
    ("parameter server", {"parameter_server": ENABLED}, "TensorFlow", {"instance_count": 2}),
    ("MWMS", {"multi_worker_mirrored_strategy": ENABLED}, "TensorFlow", {"instance_count": 2}),
    (
        "pytorchxla",
        {"pytorchxla": ENABLED},
        "PyTorch with compiler",
        {
            "instance_count": 2,
            "instance_type": "ml.p3.16xlarge",
            "hyperparameters": {
                "sagemaker_training_compiler_enabled": True,
                "sagemaker_training_compiler_debug_mode": False,
            },
        },
    ),
    ("mpi of TensorFlow", {"mpi": {**ENABLED, "processes_per_host": 2}}, "TensorFlow", {}),
]
CUSTOM_RULE = {
    "name": "mine",
    "image_uri": "registry/rules:1",
    "instance_type": "ml.t3.medium",
    "volume_size_in_gb": 10,
    "rule_parameters": {"rule_to_invoke": "Mine", "threshold": "1"},
}

CASES = [
    Case("nothing but what must be"),
    Case("role by name", {"role": "Training"}),
    Case("instance count", {"instance_count": 3}),
    Case("another instance type", {"instance_type": "ml.p3.16xlarge"}),
    Case(
        "instance groups",
        {"instance_groups": OUR_GROUPS, "instance_type": None},
        {"instance_groups": GROUPS},
        without=("instance_type", "instance_count"),
    ),
    Case("user", {"user": "alice"}, without=("user",)),
    Case("warm pool", {"keep_alive_period_in_seconds": 600}),
    Case("volume size", {"volume_size": 100}),
    Case("volume key", {"volume_kms_key": KEY}),
    Case("max run", {"max_run": 3600}),
    Case("input mode Pipe", {"input_mode": "Pipe"}),
    Case("input mode FastFile", {"input_mode": "FastFile"}),
    Case("output path", {"output_path": "s3://results/deep/prefix"}),
    Case("output path with a slash at its end", {"output_path": "s3://results/prefix/"}),
    Case("output key", {"output_kms_key": KEY}),
    Case("base job name", {"base_job_name": "my-training"}),
    Case("tags", {"tags": [{"Key": "team", "Value": "ml"}, {"Key": "cost", "Value": "42"}]}),
    Case("vpc", VPC),
    Case("model", {"model_uri": "s3://models/one/model.tar.gz"}),
    Case(
        "model in a channel of another name",
        {"model_uri": "s3://models/one/model.tar.gz", "model_channel_name": "start"},
    ),
    Case(
        "metric definitions",
        {
            "metric_definitions": [
                {"Name": "loss", "Regex": "loss=(.*?);"},
                {"Name": "acc", "Regex": "acc=(.*)"},
            ]
        },
    ),
    Case("encrypted traffic", {"encrypt_inter_container_traffic": True}),
    Case("unencrypted traffic", {"encrypt_inter_container_traffic": False}),
    Case("spot", {"use_spot_instances": True, "max_wait": 90000}),
    Case("spot with max run", {"use_spot_instances": True, "max_run": 600, "max_wait": 1200}),
    Case("no spot", {"use_spot_instances": False}),
    Case("checkpoints", {"checkpoint_s3_uri": "s3://checkpoints/a"}),
    Case(
        "checkpoints at a path",
        {"checkpoint_s3_uri": "s3://checkpoints/a", "checkpoint_local_path": "/opt/ml/saved"},
    ),
    Case("debugger off", {"debugger_hook_config": False}),
    Case("debugger on", {"debugger_hook_config": True}),
    Case("debugger in a region without it", region="ap-southeast-3"),
    Case("metrics as time series", {"enable_sagemaker_metrics": True}),
    Case("no metrics as time series", {"enable_sagemaker_metrics": False}),
    Case(
        "network isolation",
        {"enable_network_isolation": True},
        differs={"InputDataConfig[code].InputMode": CODE_MODE},
    ),
    Case("profiler off", {"disable_profiler": True}),
    Case("profiler on", {"disable_profiler": False}),
    Case("profiler on trainium", {"instance_type": "ml.trn1.2xlarge"}),
    Case("environment", {"environment": {"A": "1", "B": "x y"}}),
    Case("retries", {"max_retry_attempts": 3}),
    Case("hyperparameters", {"hyperparameters": {"epochs": "10", "name": "it's", "empty": ""}}),
    Case(
        "arguments as hyperparameters",
        sdk={"hyperparameters": {"lr": "0.1", "k": "5"}},
        arguments=["--lr", "0.1", "-k", "5"],
    ),
    Case("log level", {"container_log_level": 10}),
    Case("code location", {"code_location": "s3://code/place"}),
    Case("code location and output path", {"code_location": "s3://code", "output_path": "s3://results/x"}),
    Case("source in S3", {"source_dir": "s3://code/made/sourcedir.tar.gz"}),
    Case("repository access", {"training_repository_access_mode": "Vpc", **VPC}),
    Case(
        "repository access with a login",
        {
            "training_repository_access_mode": "Vpc",
            "training_repository_credentials_provider_arn": LAMBDA,
            **VPC,
        },
    ),
    Case("platform access", {"training_repository_access_mode": "Platform"}),
    Case("no output compression", {"disable_output_compression": True}),
    Case("output compression", {"disable_output_compression": False}),
    Case("infra check", {"enable_infra_check": True}),
    Case("no infra check", {"enable_infra_check": False}),
    Case("remote debug", {"enable_remote_debug": True}),
    Case(
        "session tags",
        {"enable_session_tag_chaining": True},
    ),
    Case(
        "training plan",
        {"training_plan": "arn:aws:sagemaker:us-east-1:123456789012:training-plan/plan-1"},
        differs={"ResourceConfig.TrainingPlanArn": NO_PLAN},
    ),
    Case("image repository and quiet", {"image_repo": "r/x", "quiet": True}, without=("image_repo", "quiet")),
    Case("a channel", {"channels": {"training": "s3://data/p"}}, inputs=_channel("s3://data/p")),
    Case(
        "two channels",
        {"channels": {"training": "s3://data/p", "testing": "s3://data/q"}},
        inputs={"training": {"s3_data": "s3://data/p"}, "testing": {"s3_data": "s3://data/q"}},
    ),
    Case(
        "a sharded channel of a type",
        {"channels": {"training": "s3://data/p?distribution=ShardedByS3Key&content_type=text/csv"}},
        inputs=_channel("s3://data/p", distribution="ShardedByS3Key", content_type="text/csv"),
    ),
    Case(
        "a compressed channel of records in another mode",
        {"channels": {"training": "s3://data/p?compression=Gzip&record_wrapper=RecordIO&mode=Pipe"}},
        inputs=_channel("s3://data/p", compression="Gzip", record_wrapping="RecordIO", input_mode="Pipe"),
    ),
    Case(
        "a manifest with attributes",
        {"channels": {"training": "s3://data/m?data_type=AugmentedManifestFile&attributes=a,b"}},
        inputs=_channel("s3://data/m", s3_data_type="AugmentedManifestFile", attribute_names=["a", "b"]),
    ),
    Case(
        "a channel for one group",
        {
            "instance_groups": OUR_GROUPS,
            "instance_type": None,
            "channels": {"training": "s3://data/p?groups=a"},
        },
        {"instance_groups": GROUPS},
        without=("instance_type", "instance_count"),
        inputs=_channel("s3://data/p", instance_groups=["a"]),
    ),
    Case(
        "Lustre and EFS",
        {
            "channels": {
                "training": "fsx://fs-0123456789abcdef0/fsx/data?access=rw",
                "testing": "efs://fs-0123456789abcdef1/data",
            },
            **VPC,
        },
        inputs={
            "training": {
                "file_system_id": "fs-0123456789abcdef0",
                "file_system_type": "FSxLustre",
                "directory_path": "/fsx/data",
                "file_system_access_mode": "rw",
            },
            "testing": {
                "file_system_id": "fs-0123456789abcdef1",
                "file_system_type": "EFS",
                "directory_path": "/data",
            },
        },
    ),
    Case(
        "mpi",
        sdk={
            "distribution": {"mpi": {"enabled": True, "processes_per_host": 4, "custom_mpi_options": "-x A"}}
        },
        train={"distribution": {"kind": "mpi", "processes_per_host": 4, "mpi_options": "-x A"}},
        options={"instance_count": 2},
        framework="PyTorch",
        differs={_SERIES: SERIES},
    ),
    Case(
        "torchrun",
        sdk={"distribution": {"torch_distributed": {"enabled": True}}},
        train={"distribution": {"kind": "torchrun", "processes_per_host": 4}},
        options={"instance_count": 2},
        framework="PyTorch",
        differs={_SERIES: SERIES},
    ),
    *[
        _distribution(name, distribution, framework, **options)
        for name, distribution, framework, options in DISTRIBUTIONS
    ],
    Case("a shell script", program="run.sh"),
    Case(
        "hyperparameters of SageMaker's toolkits",
        {
            "hyperparameters": {
                "sagemaker_parameter_server_enabled": True,
                "sagemaker_s3_output": "s3://b/x",
                "sagemaker_mpi_num_of_processes_per_host": 4,
            }
        },
    ),
    Case(
        "debugger with parameters and collections",
        {
            "debugger_hook_config": {
                "hook_parameters": {"save_interval": "100"},
                "collection_configs": [{"name": "losses", "parameters": {"save_interval": "10"}}],
            }
        },
    ),
    Case(
        "debugger with its own output path",
        {
            "debugger_hook_config": {
                "s3_output_path": "s3://tensors/x",
                "container_local_output_path": "/opt/ml/tensors",
            }
        },
    ),
    Case("debugger rules", {"debugger_rules": [{"name": "VanishingGradient"}, CUSTOM_RULE]}),
    Case(
        "profiler",
        {"profiler_config": {"s3_output_path": "s3://profile/x", "system_monitor_interval_millis": 1000}},
    ),
    Case("profiler rules", {"profiler_rules": [{"name": "ProfilerReport"}]}),
    Case(
        "TensorBoard",
        {
            "tensorboard_output_config": {
                "s3_output_path": "s3://board/x",
                "container_local_output_path": "/opt/ml/board",
            }
        },
    ),
    Case(
        "experiment",
        {"experiment_config": {"ExperimentName": "e", "TrialName": "t", "TrialComponentDisplayName": "c"}},
    ),
    Case(
        "everything at once",
        {
            "instance_count": 2,
            "volume_size": 50,
            "volume_kms_key": KEY,
            "max_run": 600,
            "max_wait": 700,
            "use_spot_instances": True,
            "output_path": "s3://results/x",
            "output_kms_key": KEY,
            "checkpoint_s3_uri": "s3://checkpoints/a",
            "checkpoint_local_path": "/opt/ml/saved",
            "environment": {"A": "1"},
            "hyperparameters": {"lr": "0.1"},
            "metric_definitions": [{"Name": "loss", "Regex": "loss=(.*?);"}],
            "encrypt_inter_container_traffic": True,
            "max_retry_attempts": 2,
            "disable_profiler": True,
            "debugger_hook_config": False,
            "disable_output_compression": True,
            "tags": [{"Key": "team", "Value": "ml"}],
            **VPC,
        },
    ),
]

"""What TorchX's documents say on schedulers, AWS Batch and AWS SageMaker; ``torchx`` is read as ``shunter``.

The documents are the pages "AWS SageMaker", "AWS Batch" with the module's source, and "Schedulers".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from shunter.schedulers import get_default_scheduler_name, get_scheduler_factories
from shunter.schedulers.api import Stream, filter_regex
from shunter.schedulers.aws_batch_scheduler import JOB_STATE, BatchJob
from shunter.schedulers.devices import get_device_mounts
from shunter.schedulers.ids import make_unique
from shunter.specs import AppDef, AppState, Resource, Role, parse_mounts
from shunter.specs.conversion import type_name
from shunter.specs.mounts import DeviceMount
from shunter.system.identity import user_name
from tests.documents.statement import (
    Statement,
    derives,
    exists,
    field_default,
    fields_in_order,
    is_abstract,
    signature,
)

API = "shunter.schedulers.api"
SCHEDULER = "shunter.schedulers.Scheduler"
BATCH = "shunter.schedulers.aws_batch_scheduler"
SAGEMAKER = "shunter.schedulers.aws_sagemaker_scheduler"
MIXIN = "shunter.workspace.docker_workspace.DockerWorkspaceMixin"
LOG_ITER = (
    "(app_id: str, role_name: str, k: int = 0, regex: str | None = None, since: datetime | None = None, "
    "until: datetime | None = None, should_tail: bool = False, streams: Stream | None = None) "
    "-> Iterable[str]"
)

NAMES = [
    exists(f"{BATCH}.AWSBatchScheduler"),
    exists(f"{BATCH}.AWSBatchOpts"),
    exists(f"{BATCH}.BatchJob"),
    exists(f"{BATCH}.create_scheduler"),
    exists(f"{BATCH}.JOB_STATE"),
    exists(f"{BATCH}._role_to_node_properties", "names that begin with an underscore"),
    exists(f"{BATCH}._job_ui_url", "names that begin with an underscore"),
    exists(f"{BATCH}._thread_local_cache", "names that begin with an underscore"),
    exists(f"{BATCH}._local_session", "names that begin with an underscore"),
    exists(f"{SAGEMAKER}.AWSSageMakerScheduler"),
    exists(f"{SAGEMAKER}.AWSSageMakerOpts"),
    exists(f"{SAGEMAKER}.AWSSageMakerJob"),
    exists(f"{SAGEMAKER}.create_scheduler"),
    exists("shunter.__version__"),
    exists("shunter.schedulers.SchedulerFactory"),
    exists(f"{API}.AppDryRunInfo"),
    exists(f"{API}.DescribeAppResponse"),
    exists(f"{API}.ListAppResponse"),
    exists(f"{API}.Scheduler"),
    exists(f"{API}.Stream"),
    exists(f"{API}.filter_regex"),
    exists("shunter.schedulers.devices.get_device_mounts"),
    exists("shunter.schedulers.ids.make_unique"),
    *(
        exists(f"shunter.specs.{name}")
        for name in (
            *(
                "AppDef",
                "AppDryRunInfo",
                "AppState",
                "BindMount",
                "CfgVal",
                "DeviceMount",
                "Role",
                "RoleStatus",
            ),
            *("VolumeMount", "macros.Values", "parse_mounts", "runopts"),
        )
    ),
    exists("shunter.workspace.api.WorkspaceMixin"),
    exists(f"{MIXIN}.dryrun_push_images"),
    exists(f"{MIXIN}.push_images"),
    exists(f"{MIXIN}.workspace_opts"),
]

#: Where the documents say ``object``, ``DockerClient`` or ``T``, ours say ``Any``, which accepts the same.
SIGNATURES = [
    signature("shunter.schedulers.get_default_scheduler_name", "() -> str"),
    signature("shunter.schedulers.get_scheduler_factories", "() -> dict[str, SchedulerFactory]"),
    signature(SCHEDULER, "(backend: str, session_name: str)"),
    signature(f"{SCHEDULER}.cancel", "(app_id: str) -> None"),
    signature(f"{SCHEDULER}.close", "() -> None"),
    signature(f"{SCHEDULER}.describe", "(app_id: str) -> DescribeAppResponse | None"),
    signature(f"{SCHEDULER}.exists", "(app_id: str) -> bool"),
    signature(f"{SCHEDULER}.list", "() -> list[ListAppResponse]"),
    signature(f"{SCHEDULER}.log_iter", LOG_ITER),
    signature(f"{SCHEDULER}.run_opts", "() -> runopts"),
    signature(f"{SCHEDULER}.schedule", "(dryrun_info: AppDryRunInfo[Any]) -> str"),
    signature(
        f"{SCHEDULER}.submit", "(app: AppDef, cfg: Any, workspace: Workspace | str | None = None) -> str"
    ),
    signature(f"{SCHEDULER}.submit_dryrun", "(app: AppDef, cfg: Any) -> AppDryRunInfo[Any]"),
    signature(
        f"{BATCH}.AWSBatchScheduler",
        "(session_name: str, client: Any | None = None, log_client: Any | None = None, "
        "docker_client: Any | None = None)",
    ),
    signature(
        f"{BATCH}.create_scheduler",
        "(session_name: str, client: Any | None = None, log_client: Any | None = None, "
        "docker_client: Any | None = None, **kwargs: object) -> AWSBatchScheduler",
    ),
    signature(
        f"{SAGEMAKER}.AWSSageMakerScheduler",
        "(session_name: str, client: Any | None = None, docker_client: Any | None = None)",
    ),
    signature(
        f"{SAGEMAKER}.create_scheduler", "(session_name: str, **kwargs: object) -> AWSSageMakerScheduler"
    ),
    *(
        signature(f"{scheduler}.{method}", documented)
        for scheduler, request in (
            (f"{BATCH}.AWSBatchScheduler", "BatchJob"),
            (f"{SAGEMAKER}.AWSSageMakerScheduler", "AWSSageMakerJob"),
        )
        for method, documented in (
            ("describe", "(app_id: str) -> DescribeAppResponse | None"),
            ("list", "() -> list[ListAppResponse]"),
            ("log_iter", LOG_ITER),
            ("schedule", f"(dryrun_info: AppDryRunInfo[{request}]) -> str"),
        )
    ),
    signature(
        f"{BATCH}.BatchJob",
        "(name: str, queue: str, share_id: str | None, job_def: dict[str, Any], "
        "images_to_push: dict[str, tuple[str, str]])",
    ),
    signature(
        f"{SAGEMAKER}.AWSSageMakerJob",
        "(job_name: str, job_def: dict[str, Any], images_to_push: dict[str, tuple[str, str]])",
    ),
    signature(f"{API}.ListAppResponse", "(app_id: str, state: AppState, app_handle: str = '<NOT_SET>')"),
    signature(f"{API}.filter_regex", "(regex: str, data: Iterable[str]) -> Iterable[str]"),
    signature(
        f"{MIXIN}.dryrun_push_images", "(app: AppDef, cfg: Mapping[str, Any]) -> dict[str, tuple[str, str]]"
    ),
    signature(f"{MIXIN}.push_images", "(images_to_push: Mapping[str, tuple[str, str]]) -> None"),
    signature("shunter.schedulers.ids.make_unique", "(name: str, string_length: int = 0) -> str"),
    signature("shunter.specs.macros.Values", "(img_root: str, app_id: str, replica_id: str, rank0_env: str)"),
]

CLASSES = [
    derives(f"{BATCH}.AWSBatchScheduler", MIXIN, f"{API}.Scheduler"),
    derives(f"{SAGEMAKER}.AWSSageMakerScheduler", MIXIN, f"{API}.Scheduler"),
    is_abstract(f"{SCHEDULER}.describe", abstract=True),
    is_abstract(f"{SCHEDULER}.list", abstract=True),
    is_abstract(f"{SCHEDULER}.schedule", abstract=True),
    *(
        is_abstract(f"{SCHEDULER}.{name}", abstract=False)
        for name in ("cancel", "close", "exists", "log_iter", "run_opts", "submit", "submit_dryrun")
    ),
    fields_in_order(
        f"{API}.DescribeAppResponse",
        *(
            "app_id",
            "state",
            "num_restarts",
            "msg",
            "structured_error_msg",
            "ui_url",
            "roles_statuses",
            "roles",
        ),
    ),
    *(
        field_default(f"{API}.DescribeAppResponse", name, default)
        for name, default in {
            "app_id": "<NOT_SET>",
            "state": AppState.UNSUBMITTED,
            "num_restarts": -1,
            "msg": "<NONE>",
            "structured_error_msg": "<NONE>",
            "ui_url": None,
            "roles_statuses": list,
            "roles": list,
        }.items()
    ),
]

#: The tables "Config Options": name, type and default; required without a default.
BATCH_OPTIONS = """
queue: str
user: str = USER
privileged: bool = False
share_id: str = None
priority: int = 0
image_repo: str = None
"""
SAGEMAKER_OPTIONS = """
role: str
instance_type: str
instance_count: int = 1
user: str = USER
keep_alive_period_in_seconds: int = None
volume_size: int = None
volume_kms_key: str = None
max_run: int = None
input_mode: str = None
output_path: str = None
output_kms_key: str = None
base_job_name: str = None
tags: list[dict[str, str]] = None
subnets: list[str] = None
security_group_ids: list[str] = None
model_uri: str = None
model_channel_name: str = None
metric_definitions: list[dict[str, str]] = None
encrypt_inter_container_traffic: bool = None
use_spot_instances: bool = None
max_wait: int = None
checkpoint_s3_uri: str = None
checkpoint_local_path: str = None
debugger_hook_config: bool = None
enable_sagemaker_metrics: bool = None
enable_network_isolation: bool = None
disable_profiler: bool = None
environment: dict[str, str] = None
max_retry_attempts: int = None
source_dir: str = None
git_config: dict[str, str] = None
hyperparameters: dict[str, str] = None
container_log_level: int = None
code_location: str = None
dependencies: list[str] = None
training_repository_access_mode: str = None
training_repository_credentials_provider_arn: str = None
disable_output_compression: bool = None
enable_infra_check: bool = None
image_repo: str = None
quiet: bool = False
"""
DIFFERENT_OPTIONS = {
    "instance_type": "`instance_type` is not required",
    "metric_definitions": "wider types",
    "debugger_hook_config": "wider types",
    "git_config": "wider types",
    "hyperparameters": "wider types",
}


def option(scheduler: str, row: str) -> Statement:
    """State that a scheduler has an option, with its type and default."""
    name, _, rest = row.partition(": ")
    kind, _, default = rest.partition(" = ")

    def check() -> None:
        factory = get_scheduler_factories()[scheduler]
        declared = factory("session").run_opts().get(name)
        assert declared is not None
        shown = "USER" if declared.default == user_name() else str(declared.default)
        assert (type_name(declared.opt_type), declared.is_required) == (kind, not default)
        assert declared.is_required or shown == default

    return Statement(f"{scheduler}: {row}", check, DIFFERENT_OPTIONS.get(name, ""))


OPTIONS = [
    *(option("aws_batch", row) for row in BATCH_OPTIONS.strip().splitlines()),
    *(option("aws_sagemaker", row) for row in SAGEMAKER_OPTIONS.strip().splitlines()),
]


# ---- what the source of the Batch scheduler does


def job(num_replicas: int = 2, **fields: Any) -> AppDef:
    """Return a job of two roles; ``fields`` are those of the first."""
    resource = fields.pop("resource", Resource(cpu=2, gpu=1, memMB=2048))
    roles = [
        Role("trainer", "img", entrypoint="train", args=["a"], num_replicas=num_replicas, resource=resource),
        Role("reader", "img", entrypoint="read", resource=Resource(cpu=0, gpu=0, memMB=1024)),
    ]
    for name, value in fields.items():
        setattr(roles[0], name, value)
    return AppDef("app", roles)


def request(app: AppDef | None = None, **cfg: Any) -> BatchJob:
    """Return the request for a job on AWS Batch."""
    scheduler = get_scheduler_factories()["aws_batch"]("session")
    info = scheduler.submit_dryrun(app or job(), {"queue": "q", "user": "me", **cfg})
    made: BatchJob = info.request
    return made


def containers(app: AppDef | None = None, **cfg: Any) -> list[dict[str, Any]]:
    """Return the container of each role in the request."""
    nodes = request(app, **cfg).job_def["nodeProperties"]["nodeRangeProperties"]
    return [node["container"] for node in nodes]


def environment(index: int) -> dict[str, str]:
    """Return the variables of a role's container, with those that its start command sets."""
    container = containers()[index]
    script = " ".join(container["command"])
    values = {item["name"]: item["value"] for item in container["environment"]}
    return {
        **values,
        **{name: script for name in ("TORCHX_REPLICA_IDX", "TORCHX_RANK0_HOST") if name in script},
    }


def asked(container: dict[str, Any]) -> dict[str, str]:
    """Return what a container asks for, by type."""
    return {item["type"]: item["value"] for item in container["resourceRequirements"]}


def raises(error: type[Exception], words: str, action: Callable[[], object]) -> Callable[[], None]:
    """Return a check that an action raises an error whose text has these words."""

    def check() -> None:
        with pytest.raises(error, match=words):
            action()

    return check


def holds(condition: Callable[[], object]) -> Callable[[], None]:
    """Return a check that a condition is true."""

    def check() -> None:
        assert condition()

    return check


EFA = {"vpc.amazonaws.com/efa": 2}
VOLUMES = ["type=bind", "src=/a", "dst=/b", "readonly", "type=volume", "src=fs-1", "dst=/c"]
DEVICE = ["type=device", "src=/dev/infiniband/uverbs0", "perm=rw"]


def mounts() -> dict[str, Any]:
    """Return the container of a role with one mount of each kind."""
    return containers(job(mounts=parse_mounts([*VOLUMES, *DEVICE])))[0]


BEHAVIOUR = [
    Statement(
        "JOB_STATE has Batch's states", holds(lambda: {"PENDING", "RUNNING", "FAILED"} <= set(JOB_STATE))
    ),
    Statement("a role asks for VCPUs", holds(lambda: asked(containers()[0])["VCPU"] == "2")),
    Statement("a role without cpus asks for one", holds(lambda: asked(containers()[1])["VCPU"] == "1")),
    Statement("a role asks for its memory", holds(lambda: asked(containers()[0])["MEMORY"] == "2048")),
    Statement("a role asks for its gpus", holds(lambda: asked(containers()[0])["GPU"] == "1")),
    Statement("a role without gpus asks for none", holds(lambda: "GPU" not in asked(containers()[1]))),
    Statement(
        "memMB has to be positive",
        raises(ValueError, "memMB", lambda: request(job(resource=Resource(1, 0, -1)))),
    ),
    Statement(
        "/dev/shm is as large as the memory",
        holds(lambda: containers()[0]["linuxParameters"]["sharedMemorySize"] == 2048),
    ),
    Statement(
        "logs go to awslogs", holds(lambda: containers()[0]["logConfiguration"]["logDriver"] == "awslogs")
    ),
    Statement("the image is the role's", holds(lambda: containers()[0]["image"] == "img")),
    Statement("the command is the role's", holds(lambda: containers()[0]["command"][-2:] == ["train", "a"])),
    Statement(
        "a bind mount is a volume of the host",
        holds(lambda: mounts()["volumes"][0] == {"name": "mount_0", "host": {"sourcePath": "/a"}}),
    ),
    Statement(
        "a bind mount may be read-only",
        holds(
            lambda: (
                mounts()["mountPoints"][0]
                == {"containerPath": "/b", "readOnly": True, "sourceVolume": "mount_0"}
            )
        ),
    ),
    Statement(
        "a volume is an EFS file system",
        holds(lambda: mounts()["volumes"][1]["efsVolumeConfiguration"]["fileSystemId"] == "fs-1"),
    ),
    Statement(
        "a device has its permissions",
        holds(lambda: mounts()["linuxParameters"]["devices"][0]["permissions"] == ["READ", "WRITE"]),
    ),
    Statement(
        "the place of a device in the container is that on the host",
        holds(
            lambda: mounts()["linuxParameters"]["devices"][0]["containerPath"] == "/dev/infiniband/uverbs0"
        ),
    ),
    Statement(
        "devices of the resource are mounted",
        holds(
            lambda: (
                get_device_mounts(EFA)
                == [
                    DeviceMount(path, path) for path in ("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1")
                ]
            )
        ),
    ),
    Statement("queue is required", raises(ValueError, "queue", lambda: request(queue=None))),
    Statement("priority needs share_id", raises(ValueError, "share_id", lambda: request(priority=1))),
    Statement(
        "share_id is in the name", holds(lambda: request(share_id="team").name.startswith("app-team-"))
    ),
    Statement("the name is unique", holds(lambda: make_unique("app") != make_unique("app"))),
    Statement(
        "priority is schedulingPriority",
        holds(lambda: request(share_id="team", priority=3).job_def["schedulingPriority"] == 3),
    ),
    Statement(
        "priority is 0 by default", holds(lambda: request(share_id="team").job_def["schedulingPriority"] == 0)
    ),
    Statement(
        "without share_id there is no schedulingPriority",
        holds(lambda: "schedulingPriority" not in request().job_def),
    ),
    Statement(
        "share_id is shareIdentifier",
        holds(lambda: request(share_id="team").submission["shareIdentifier"] == "team"),
    ),
    Statement("the job goes to the queue", holds(lambda: request().submission["jobQueue"] == "q")),
    Statement(
        "several replicas are a multi-node job", holds(lambda: request().job_def["type"] == "multinode")
    ),
    Statement(
        "one replica is a multi-node job",
        holds(lambda: request(AppDef("app", [job().roles[1]])).job_def["type"] == "multinode"),
        "One replica is a container job",
    ),
    Statement("every replica is a node", holds(lambda: request().job_def["nodeProperties"]["numNodes"] == 3)),
    Statement(
        "the first node is the main one", holds(lambda: request().job_def["nodeProperties"]["mainNode"] == 0)
    ),
    Statement(
        "three retries are three attempts",
        holds(lambda: request(job(max_retries=3)).job_def["retryStrategy"]["attempts"] == 3),
        "`max_retries=3` makes four attempts",
    ),
    Statement(
        "without retries there is one attempt",
        holds(lambda: request().job_def["retryStrategy"]["attempts"] == 1),
    ),
    Statement(
        "success ends the job",
        holds(
            lambda: (
                {"onExitCode": "0", "action": "EXIT"} in request().job_def["retryStrategy"]["evaluateOnExit"]
            )
        ),
    ),
    *(
        Statement(
            f"the job has the tag {name}",
            holds(lambda tag=f"torchx.pytorch.org/{name}": tag in request().job_def["tags"]),
            "Tags of AWS jobs",
        )
        for name in ("version", "app-name", "user")
    ),
    Statement(
        "privileged is that of the containers", holds(lambda: containers(privileged=True)[0]["privileged"])
    ),
    Statement("the variable TORCHX_ROLE_IDX", holds(lambda: environment(1)["TORCHX_ROLE_IDX"] == "1")),
    Statement("the variable TORCHX_ROLE_NAME", holds(lambda: environment(1)["TORCHX_ROLE_NAME"] == "reader")),
    Statement("the variable TORCHX_REPLICA_IDX", holds(lambda: "TORCHX_REPLICA_IDX" in environment(0))),
    Statement(
        "TORCHX_RANK0_HOST is localhost on the first node, and its address on the others",
        holds(
            lambda: (
                "${AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-localhost}"
                in environment(0)["TORCHX_RANK0_HOST"]
            )
        ),
    ),
    Statement("repr is str", holds(lambda: (made := request()) and repr(made) == str(made))),
    Statement(
        "str is the job definition",
        holds(lambda: (made := request()) and json.loads(str(made)) == made.job_def),
        "`str(BatchJob)` shows both requests",
    ),
    Statement(
        "only the combined stream can be read",
        raises(ValueError, "combined|COMBINED", lambda: _log(Stream.STDERR)),
    ),
    Statement(
        "an application's default scheduler is the first",
        holds(lambda: next(iter(get_scheduler_factories())) == get_default_scheduler_name()),
    ),
    Statement(
        "filter_regex keeps lines that match somewhere",
        holds(lambda: list(filter_regex("b.", ["abc", "ac"])) == ["abc"]),
    ),
]


def _log(stream: Stream) -> list[str]:
    scheduler = get_scheduler_factories()["aws_batch"]("session")
    return list(scheduler.log_iter("q:app", "trainer", since=datetime(2024, 1, 1), streams=stream))


@pytest.mark.parametrize(
    "statement", [*NAMES, *SIGNATURES, *CLASSES, *OPTIONS, *BEHAVIOUR], ids=lambda statement: statement.text
)
def test_documents(statement: Statement) -> None:
    statement.verify()

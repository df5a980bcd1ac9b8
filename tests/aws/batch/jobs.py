"""Jobs and options that the tests of the requests share."""

from __future__ import annotations

from typing import Any

from shunter.schedulers.aws_batch_scheduler.request import BatchJob, make_request
from shunter.schedulers.aws_batch_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, Resource, Role, macros
from shunter.specs.mounts import BindMount, DeviceMount, VolumeMount
from shunter.specs.named_resources_aws import EFA_DEVICE, INSTANCE_TYPE, NEURON_DEVICE

ROLE = "arn:aws:iam::123456789012:role/jobs"
SMALL = Resource(cpu=1, gpu=0, memMB=2048)


def role(name: str = "trainer", **fields: Any) -> Role:
    defaults: dict[str, Any] = {
        "image": "repo/image:1",
        "entrypoint": "python",
        "args": ["train.py", "--lr", "0.1"],
        "resource": Resource.copy(SMALL),
    }
    return Role(name, **{**defaults, **fields})


def app(*roles: Role, name: str = "Train Me", **fields: Any) -> AppDef:
    return AppDef(name, list(roles) or [role()], **fields)


def request(definition: AppDef, **cfg: Any) -> BatchJob:
    """Return the request for a job, the options resolved as the scheduler does it."""
    options = create_scheduler("session").run_opts().resolve({"queue": "gpus", "user": "somebody", **cfg})
    return make_request(definition, options, "session")


#: Name of a golden file -> a job and its options.
CASES: dict[str, tuple[AppDef, dict[str, Any]]] = {
    "container": (app(role(env={"A": "b"}, max_retries=1)), {}),
    "retry": (app(), {"retry": {"node": "5", "oom": "0", "exception": "0"}}),
    "retry_others": (app(role(max_retries=3)), {"retry": {"exception": "0"}}),
    "container_everything": (
        app(
            role(
                args=["train.py", "--job", macros.app_id, "--replica", macros.replica_id],
                env={"HOST": f"${{{macros.rank0_env}}}", "OUT": f"s3://bucket/{macros.app_id}"},
                max_retries=2,
                resource=Resource(
                    cpu=96,
                    gpu=8,
                    memMB=1_000_000,
                    capabilities={INSTANCE_TYPE: "p4d.24xlarge"},
                    devices={EFA_DEVICE: 2, NEURON_DEVICE: 1},
                ),
                mounts=[
                    BindMount("/data", "/mnt/data", read_only=True),
                    VolumeMount("fs-12345678", "/mnt/efs"),
                    VolumeMount("fs-12345678:/sub", "/mnt/sub", read_only=True),
                    VolumeMount("fs-12345678@fsap-0123", "/mnt/point"),
                    DeviceMount("/dev/fuse", "/dev/fuse", "rw"),
                ],
            ),
            metadata={"team": "vision"},
        ),
        {
            "queue": "arn:aws:batch:us-west-2:123456789012:job-queue/gpus",
            "privileged": True,
            "share_id": "vision",
            "priority": 7,
            "job_role_arn": ROLE,
            "execution_role_arn": ROLE,
            "timeout": 3600,
            "retry_on": "spot",
            "retry_rules": ["exit:137:retry"],
            "log_group": "/jobs/vision",
            "tags": {"cost-center": "42"},
            "secrets": {
                "HF_TOKEN": "arn:aws:secretsmanager:us-west-2:123456789012:secret:hf-AbCdEf",
                "WANDB_API_KEY": "ssm:/prod/wandb",
            },
            "ulimits": ["memlock:-1:-1", "nofile:65536:65536"],
        },
    ),
    "fargate": (
        app(role()),
        {
            "platform": "FARGATE",
            "execution_role_arn": ROLE,
            "ephemeral_storage": 100,
            "public_ip": True,
        },
    ),
    "array": (
        app(role(num_replicas=20, args=["work.py", f"--part={macros.replica_id}"], env={"K": "v"})),
        {"array": True},
    ),
    "multinode": (
        app(
            role(
                num_replicas=4,
                resource=Resource(8, 1, 60_000, {INSTANCE_TYPE: "p3.2xlarge"}),
                args=["-c", f"it's ${{{macros.rank0_env}}}", macros.replica_id, macros.app_id],
                env={"NAME": f"replica {macros.replica_id}"},
            ),
            role("reader", num_replicas=2, resource=Resource(4, 0, 30_000, {INSTANCE_TYPE: "p3.2xlarge"})),
        ),
        {"timeout": 60},
    ),
}

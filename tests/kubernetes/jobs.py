"""Jobs that tests submit to Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shunter.schedulers.kubernetes_scheduler.options import KubernetesOpts
from shunter.schedulers.kubernetes_scheduler.request import KubernetesJob, make_request
from shunter.specs import AppDef, Resource, RetryPolicy, Role, macros, parse_mounts
from shunter.specs.options import runopts
from tests.backends import need

SCHEMAS = Path(__file__).parent / "schemas"


def problems_of(manifest: dict[str, Any], kind: str) -> list[str]:
    """Return what the CustomResourceDefinition of a kind has against an object."""
    need("kubernetes_validate")  # which brings jsonschema
    import jsonschema

    schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(manifest)]


def resolved(**cfg: Any) -> dict[str, Any]:
    return runopts.from_dataclass(KubernetesOpts).resolve(cfg)


def request(job: AppDef, **cfg: Any) -> KubernetesJob:
    return make_request(job, resolved(**cfg), "s")


def role(name: str = "trainer", **fields: Any) -> Role:
    defaults = {
        "image": "alpine:3",
        "entrypoint": "python",
        "args": ["train.py"],
        "resource": Resource(cpu=2, gpu=0, memMB=4096),
    }
    return Role(name=name, **{**defaults, **fields})


def app(*roles: Role, **fields: Any) -> AppDef:
    return AppDef(fields.pop("name", "digits"), list(roles) or [role()], **fields)


EVERYTHING = role(
    args=["--index", macros.replica_id, "--price", "5$(USD) $$$$", "--api-key", "sk-1234567890abcdef"],
    env={
        "HF_TOKEN": "hf_abcdefghijklmnop",
        "MY_IP": "[FIELD_PATH]status.podIP",
        "SHARD": f"shard-{macros.replica_id}",
    },
    num_replicas=2,
    port_map={"c10d": 29500},
    resource=Resource(
        cpu=96,
        gpu=8,
        memMB=1_100_000,
        capabilities={"node.kubernetes.io/instance-type": "p4d.24xlarge"},
        devices={"vpc.amazonaws.com/efa": 4},
    ),
    mounts=parse_mounts(
        [
            "type=bind",
            "src=/data",
            "dst=/data",
            "readonly",
            "type=volume",
            "src=scratch",
            "dst=/scratch",
            "type=device",
            "src=/dev/fuse",
        ]
    ),
    retry_policy=RetryPolicy.REPLICA,
    max_retries=2,
    metadata={
        "kubernetes": {
            "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "fast"}},
            "spec": {
                "nodeSelector": {"pool": "gpu"},
                "tolerations": [{"key": "extra", "operator": "Exists"}],
            },
        }
    },
)
SCRIPT = role(
    entrypoint="bash", args=["-c", f"torchrun --rdzv_endpoint $${{{macros.rank0_env}:=localhost}}:29500 t.py"]
)

CASES: dict[str, tuple[AppDef, dict[str, Any]]] = {
    "retry_alone": (
        app(role(num_replicas=3, retry_policy=RetryPolicy.REPLICA, max_retries=1)),
        {"retry": {"oom": "1", "preempted": "1", "node": "1", "other": "0"}, "final_exit_codes": [42]},
    ),
    "retry_jobset": (
        app(role(num_replicas=2), role("reader")),
        {"kind": "jobset", "retry": {"oom": "3", "other": "3", "exception": "0", "node": "inf"}},
    ),
    "one_replica": (app(), {}),
    "two_nodes": (app(role(**{**vars(SCRIPT), "num_replicas": 2})), {}),
    "two_roles": (app(role(num_replicas=2), role("Reader.v2")), {"namespace": "team-a"}),
    "everything": (
        app(EVERYTHING, name="Digits / everything", metadata={"team": "Vision & co", "not a key": "x"}),
        {
            "namespace": "ml",
            "service_account": "trainer",
            "priority_class": "high",
            "image_pull_secrets": ["ghcr"],
            "node_selector": {"zone": "a"},
            "exclude": ["gpu-7", "gpu-8.example.com"],
            "tolerations": ["nvidia.com/gpu:NoSchedule", "team=a:NoExecute", "*"],
            "secrets": {"WANDB_API_KEY": "wandb/key"},
            "labels": {"cost-center": "42"},
            "annotations": {"example.com/note": "hello"},
            "final_exit_codes": [2, 3],
            "timeout": 3600,
            "grace_period": 120,
            "ttl": 600,
            "shm_size": 1024,
        },
    ),
    "kueue": (
        app(role(num_replicas=2)),
        {
            "local_queue": "gpus",
            "workload_priority": "high",
            "topology": "required:topology.k8s.aws/network-node-layer-3",
        },
    ),
    "kueue_two_roles": (app(role(num_replicas=2), role("reader")), {"local_queue": "gpus"}),
    "jobset": (
        app(role(num_replicas=2, max_retries=3), role("reader", max_retries=3)),
        {"kind": "jobset", "final_exit_codes": [2]},
    ),
    "volcano": (
        app(role(num_replicas=2, min_replicas=1, max_retries=1), role("reader")),
        {"queue": "default"},
    ),
    "gang": (app(role(num_replicas=2)), {"gang": True}),
}

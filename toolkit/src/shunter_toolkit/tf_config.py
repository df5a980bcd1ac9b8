"""``TF_CONFIG`` for TensorFlow's parameter servers and MultiWorkerMirroredStrategy."""

from __future__ import annotations

import json
from typing import Any

from . import input_config
from .environment import Environment

PARAMETER_SERVER = "sagemaker_parameter_server_enabled"
MIRRORED_STRATEGY = "sagemaker_multi_worker_mirrored_strategy_enabled"
_WORKER_PORT, _SERVER_PORT, _MIRRORED_PORT = 2222, 2223, 8890


def variables(environment: Environment) -> dict[str, str]:
    """``TF_CONFIG`` if the job asks for one of the two on this host; parameter servers need several hosts."""
    asked = environment.additional_framework_parameters
    if environment.current_instance_group not in environment.distribution_instance_groups:
        return {}
    hosts, host = environment.distribution_hosts, environment.current_host
    if input_config.is_true(asked.get(PARAMETER_SERVER)) and len(hosts) > 1:
        cluster, task = _parameter_servers(hosts, hosts.index(host))
    elif input_config.is_true(asked.get(MIRRORED_STRATEGY)):
        cluster = {"worker": _addresses(hosts, _MIRRORED_PORT)}
        task = {"index": hosts.index(host), "type": "worker"}
    else:
        return {}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "environment": "cloud", "task": task})}


def _parameter_servers(hosts: list[str], number: int) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Cluster and task: the first host is the master, the others are workers; all are parameter servers."""
    cluster = {
        "master": _addresses(hosts[:1], _WORKER_PORT),
        "ps": _addresses(hosts, _SERVER_PORT),
        "worker": _addresses(hosts[1:], _WORKER_PORT),
    }
    return cluster, {"index": number - 1, "type": "worker"} if number else {"index": 0, "type": "master"}


def _addresses(hosts: list[str], port: int) -> list[str]:
    return [f"{host}:{port}" for host in hosts]

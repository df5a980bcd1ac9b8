"""`shunter exec` on AWS Batch: a session in a replica's container, by ECS Exec.

https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-exec.html
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from shunter.errors import BackendError, ConfigError
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws.session_manager import join_session, require_plugin
from shunter.schedulers.joined_terminal import SHELL

#: The member of Batch's containers that turns it on.
MEMBER = "enableExecuteCommand"


def run_in_task(session: AwsSession, detail: dict[str, Any], name: str, command: Sequence[str]) -> int:
    """Run a command, or a shell without one, in the container of a replica that runs.

    ``detail`` is the replica's description, and ``name`` what messages call it.

    Raises:
        ConfigError: the job was submitted without the option ``exec``, or the plug-in is missing.
        AwsError: AWS refused it, for instance for lack of permissions of the job's role.
    """
    container = detail.get("container") or {}
    if not container.get(MEMBER):
        raise ConfigError(
            f"{name} was submitted without the option exec, so AWS allows no connection",
            hint="Submit it with -cfg exec=true, and a job_role_arn whose role may use ssmmessages.",
        )
    require_plugin()
    task = str(container["taskArn"])
    cluster = task.split(":", 5)[5].split("/")[1]
    answer = session.call(
        "ecs",
        "ExecuteCommand",
        cluster=cluster,
        task=task,
        command=shlex.join(command or SHELL),
        interactive=True,
    )
    begun = answer["session"]
    return join_session(
        {
            "SessionId": begun["sessionId"],
            "TokenValue": begun["tokenValue"],
            "StreamUrl": begun["streamUrl"],
        },
        _target(session, cluster, task, answer.get("containerName", "")),
        session.region,
        session.profile or "",
        session.client("ecs").meta.endpoint_url,
    )


def _target(session: AwsSession, cluster: str, task: str, container_name: str) -> str:
    """Return the name under which Systems Manager knows a container of a task."""
    tasks = session.call("ecs", "DescribeTasks", cluster=cluster, tasks=[task]).get("tasks", [])
    if not tasks:
        raise BackendError(f"the task {task} ended before the session was opened")
    containers = tasks[0]["containers"]
    chosen = next((each for each in containers if each["name"] == container_name), containers[0])
    return f"ecs:{cluster}_{task.rpartition('/')[2]}_{chosen['runtimeId']}"

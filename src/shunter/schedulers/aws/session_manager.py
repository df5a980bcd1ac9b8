"""`shunter exec` at AWS: sessions of Systems Manager, carried by AWS's own plug-in.

The protocol of these sessions is the plug-in's; it is called as the AWS CLI calls it
(``awscli/customizations/sessionmanager.py`` and ``ecs/executecommand.py`` of version 1.44).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from shunter.errors import BackendError, ConfigError
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.joined_terminal import SHELL, run_joined

PLUGIN = "session-manager-plugin"
_HELP = (
    "Install it: https://docs.aws.amazon.com/systems-manager/latest/userguide/"
    "session-manager-working-with-install-plugin.html"
)
#: The variable from which plug-ins after 1.2.497 take a session's token, so that other users do not see it.
_VARIABLE = "AWS_SSM_START_SESSION_RESPONSE"
#: The document that runs one command on a terminal; a session without a document is a shell.
_ONE_COMMAND = "AWS-StartInteractiveCommand"


def run_on_target(session: AwsSession, target: str, command: Sequence[str]) -> int:
    """Run a command, or a shell without one, on a target of Systems Manager; returns the plug-in's exit code.

    AWS does not tell how the command ended.

    Raises:
        ConfigError: the plug-in is missing.
        AwsError: AWS refused it, for instance for lack of permissions of the job's role.
    """
    _require_plugin()
    document: dict[str, Any] = {}
    if command:
        document = {"DocumentName": _ONE_COMMAND, "Parameters": {"command": [shlex.join(command)]}}
    begun = session.call("ssm", "StartSession", Target=target, **document)
    answer = {key: begun[key] for key in ("SessionId", "TokenValue", "StreamUrl")}
    return _join(session, "ssm", answer, target)


def run_in_task(session: AwsSession, task: str, command: Sequence[str]) -> int:
    """Run a command, or a shell without one, in the container of a task of ECS, given by its ARN.

    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-exec.html. See `run_on_target`.
    """
    _require_plugin()
    cluster = task.split(":", 5)[5].split("/")[1]
    answer = session.call(
        "ecs",
        "ExecuteCommand",
        cluster=cluster,
        task=task,
        command=shlex.join(command or SHELL),
        interactive=True,
    )
    tasks = session.call("ecs", "DescribeTasks", cluster=cluster, tasks=[task]).get("tasks", [])
    if not tasks:
        raise BackendError(f"the task {task} ended before the session was opened")
    containers = tasks[0]["containers"]
    chosen = next((each for each in containers if each["name"] == answer.get("containerName")), containers[0])
    target = f"ecs:{cluster}_{task.rpartition('/')[2]}_{chosen['runtimeId']}"
    begun = {key[0].upper() + key[1:]: value for key, value in answer["session"].items()}
    return _join(session, "ecs", begun, target)


def _require_plugin() -> None:
    """Check that the plug-in is there, before a session is begun at AWS."""
    if shutil.which(PLUGIN) is None:
        raise ConfigError(
            f"AWS gives access to its containers only through its program {PLUGIN!r}, which is not installed",
            hint=_HELP,
        )


def _join(session: AwsSession, service: str, begun: Mapping[str, str], target: str) -> int:
    """Join this terminal to a session; the plug-in needs the target and the endpoint to resume it."""
    env = {**os.environ, _VARIABLE: json.dumps(dict(begun))}
    resume = [
        session.profile or "",
        json.dumps({"Target": target}),
        session.client(service).meta.endpoint_url,
    ]
    try:
        return run_joined([PLUGIN, _VARIABLE, session.region, "StartSession", *resume], env)
    except OSError as error:
        raise BackendError(f"cannot start {PLUGIN}: {error.strerror or error}", hint=_HELP) from error

"""`shunter exec` on SageMaker: a session on a host of a training job, by Systems Manager.

https://docs.aws.amazon.com/sagemaker/latest/dg/train-remote-debugging.html
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shunter.errors import ConfigError
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws.session_manager import join_session, require_plugin

#: The document that runs one command on a terminal; a session without a document is a shell.
_ONE_COMMAND = "AWS-StartInteractiveCommand"


def run_on_host(session: AwsSession, job: Mapping[str, Any], host: str, command: Sequence[str]) -> int:
    """Run a command, or a shell without one, on a host, such as ``algo-1``, of a training job that runs.

    Raises:
        ConfigError: remote debugging is off, or the plug-in is missing.
        AwsError: AWS refused it, for instance for lack of permissions of the job's role.
    """
    name = str(job["TrainingJobName"])
    if not (job.get("RemoteDebugConfig") or {}).get("EnableRemoteDebug"):
        raise ConfigError(
            f"{name} was submitted without remote debugging, so AWS allows no connection",
            hint="Submit it with -cfg enable_remote_debug=true, and a role that may use ssmmessages.",
        )
    require_plugin()
    target = f"sagemaker-training-job:{name}_{host}"
    document: dict[str, Any] = {}
    if command:
        document = {"DocumentName": _ONE_COMMAND, "Parameters": {"command": [shlex.join(command)]}}
    begun = session.call("ssm", "StartSession", Target=target, **document)
    answer = {key: begun[key] for key in ("SessionId", "TokenValue", "StreamUrl")}
    endpoint = session.client("ssm").meta.endpoint_url
    return join_session(answer, target, session.region, session.profile or "", endpoint)

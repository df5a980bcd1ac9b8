"""Sessions in containers: ECS's ExecuteCommand and Systems Manager's StartSession."""

from __future__ import annotations

from typing import Any


class Sessions:
    """What begins sessions; what goes on in them is the plug-in's, which tests replace."""

    def execute_command(self, params: dict[str, Any]) -> dict[str, Any]:
        session = {"sessionId": "ecs-execute-command-1", "streamUrl": "wss://stream", "tokenValue": "t0ken"}
        cluster = f"arn:aws:ecs:eu-west-1:123456789012:cluster/{params['cluster']}"
        return {
            "clusterArn": cluster,
            "taskArn": params["task"],
            "containerName": "default",
            "interactive": params["interactive"],
            "session": session,
        }

    def describe_tasks(self, params: dict[str, Any]) -> dict[str, Any]:
        containers = [{"name": "side", "runtimeId": "r0"}, {"name": "default", "runtimeId": "r1"}]
        return {"tasks": [{"taskArn": task, "containers": containers} for task in params["tasks"]]}

    def start_session(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"SessionId": "ssm-1", "StreamUrl": "wss://stream", "TokenValue": "t0ken"}

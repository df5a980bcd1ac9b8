"""Joining a terminal to a container at AWS: the sessions of Systems Manager, carried by AWS's own plug-in.

The protocol of these sessions is the plug-in's; it is called as the AWS CLI calls it
(``awscli/customizations/sessionmanager.py`` and ``ecs/executecommand.py`` of version 1.44).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping

from shunter.errors import BackendError, ConfigError
from shunter.schedulers.joined_terminal import run_joined

PLUGIN = "session-manager-plugin"
_HELP = (
    "Install it: https://docs.aws.amazon.com/systems-manager/latest/userguide/"
    "session-manager-working-with-install-plugin.html"
)
#: The variable from which plug-ins after 1.2.497 take a session's token, so that other users do not see it.
_VARIABLE = "AWS_SSM_START_SESSION_RESPONSE"


def require_plugin() -> None:
    """Check that the plug-in is there, before a session is begun at AWS.

    Raises:
        ConfigError: it is not.
    """
    if shutil.which(PLUGIN) is None:
        raise ConfigError(
            f"AWS gives access to its containers only through its program {PLUGIN!r}, which is not installed",
            hint=_HELP,
        )


def join_session(
    session: Mapping[str, str], target: str, region: str, profile: str = "", endpoint: str = ""
) -> int:
    """Join this terminal to a session that AWS has begun; returns the plug-in's exit code.

    AWS does not tell how the command in the container ended.

    Args:
        session: ``SessionId``, ``TokenValue`` and ``StreamUrl``.
        target: the session's target, which the plug-in needs to resume it.
        region: the region.
        profile: the profile by which it was begun; "" for that of the environment.
        endpoint: the endpoint of the service that began it.
    """
    env = {**os.environ, _VARIABLE: json.dumps(dict(session))}
    words = [PLUGIN, _VARIABLE, region, "StartSession", profile, json.dumps({"Target": target}), endpoint]
    try:
        return run_joined(words, env)
    except OSError as error:
        raise BackendError(f"cannot start {PLUGIN}: {error.strerror or error}", hint=_HELP) from error

"""Joining a terminal to a container at AWS: the sessions of Systems Manager, carried by AWS's own plug-in.

The protocol of these sessions is the plug-in's; it is called as the AWS CLI calls it
(``awscli/customizations/sessionmanager.py`` and ``ecs/executecommand.py`` of version 1.44).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from shunter.errors import BackendError, ConfigError
from shunter.schedulers.joined_terminal import run_joined

PLUGIN = "session-manager-plugin"
_HELP = (
    "Install it: https://docs.aws.amazon.com/systems-manager/latest/userguide/"
    "session-manager-working-with-install-plugin.html"
)
#: Plug-ins after this version take the token from a variable, which other users do not see.
_LAST_WITHOUT_VARIABLE = (1, 2, 497, 0)
_VARIABLE = "AWS_SSM_START_SESSION_RESPONSE"
_VERSION_SECONDS = 20


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
    text = json.dumps(dict(session))
    env = dict(os.environ)
    if _version() > _LAST_WITHOUT_VARIABLE:
        env[_VARIABLE] = text
        text = _VARIABLE
    words = [PLUGIN, text, region, "StartSession", profile, json.dumps({"Target": target}), endpoint]
    try:
        return run_joined(words, env)
    except OSError as error:
        raise BackendError(f"cannot start {PLUGIN}: {error.strerror or error}", hint=_HELP) from error


def _version() -> tuple[int, ...]:
    try:
        answer = subprocess.run(
            [PLUGIN, "--version"], capture_output=True, text=True, check=False, timeout=_VERSION_SECONDS
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(map(int, answer.split("."))) if re.fullmatch(r"\d+(\.\d+){0,3}", answer) else ()

"""Jobs that follow the toolkit's contract: the toolkit is started in place of their script.

The interface is the job document of ``docs/contract.md``, which travels in a variable. Schedulers that
carry out the contract themselves read ``metadata["train"]`` instead.
"""

from __future__ import annotations

import json
import os

from trainyard.errors import ConfigError
from trainyard.specs.training import DOCUMENT, METADATA_KEY, local_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.schedulers.base import Scheduler
    from trainyard.specs.app import AppDef, Role


def start_toolkits(app: AppDef, scheduler: Scheduler[Any]) -> None:
    """Let every role with a training specification start the toolkit instead of its script, in place.

    Raises:
        ConfigError: the scheduler cannot bring the toolkit to the job, or a channel's data are not there.
    """
    for role in app.roles:
        if METADATA_KEY in role.metadata and not scheduler.reads_training_specs:
            _start_toolkit(role, scheduler)


def _start_toolkit(role: Role, scheduler: Scheduler[Any]) -> None:
    place = scheduler.toolkit_place(role)
    if place is None:
        raise ConfigError(
            f"{scheduler.backend} cannot bring the toolkit to role {role.name!r}",
            hint="Run the script without it (train.script --toolkit=false), or on another scheduler.",
        )
    if place.base:
        _check_channels(role)
    elif scheduler.is_local:  # in a container of this machine
        _mount_local_paths(role)
    document = {"code": place.code, **role.metadata[METADATA_KEY]}
    role.entrypoint = place.command[0]
    role.args = [*place.command[1:], "train"]
    role.env[DOCUMENT] = json.dumps(document)  # macros in it are substituted, as in arguments
    if place.base:
        role.env.setdefault("SAGEMAKER_BASE_DIR", place.base)
        if scheduler.is_local:  # its replicas are processes of one machine
            role.env.setdefault("TRAINYARD_HOST_NETWORK", "loopback")
    for name, value in place.env.items():
        role.env.setdefault(name, value)


def _check_channels(role: Role) -> None:
    """Refuse channels of this machine that are not there."""
    for name, channel in role.metadata[METADATA_KEY].get("channels", {}).items():
        path = local_path(_uri(channel))
        if path and not os.path.exists(path):
            raise ConfigError(
                f"channel {name!r}: there is nothing at {path}", hint=f"Name data: --channel {name}=PATH"
            )


def _mount_local_paths(role: Role) -> None:
    """Show a container the directories of this machine that channels and results name, at the same paths."""
    from trainyard.specs.mounts import BindMount

    specification = role.metadata[METADATA_KEY]
    wanted = {local_path(_uri(channel)): True for channel in specification.get("channels", {}).values()}
    for section in ("output", "checkpoints"):
        wanted[local_path(specification.get(section, {}).get("uri", ""))] = False
    for path, read_only in wanted.items():
        mounted = any(
            path == m.dst_path or path.startswith(m.dst_path.rstrip("/") + "/") for m in role.mounts
        )
        if path and not mounted:
            role.mounts.append(BindMount(path, path, read_only))


def _uri(channel: Any) -> str:
    uri: str = channel if isinstance(channel, str) else channel.get("uri", "")
    return uri

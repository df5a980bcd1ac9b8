"""Hosts that are processes of this machine: their commands, and the ports at which they meet."""

from __future__ import annotations

import os
import random
import shutil
import socket
from typing import Any

from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import (
    BASE,
    Tree,
    checkpoint_path,
    command_of,
)

#: In the environment of a process host: its name.
CURRENT_HOST = "SHUNTER_CURRENT_HOST"
#: Below the kernel's ephemeral ports (ip_local_port_range), above the ports of well-known services.
PORTS = range(20000, 32000)


def command_or_toolkit(request: dict[str, Any], search_path: str, toolkit: list[str]) -> list[str]:
    """Return the command line of a host that is a process; without an entry point, the toolkit's."""
    entrypoint, arguments = command_of(request)
    if entrypoint is not None:
        return [*entrypoint, *arguments]
    if arguments and shutil.which(arguments[0], path=search_path):
        return arguments
    return [*toolkit, *arguments]


def link_checkpoints(tree: Tree, request: dict[str, Any]) -> None:
    """Link a host's checkpoints to the path of the request, if that is below the base directory."""
    wanted = checkpoint_path(request)
    if not wanted.startswith(f"{BASE}/"):
        return
    path = tree.part(os.path.relpath(wanted, BASE))
    if path != tree.part("checkpoints") and not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(tree.part("checkpoints"), path)


def free_ports(count: int) -> list[int]:
    """Return TCP ports that are free.

    Nothing reserves them: they are chosen at random, so that two jobs rarely meet.

    Raises:
        OSError: fewer are free.
    """
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if _is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"fewer than {count} ports of {PORTS.start} to {PORTS.stop - 1} are free on this machine")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
        if socket.has_dualstack_ipv6():
            socket.create_server(("", port), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True

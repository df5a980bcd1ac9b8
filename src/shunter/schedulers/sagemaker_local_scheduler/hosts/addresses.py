"""Ports for the hosts of a job that are processes of this machine.

Nothing reserves them: they are chosen at random among those that are free, so that two jobs rarely meet.
"""

from __future__ import annotations

import random
import socket

from shunter.schedulers.sagemaker_local_scheduler.hosts.host import PlatformFailure

#: Below the kernel's ephemeral ports (ip_local_port_range), above the ports of well-known services.
PORTS = range(20000, 32000)


def free_ports(count: int) -> list[int]:
    """Return TCP ports that are free.

    Raises:
        PlatformFailure: fewer are free.
    """
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if _is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise PlatformFailure(
        f"fewer than {count} ports of {PORTS.start} to {PORTS.stop - 1} are free on this machine"
    )


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
        if socket.has_dualstack_ipv6():
            socket.create_server(("", port), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True

"""Ports and loopback addresses that are reserved for one job, among all jobs of all users of this machine.

Each is a name (`shunter.system.claim_name`) that is free again when the process that has it ends.
"""

from __future__ import annotations

import os
import socket

from shunter import system
from shunter.schedulers.sagemaker_local_scheduler.hosts.host import PlatformFailure

#: Below the kernel's ephemeral ports (ip_local_port_range), above the ports of well-known services.
PORTS = range(20000, 32000)
#: Second and third number of a loopback address, as one. 127.0 is the machine's own; those from 127.128 on
#: are the toolkit's, for hosts that it names itself (docs/contract.md).
NETWORKS = range(256, 32768)


class Reservations:
    """Ports and networks that a job has until it closes this, or its process ends."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def port(self) -> int:
        """Return a TCP port that is free and that no other job has.

        Raises:
            PlatformFailure: all are in use.
        """
        start = int.from_bytes(os.urandom(2), "big") % len(PORTS)
        ports: list[int] = [*PORTS[start:], *PORTS[:start]]
        for port in ports:
            if _is_free(port) and self._hold("port", port):
                return port
        raise PlatformFailure(f"no port of {PORTS.start} to {PORTS.stop - 1} is free on this machine")

    def network(self, count: int) -> int:
        """Return the first of ``count`` consecutive numbers of loopback networks that no other job has.

        Raises:
            PlatformFailure: all are in use.
        """
        for first in range(NETWORKS.start, NETWORKS.stop - count, count):
            held = len(self._held)
            if all(self._hold("network", first + more) for more in range(count)):
                return first
            self._release(held)
        raise PlatformFailure("no loopback addresses are left on this machine")

    def close(self) -> None:
        """Free all ports and networks."""
        self._release(0)

    def _hold(self, kind: str, number: int) -> bool:
        mark = system.claim_name(f"{kind}/{number}")
        if mark is not None:
            self._held.append(mark)
        return mark is not None

    def _release(self, held: int) -> None:
        while len(self._held) > held:
            self._held.pop().close()


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
        if socket.has_dualstack_ipv6():
            socket.create_server(("", port), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True

"""Networks for the containers of one job, in which the address of each is known before it starts.

Docker lets a container choose its address only in a network whose subnet was chosen too, and its own pools
hold some thirty networks. So a subnet that is as small as the job is drawn from a private range.
"""

from __future__ import annotations

import ipaddress
import os
import random
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shunter import system
from shunter.docker.command import DockerCommand, DockerRefused
from shunter.docker.daemon_errors import NoSubnetLeftError
from shunter.errors import ConfigError

#: Variable with comma-separated ranges for the subnets, which replace those below.
VARIABLE = "SHUNTER_DOCKER_SUBNETS"
#: Private ranges (RFC 1918); only the last is among Docker's own pools.
RANGES = "10.229.0.0/16,172.16.0.0/16,192.168.240.0/20"
#: Longest prefix of a subnet: 16 addresses, of which three are not for containers.
LONGEST_PREFIX = 28
RESERVED_ADDRESSES = 3
#: How many subnets are drawn before all count as taken.
ATTEMPTS = 100
#: Wider routes are not kept away from.
SHORTEST_ROUTE = 8
_TAKEN = re.compile(r"overlap|conflict", re.IGNORECASE)


class Network(NamedTuple):
    """A network that has been made: the daemon's id for it, and its addresses."""

    id: str
    subnet: ipaddress.IPv4Network

    @property
    def gateway(self) -> str:
        """The address of the daemon's machine."""
        return str(self.subnet[1])

    def addresses(self) -> Iterator[str]:
        """Yield the addresses that containers may have."""
        return map(str, list(self.subnet.hosts())[1:])


def make_network(
    docker: DockerCommand,
    name: str,
    containers: int,
    labels: Mapping[str, str],
    *,
    is_internal: bool = False,
) -> Network:
    """Make a network.

    Args:
        docker: the command for the daemon.
        name: the network's name.
        containers: how many will be on it.
        labels: the network's labels.
        is_internal: whether it leads nowhere.

    Raises:
        NoSubnetLeftError: no addresses are left for it.
        DockerRefused: the daemon refuses it for another reason.
        EngineUnavailableError: no daemon answers.
        ConfigError: the variable for the ranges cannot be read.
    """
    prefix = min(LONGEST_PREFIX, 32 - (containers + RESERVED_ADDRESSES - 1).bit_length())
    text = os.environ.get(VARIABLE) or RANGES
    try:
        ranges = [ipaddress.IPv4Network(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"{VARIABLE} is {text!r}: {error}", hint="An example: 10.200.0.0/16,172.30.0.0/16"
        ) from None
    # wider routes do not show which addresses are used: a VPN routes all addresses, as two halves
    routes = [
        ipaddress.IPv4Network((destination, mask.bit_count()))
        for destination, mask in (system.routes() if docker.is_local else ())
        if mask.bit_count() >= SHORTEST_ROUTE
    ]
    words = [word for label, value in labels.items() for word in ("--label", f"{label}={value}")]
    words += ["--internal"] if is_internal else []
    wide = [network for network in ranges if network.prefixlen <= prefix]
    for _ in range(ATTEMPTS if wide else 0):
        whole = random.choice(wide)
        start = int(whole[0]) + random.randrange(1 << (prefix - whole.prefixlen)) * (1 << (32 - prefix))
        subnet = ipaddress.IPv4Network((start, prefix))
        if any(map(subnet.overlaps, routes)):
            continue
        place = ["--subnet", str(subnet), "--gateway", str(subnet[1])]
        try:
            return Network(docker.run("network", "create", *words, *place, name).strip(), subnet)
        except DockerRefused as error:
            if not _TAKEN.search(error.message):
                raise
    raise NoSubnetLeftError(
        f"all addresses for networks of containers are in use (of {text})",
        hint=f"They become free when jobs end. {VARIABLE} names other ranges.",
    )

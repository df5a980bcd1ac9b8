"""Networks of a daemon whose subnets we choose.

Docker's own address pools hold some thirty networks, whatever their size. Ours are as small as their jobs, so
that thousands fit, and avoid what this machine and the daemon's other networks use.
"""

from __future__ import annotations

import ipaddress
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shunter import system
from shunter.backoff import Backoff
from shunter.docker.daemon_errors import EngineError, NoSubnetLeftError
from shunter.docker.engine import Engine
from shunter.errors import ConfigError

Subnet = ipaddress.IPv4Network

#: Variable with comma-separated ranges for the subnets, which replace those below.
VARIABLE = "SHUNTER_DOCKER_SUBNETS"
#: Private ranges (RFC 1918), each from a different block; only the last is among Docker's own pools.
RANGES = ("10.229.0.0/16", "172.16.0.0/16", "192.168.240.0/20")
#: Longest prefix of a subnet: 16 addresses, of which three are not for containers.
LONGEST_PREFIX = 28
RESERVED_ADDRESSES = 3
#: Prefixes of a network that many jobs share: the first that fits. A Linux bridge has at most 1023 ports.
SHARED_PREFIXES = (22, 24, 26, LONGEST_PREFIX)
SHARED_LABEL = "shunter.shared"
#: A process picks one of this many free subnets at random, so that concurrent processes rarely collide.
CHOICES = 64
ATTEMPTS = 50
SECONDS_BETWEEN_LOOKS = 0.1
#: Wider routes do not show which addresses are used: a VPN routes all addresses, as two halves.
SHORTEST_ROUTE = 8
_TAKEN = re.compile(r"overlap|conflict", re.IGNORECASE)


class Network:
    """A network that has been made.

    Attributes:
        id: the daemon's.
        subnet: its addresses.
        gateway: the address of this machine.
    """

    __slots__ = ("gateway", "id", "subnet")

    def __init__(self, network_id: str, subnet: Subnet) -> None:
        self.id = network_id
        self.subnet = subnet
        self.gateway = str(subnet[1])

    def addresses(self) -> Iterator[str]:
        """Yield the addresses that containers may have."""
        return (str(address) for address in list(self.subnet.hosts())[1:])


def make_network(engine: Engine, body: dict[str, Any], containers: int) -> Network:
    """Make a network.

    Args:
        engine: the daemon.
        body: of the request, without ``IPAM``.
        containers: how many will be on it.

    Raises:
        NoSubnetLeftError: no addresses are left for it.
        EngineError: the daemon refuses it for another reason.
        ConfigError: the variable for the ranges cannot be read.
    """
    bits = (containers + RESERVED_ADDRESSES - 1).bit_length()
    return _make(engine, body, [min(LONGEST_PREFIX, 32 - bits)], choices=CHOICES)


def shared_network(engine: Engine, name: str, *, is_internal: bool = False) -> Network:
    """Return the network of this name, made if it is not there. Containers on it do not reach each other.

    It is kept, since containers rely on it, and an idle network costs nothing.

    Args:
        engine: the daemon.
        name: the network's name.
        is_internal: whether it has no connection to the outside.

    Raises:
        NoSubnetLeftError: no addresses are left for it.
        EngineError: the daemon refuses it for another reason.
        ConfigError: the variable for the ranges cannot be read.
    """
    body = {
        "Name": name,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Internal": is_internal,
        "Labels": {SHARED_LABEL: "1"},
        "Options": {"com.docker.network.bridge.enable_icc": "false"},
    }
    backoff = Backoff(SECONDS_BETWEEN_LOOKS, attempts=ATTEMPTS)
    while True:
        found = _shared(engine, name)
        if found is not None:
            return found
        try:
            # all choose the same subnet, so that only one gets it
            made = _make(engine, body, SHARED_PREFIXES, choices=1, attempts=1)
        except EngineError as error:
            if error.status != 409 and not _TAKEN.search(error.message):
                raise
        else:
            # another process may have made it since we looked: that one has the first subnet, ours another
            oldest = _shared(engine, name) or made
            if oldest.id != made.id:
                engine.request("DELETE", f"/networks/{made.id}")
            return oldest
        if not backoff.pause():  # it is being made, or the subnet is used in a way unknown to us
            return _make(engine, body, SHARED_PREFIXES, choices=CHOICES)


def _shared(engine: Engine, name: str) -> Network | None:
    filters = {"name": [name], "label": [SHARED_LABEL]}
    found = [
        (network["Created"], network["Id"], subnet)
        for network in engine.request("GET", "/networks", params={"filters": filters})
        if network["Name"] == name
        for subnet in _subnets_of(network)
    ]
    if not found:
        return None
    _, network_id, subnet = min(found)
    return Network(network_id, subnet)


def _make(
    engine: Engine, body: dict[str, Any], prefixes: Sequence[int], *, choices: int, attempts: int = ATTEMPTS
) -> Network:
    """Make a network with the first prefix that has a free subnet."""
    ranges = _ranges(engine)
    refused: list[Subnet] = []
    for attempt in range(1, attempts + 1):
        used = [*_used(engine), *refused]
        free = next(filter(None, (_free(ranges, prefix, used, choices) for prefix in prefixes)), [])
        if not free:
            names = ", ".join(map(str, ranges))
            raise NoSubnetLeftError(
                f"all addresses for networks of containers are in use (of {names})",
                hint=f"They become free when jobs end. {VARIABLE} names other ranges.",
            )
        subnet = random.choice(free)
        ipam = {"Config": [{"Subnet": str(subnet), "Gateway": str(subnet[1])}]}
        try:
            made = engine.request("POST", "/networks/create", json={**body, "IPAM": ipam})
        except EngineError as error:
            # another process was quicker, or the daemon's machine uses it in a way that we do not see
            if attempt == attempts or error.status == 409 or not _TAKEN.search(error.message):
                raise
            refused.append(subnet)
        else:
            return Network(made["Id"], subnet)
    raise AssertionError(attempts)


def _ranges(engine: Engine) -> list[Subnet]:
    """Return the ranges of subnets: the user's, or those of the daemon's configuration, or our own."""
    text = os.environ.get(VARIABLE, "")
    if text:
        try:
            return [ipaddress.IPv4Network(part.strip()) for part in text.split(",")]
        except ValueError as error:
            raise ConfigError(
                f"{VARIABLE} is {text!r}: {error}", hint="An example: 10.200.0.0/16,172.30.0.0/16"
            ) from None
    pools = engine.request("GET", "/info").get("DefaultAddressPools") or []
    bases = [_parsed(pool.get("Base", "")) for pool in pools]
    return [base for base in bases if base is not None] or [ipaddress.IPv4Network(text) for text in RANGES]


def _free(ranges: list[Subnet], prefix: int, used: Iterable[Subnet], most: int) -> list[Subnet]:
    """Return the first subnets that are not used, at most ``most``."""
    taken = sorted((int(subnet[0]), int(subnet[-1])) for subnet in used)
    size = 1 << (32 - prefix)
    free: list[Subnet] = []
    for whole in ranges:
        place, end = int(whole[0]), int(whole[-1]) + 1
        for first, last in [*taken, (end, end)]:
            place += -place % size  # a subnet begins at a multiple of its size
            while place + size <= min(first, end) and len(free) < most:
                free.append(ipaddress.IPv4Network((place, prefix)))
                place += size
            place = max(place, last + 1)
    return free


def _used(engine: Engine) -> Iterator[Subnet]:
    """Yield the subnets that the daemon's networks use, and those that this machine has routes to."""
    for network in engine.request("GET", "/networks"):
        yield from _subnets_of(network)
    if engine.is_local:
        yield from _routes()


def _subnets_of(network: dict[str, Any]) -> Iterator[Subnet]:
    for config in (network.get("IPAM") or {}).get("Config") or []:
        subnet = _parsed(config.get("Subnet", ""))
        if subnet is not None:
            yield subnet


def _parsed(text: str) -> Subnet | None:
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError:  # of IPv6, or none at all
        return None


def _routes() -> Iterator[Subnet]:
    for destination, mask in system.routes():
        prefix = mask.bit_count()
        if prefix >= SHORTEST_ROUTE:
            yield ipaddress.IPv4Network((destination, prefix))

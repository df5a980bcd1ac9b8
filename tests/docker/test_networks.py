"""Subnets that we choose ourselves, on the real daemon, from ranges that nobody else uses."""

from __future__ import annotations

import ipaddress
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shunter.docker import networks
from shunter.docker.command import DockerCommand, remove_networks
from shunter.docker.daemon_errors import NoSubnetLeftError
from shunter.errors import ConfigError
from shunter.system import network
from tests.backends import need

LABEL = "shunter.test-networks"


@pytest.fixture
def make() -> Iterator[Callable[[], networks.Network]]:
    """Makes a network for two containers; all are removed at the test's end."""
    need("docker")
    command, mark = DockerCommand(), uuid.uuid4().hex
    yield lambda: networks.make_network(command, f"ty-{uuid.uuid4().hex[:12]}", 2, {LABEL: mark})
    remove_networks(command, command.ids("network", LABEL, mark))


def own_range(prefix: int) -> str:
    """A range of its own for each test, where no default of ours or Docker's is."""
    number = int.from_bytes(os.urandom(2), "big")
    return str(ipaddress.ip_network((0x0AF00000 | (number << 4 & 0xFFFFF), prefix), strict=False))


def test_those_who_make_networks_at_once_get_different_subnets_until_none_is_left(
    make: Callable[[], networks.Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = own_range(26)
    monkeypatch.setenv(networks.VARIABLE, whole)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: make(), range(4)))
    assert sorted(network.subnet for network in made) == list(ipaddress.IPv4Network(whole).subnets(2))
    with pytest.raises(NoSubnetLeftError, match="in use"):
        make()
    remove_networks(DockerCommand(), [made[0].id])
    assert make().subnet == made[0].subnet


def test_routes_of_this_machine_are_kept_away_from(
    make: Callable[[], networks.Network], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = ipaddress.IPv4Network(own_range(27))
    used, free = whole.subnets(1)
    rows = [
        "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT",
        f"eth9 {int(used[0]).to_bytes(4, 'little').hex()} 0 1 0 0 0 F0FFFFFF 0 0 0",
        "tun0 00000000 0 1 0 0 0 00000080 0 0 0",  # half of all there is, by a VPN
    ]
    table = tmp_path / "route"
    table.write_text("\n".join(rows) + "\n")
    monkeypatch.setattr(network, "ROUTES", str(table))
    monkeypatch.setenv(networks.VARIABLE, str(whole))
    assert make().subnet == free


def test_a_range_that_makes_no_sense(
    make: Callable[[], networks.Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(networks.VARIABLE, "10.0.0.0/99")
    with pytest.raises(ConfigError, match=r"SHUNTER_DOCKER_SUBNETS is '10\.0\.0\.0/99'"):
        make()

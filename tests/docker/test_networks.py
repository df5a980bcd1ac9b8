"""Subnets that we choose ourselves, on the real daemon, from ranges that nobody else uses."""

from __future__ import annotations

import ipaddress
import os
import threading
import uuid
from collections.abc import Iterator

import pytest

from shunter.docker import networks
from shunter.docker.daemon_errors import NoSubnetLeftError
from shunter.docker.engine import Engine
from shunter.errors import ConfigError
from shunter.system import linux
from tests.backends import need

LABEL = "shunter.test-networks"


@pytest.fixture
def engine() -> Iterator[Engine]:
    need("docker")
    made = Engine.from_env()
    made.mark = uuid.uuid4().hex  # type: ignore[attr-defined]
    yield made
    filters = {"label": [f"{LABEL}={made.mark}"]}  # type: ignore[attr-defined]
    for network in made.request("GET", "/networks", params={"filters": filters}):
        made.request("DELETE", f"/networks/{network['Id']}")
    made.close()


def body_of(engine: Engine) -> dict[str, object]:
    mark = engine.mark  # type: ignore[attr-defined]
    return {"Name": f"ty-{uuid.uuid4().hex[:12]}", "Driver": "bridge", "Labels": {LABEL: mark}}


def own_range(prefix: int) -> str:
    """A range of its own for each test, where no default of ours or Docker's is."""
    number = int.from_bytes(os.urandom(2), "big")
    return str(ipaddress.ip_network((0x0AF00000 | (number << 4 & 0xFFFFF), prefix), strict=False))


def test_those_who_make_networks_at_once_get_different_subnets_until_none_is_left(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = own_range(26)
    monkeypatch.setenv(networks.VARIABLE, whole)
    made: list[networks.Network] = []
    threads = [
        threading.Thread(target=lambda: made.append(networks.make_network(engine, body_of(engine), 2)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(network.subnet for network in made) == list(ipaddress.IPv4Network(whole).subnets(2))
    with pytest.raises(NoSubnetLeftError, match="in use"):
        networks.make_network(engine, body_of(engine), 2)
    engine.request("DELETE", f"/networks/{made[0].id}")
    assert networks.make_network(engine, body_of(engine), 2).subnet == made[0].subnet


def test_routes_of_this_machine_are_kept_away_from(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory
) -> None:
    whole = ipaddress.IPv4Network(own_range(27))
    used, free = whole.subnets(1)
    rows = [
        "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT",
        f"eth9 {int(used[0]).to_bytes(4, 'little').hex()} 0 1 0 0 0 F0FFFFFF 0 0 0",
        "tun0 00000000 0 1 0 0 0 00000080 0 0 0",  # half of all there is, by a VPN
    ]
    table = tmp_path / "route"  # type: ignore[operator]
    table.write_text("\n".join(rows) + "\n")
    monkeypatch.setattr(linux, "ROUTES", str(table))
    monkeypatch.setenv(networks.VARIABLE, str(whole))
    assert networks.make_network(engine, body_of(engine), 2).subnet == free


def test_a_shared_network_is_made_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(networks.VARIABLE, own_range(21))
    name, found = f"ty-{uuid.uuid4().hex[:12]}", []

    def look() -> None:
        found.append(networks.shared_network(engine, name).id)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len(found) == 8
        assert len(set(found)) == 1
    finally:
        for network_id in set(found):
            engine.request("DELETE", f"/networks/{network_id}")


def test_a_range_that_makes_no_sense(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(networks.VARIABLE, "10.0.0.0/99")
    with pytest.raises(ConfigError, match=r"SHUNTER_DOCKER_SUBNETS is '10\.0\.0\.0/99'"):
        networks.make_network(engine, body_of(engine), 2)

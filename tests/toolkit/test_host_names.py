"""What hosts are called where nothing else gives them names that resolve."""

from __future__ import annotations

import contextlib
import os
import socket
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

import pytest

from shunter_toolkit import host_exchange, host_names, kernel, log
from shunter_toolkit.host_names import HostNames, loopback_addresses
from shunter_toolkit.job_document import Job

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOSTS = ["algo-1", "algo-2", "algo-3"]


def job(count: int = 3) -> Job:
    return Job({"program": "train.py", "name": "one", "host_count": count, "current_host": "algo-1"})


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose hosts file knows only itself."""
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost # algo-1\n")
    monkeypatch.setattr(host_names, "HOSTS_FILE", str(path))
    for name in (host_names.NETWORK_VARIABLE, host_names.FIRST_HOST_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return path


def test_names_that_the_platform_knows_are_kept(machine: Path) -> None:
    machine.write_text("10.0.0.1 algo-1\n10.0.0.2\talgo-2 x\n10.0.0.3 y algo-3\n")
    assert HostNames(job()).find() == {}


def test_hosts_that_are_processes_of_one_machine_have_loopback_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert HostNames(job(1)).find() == loopback_addresses("one", ["algo-1"])
    monkeypatch.setenv(host_names.NETWORK_VARIABLE, host_names.LOOPBACK)
    found = HostNames(job()).find()
    assert list(found) == HOSTS
    assert len(set(found.values())) == 3
    assert all(ip_address(address) in ip_network("127.128.0.0/9") for address in found.values())


def test_one_host_of_another_system_has_its_only_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "IS_LINUX", False)
    assert HostNames(job(1)).find() == {"algo-1": "127.0.0.1"}


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (["10.0.0.1", "10.0.0.2", "fd00::3"], ["10.0.0.1", "10.0.0.2", "fd00::3"]),
        (["10.0.0.1"] * 3, list(loopback_addresses("one", HOSTS).values())),
        (["10.0.0.1", "10.0.0.1", "10.0.0.2"], []),
        (["10.0.0.1", "10.0.0.2"], []),
    ],
    ids=["each its own", "one machine", "two on one machine", "one did not come"],
)
def test_addresses_take_the_place_of_names_if_they_tell_hosts_apart(
    monkeypatch: pytest.MonkeyPatch,
    addresses: list[str],
    expected: list[str],
) -> None:

    class Exchange:
        def __init__(self, hosts: list[str], current: str, write: object) -> None:
            assert (hosts, current, write) == (HOSTS, "algo-1", None)

        def wait(self) -> dict[str, str]:
            return dict(zip(HOSTS, addresses, strict=False))

    monkeypatch.setattr(host_exchange, "Exchange", Exchange)
    monkeypatch.setattr(host_exchange, "are_known", lambda hosts, current: False)
    monkeypatch.setenv(host_names.FIRST_HOST_VARIABLE, "10.0.0.1")
    warnings: list[str] = []
    monkeypatch.setattr(log, "warning", warnings.append)
    found = HostNames(job()).find()
    assert found == (dict(zip(HOSTS, expected, strict=True)) if expected else {})
    said = " ".join(warnings)
    assert ("share a machine" in said) == (len(addresses) == 3 and not expected)
    assert ("algo-3 do not resolve yet" in said) == (len(addresses) == 2)


def test_all_hosts_know_the_addresses_when_the_first_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host's script may end at once, and with it the process that sends the addresses."""

    def end_when_all_are_known(table: Mapping[str, str]) -> None:
        if len(table) == len(HOSTS):
            os._exit(0)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv(host_exchange.PORT_VARIABLE, str(free.getsockname()[1]))
    monkeypatch.setenv(host_names.FIRST_HOST_VARIABLE, "127.0.0.1")
    monkeypatch.setenv("SHUNTER_HOST_WAIT_SECONDS", "10")
    others = [host_exchange.Exchange(HOSTS, host, None) for host in HOSTS[1:]]
    first = os.fork()
    if first == 0:
        with contextlib.suppress(BaseException):
            host_exchange._listen(HOSTS, end_when_all_are_known)
        os._exit(1)
    try:
        assert os.waitpid(first, 0)[1] == 0
        for other in others:
            assert list(other.wait()) == HOSTS
    finally:
        for other in others:
            other.close()


def test_a_script_is_told_addresses_but_results_keep_the_names() -> None:
    document = job()
    document.addresses = loopback_addresses("one", HOSTS)
    resource = document._resource_config()
    assert resource["hosts"] == list(document.addresses.values())
    assert resource["current_host"] == document.addresses["algo-1"]
    assert document.current_host == "algo-1"

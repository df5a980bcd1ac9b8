"""Jobs of several containers where no addresses are left for their networks: they wait, and say so."""

import ipaddress
import os

import pytest

from shunter.docker.networks import VARIABLE
from shunter.schedulers.exec.container import housekeeping
from shunter.specs import AppState

from .conftest import states, wait_until, watcher_pid

#: The first listens, the other one finds it by its name.
MEET = """
import socket, sys
if sys.argv[1] == "0":
    socket.create_server(("", 5000)).accept()
else:
    while True:
        try:
            socket.create_connection(("r-0", 5000))
            break
        except OSError:
            pass
print("met")
"""


@pytest.fixture
def one_network(monkeypatch):
    """Room for the network of one job alone, in a range of this test's own."""
    number = int.from_bytes(os.urandom(2), "big")
    monkeypatch.setenv(VARIABLE, str(ipaddress.ip_network((0x0AE00000 | number << 4, 28))))


def pair(jobs, script):
    return jobs.role(script, num_replicas=2)


def waiting(jobs, script="echo on", **cfg):
    """Submit a job that has to wait for another one's end; returns both."""
    first = jobs.submit(pair(jobs, "exec sleep 600"), grace_period="0")
    second = jobs.submit(pair(jobs, script), **cfg)
    response = jobs.scheduler.describe(second)
    assert response.state == AppState.PENDING, response
    assert "waiting for a network: all addresses" in response.msg
    assert states(response) == {"r/0": "PENDING", "r/1": "PENDING"}
    assert {row.app_id: row.state for row in jobs.scheduler.list()}[second] == AppState.PENDING
    return first, second


@pytest.mark.slow
def test_a_job_waits_for_addresses_and_runs(jobs, one_network):
    # a limit that the wait does not count towards
    first, second = waiting(jobs, f"exec python3 -c '{MEET}' ${{replica_id}}", timeout="60")
    jobs.scheduler.cancel(first)
    assert jobs.end_of(first).state == AppState.CANCELLED
    wait_until(lambda: not jobs.networks(first), "the removal of the first one's network")
    assert jobs.end_of(second).state == AppState.SUCCEEDED, jobs.scheduler.describe(second)
    assert [jobs.log(second, k=k) for k in (0, 1)] == [["met\n"]] * 2
    wait_until(lambda: not jobs.networks(second), "the removal of its network")


def test_a_job_that_waits_is_cancelled_and_removed(jobs, one_network):
    first, second = waiting(jobs)
    jobs.scheduler.cancel(second)
    response = jobs.end_of(second)
    assert response.state == AppState.CANCELLED
    assert set(states(response).values()) == {"CANCELLED"}
    wait_until(lambda: not watcher_pid(second), "the watcher's end")
    assert jobs.scheduler.describe(first).state == AppState.RUNNING
    jobs.scheduler.delete(second)
    assert jobs.networks(second) == []
    assert second not in {item.app_id for item in housekeeping.leftovers(jobs.engine, 0.0)}

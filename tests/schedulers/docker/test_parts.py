"""Doing things at once, and what a dry run shows."""

import signal
import threading

import pytest

from shunter.parallel import for_all
from shunter.schedulers.docker_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, Resource, Role

# ---- doing things at once


def test_results_are_in_order():
    assert for_all(lambda n: n * n, range(50)) == [n * n for n in range(50)]
    assert for_all(str, []) == []
    assert for_all(lambda n: threading.current_thread() is threading.main_thread(), [0], shielded=True) == [
        False
    ]


def test_first_error_is_raised_and_nothing_more_is_begun():
    begun = []

    def work(n):
        begun.append(n)
        if n == 0:
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        for_all(work, range(10_000))
    assert len(begun) < 10_000


def test_what_is_under_way_is_waited_for():
    started, ended = threading.Event(), []

    def work(n):
        started.set()
        if n == 0:
            threading.Event().wait(0.2)
        ended.append(n)

    def interrupt():
        started.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        for_all(work, [0, 1], shielded=True)
    assert 0 in ended
    interrupter.join()


# ---- requests


def dryrun(*roles, **cfg):
    return create_scheduler("test").submit_dryrun(AppDef("app", list(roles)), cfg)


def test_secrets_are_masked(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    role = Role("r", "i", entrypoint="e", args=["--password", "hunter22"], env={"API_KEY": "abcdefgh1234"})
    info = dryrun(role, copy_env=["HF_*"])
    assert info.request.containers[0].env["HF_TOKEN"] == "hf_abcdefghijkl"
    for secret in ("hf_abcdefghijkl", "hunter22", "abcdefgh1234"):
        assert secret not in repr(info)


def test_gpus_are_shared_out():
    gpu = Resource(-1, 2, -1)
    one = dryrun(Role("r", "i", entrypoint="e", resource=gpu)).request.containers[0]
    assert one.body["HostConfig"]["DeviceRequests"][0]["Count"] == 2
    two = dryrun(Role("r", "i", entrypoint="e", resource=gpu, num_replicas=2)).request.containers
    assert [c.body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] for c in two] == [["0", "1"], ["2", "3"]]


def test_named_devices():
    devices = {"vpc.amazonaws.com/efa": 2, "example.com/unknown": 1}
    request = dryrun(Role("r", "i", entrypoint="e", resource=Resource(-1, -1, -1, devices=devices))).request
    paths = [device["PathOnHost"] for device in request.containers[0].body["HostConfig"]["Devices"]]
    assert paths == ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"]
    assert request.warnings == ["role 'r': local_docker ignores the device 'example.com/unknown'"]


@pytest.mark.parametrize(
    ("policy", "count", "expected"),
    [("ROLE", 1, "on-failure"), ("REPLICA", 2, "on-failure"), ("ROLE", 2, "no")],
)
def test_who_restarts(policy, count, expected):
    from shunter.specs import RetryPolicy

    role = Role("r", "i", entrypoint="e", num_replicas=count, max_retries=3, retry_policy=RetryPolicy[policy])
    container = dryrun(role).request.containers[0]
    assert container.body["HostConfig"]["RestartPolicy"]["Name"] == expected

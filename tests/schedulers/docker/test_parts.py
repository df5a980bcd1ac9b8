"""Doing things at once, and what a dry run shows."""

import json
import shlex
import signal
import threading

import pytest

from shunter.parallel import for_all
from shunter.schedulers.docker_scheduler.scheduler import create_scheduler
from shunter.schedulers.supervisor.container_replica import ContainerReplica, inspect
from shunter.schedulers.supervisor.process_plan import ContainerPlan, ReplicaPlan
from shunter.schedulers.supervisor.resume_log import copy_rest
from shunter.specs import AppDef, BindMount, Resource, Role

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


def test_the_command_of_a_container(monkeypatch):
    """Values of variables are not in it, since all users may read a program's arguments."""
    role = Role(
        "r",
        "i:1",
        entrypoint="e",
        args=["-x", "a b"],
        env={"SECRET_TOKEN": "abcdefgh1234", "PATH": "/own"},
        mounts=[BindMount("/a,b", "/x", read_only=True)],
    )
    info = dryrun(role)
    words = info.request.containers[0].words()
    assert words[-5:] == ["--entrypoint", "e", "i:1", "-x", "a b"]
    assert [words[i + 1] for i, word in enumerate(words) if word == "--env"][:2] == [
        "SECRET_TOKEN",
        "PATH=/own",
    ]
    assert 'type=bind,"source=/a,b",target=/x,readonly' in words
    assert not [word for word in words if "abcdefgh1234" in word]
    shown = json.loads(repr(info))["containers"][0]["create"]
    assert shlex.split(shown)[:3] == ["docker", "create", "--name"]
    assert shown.endswith("--entrypoint e i:1 -x 'a b'")


def option(container, name):
    words = container.options
    return [words[i + 1] for i, word in enumerate(words) if word == name]


def test_gpus_are_shared_out():
    gpu = Resource(-1, 2, -1)
    one = dryrun(Role("r", "i", entrypoint="e", resource=gpu)).request.containers[0]
    assert (option(one, "--gpus"), one.gpus) == (["2"], "0,1")
    two = dryrun(Role("r", "i", entrypoint="e", resource=gpu, num_replicas=2)).request.containers
    assert [option(c, "--gpus") for c in two] == [['"device=0,1"'], ['"device=2,3"']]
    assert [c.gpus for c in two] == ["0,1", "2,3"]


def test_named_devices():
    devices = {"vpc.amazonaws.com/efa": 2, "example.com/unknown": 1}
    request = dryrun(Role("r", "i", entrypoint="e", resource=Resource(-1, -1, -1, devices=devices))).request
    paths = [f"/dev/infiniband/uverbs{k}" for k in (0, 1)]
    assert option(request.containers[0], "--device") == [f"{path}:{path}:rwm" for path in paths]
    assert request.warnings == ["role 'r': local_docker ignores the device 'example.com/unknown'"]


# ---- going on with a log


@pytest.mark.parametrize(
    ("there", "stream", "expected"),
    [
        (b"", b"a\nb\n", b"a\nb\n"),
        (b"a\nb\n", b"a\nb\nc\n", b"a\nb\nc\n"),
        (b"a\nerror: lost\n", b"a\nb\n", b"a\nerror: lost\nb\n"),
        (b"a\nerror: lost\n", b"a\nerr\n", b"a\nerror: lost\nerr\n"),
        (b"a\nb", b"a\nb and more\nc\n", b"a\nb and more\nc\n"),
        (b"a\nb error: lost", b"a\nb and more\n", b"a\nb error: lost\nb and more\n"),
    ],
)
def test_a_log_goes_on_where_it_stopped(tmp_path, there, stream, expected):
    path, source = tmp_path / "log", tmp_path / "source"
    path.write_bytes(there)
    source.write_bytes(stream)
    with source.open("rb", buffering=0) as file:
        copy_rest(file, str(path))
    assert path.read_bytes() == expected
    # once more, after another loss
    path.write_bytes(expected + b"lost again\n")
    source.write_bytes(stream + b"end\n")
    with source.open("rb", buffering=0) as file:
        copy_rest(file, str(path))
    assert path.read_bytes() == expected + b"lost again\nend\n"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Error response from daemon: No such container: gone", {}),
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", None),
        ("error: something that nobody has heard of", None),
    ],
)
def test_a_container_that_cannot_be_seen_has_not_ended(tmp_path, said, expected):
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho '{said}' >&2\necho '[]'\nexit 1\n")
    docker.chmod(0o755)
    plan = ReplicaPlan(str(docker), [str(docker)], {}, str(tmp_path), container=ContainerPlan("gone"))
    assert inspect([ContainerReplica("r", 0, plan, {})]) == expected

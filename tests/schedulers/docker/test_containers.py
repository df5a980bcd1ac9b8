"""What a job's containers are given, and what of it can be seen inside."""

import contextlib
import random
import re
import socket
import uuid

import pytest

from shunter.errors import BackendError, ConfigError
from shunter.specs import AppState, BindMount, DeviceMount, Resource, VolumeMount, macros
from shunter.specs.training import DOCUMENT

from .conftest import wait_until

#: A role with a document has its command already: no toolkit is started in its place.
WITHOUT_TOOLKIT = {DOCUMENT: "{}"}


@pytest.mark.slow
def test_names_within_the_network(jobs):
    script = (
        '[ "${replica_id}" = 0 ] || exec sleep 600; '
        "for n in worker-0 worker-1 algo-1 algo-2 $$TORCHX_RANK0_HOST; "
        "do until nslookup $$n >/dev/null 2>&1; do sleep 0.1; done; echo found $$n; done; exec sleep 600"
    )
    role = jobs.role(script, "worker", num_replicas=2, metadata={"train": {}}, env={**WITHOUT_TOOLKIT})
    app_id = jobs.submit(role)
    networks = jobs.container(app_id, "worker")["NetworkSettings"]["Networks"]
    assert list(networks) == [app_id]
    assert set(networks[app_id]["Aliases"]) >= {"worker-0", "algo-1"}
    first = jobs.container(app_id, "worker")["Name"].lstrip("/")
    names = ["worker-0", "worker-1", "algo-1", "algo-2", first]
    with contextlib.closing(jobs.scheduler.log_iter(app_id, "worker", 0, should_tail=True)) as lines:
        assert [next(lines) for _ in names] == [f"found {name}\n" for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(("network", "count"), [(None, 1), ("none", 1), (None, 2), ("host", 2)])
def test_hosts_of_a_training_job_have_names_that_stay(jobs, network, count):
    """Also where the daemon names nothing, and after the end of the host that is asked for."""
    script = "sed -n 's/^\\([^ \\t]*\\)[ \\t]*\\(algo-[0-9]\\)$$/\\2 \\1/p' /etc/hosts"
    role = jobs.role(script, num_replicas=count, metadata={"train": {}}, env={**WITHOUT_TOOLKIT})
    app_id, response = jobs.run(role, network=network)
    assert response.state == AppState.SUCCEEDED, response
    addresses = dict(line.split() for line in jobs.log(app_id, k=count - 1))
    assert list(addresses) == [f"algo-{number + 1}" for number in range(count)]
    assert len(set(addresses.values())) == count


def test_single_replica_needs_no_network(jobs):
    script = "hostname; echo $$TORCHX_RANK0_HOST; grep -q $$TORCHX_RANK0_HOST /etc/hosts && echo known"
    app_id, response = jobs.run(script)
    name = jobs.container(app_id)["Name"].lstrip("/")
    assert jobs.log(app_id) == [f"{name}\n", f"{name}\n", "known\n"]
    assert response.to_status().replicas()[0].hostname == name
    assert jobs.networks(app_id) == []


def test_memory_shared_memory_and_cpus(jobs):
    resource = Resource(cpu=1, gpu=0, memMB=64)
    files = "/sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max"
    script = f"df -k /dev/shm | tail -n 1; cat {files} 2>/dev/null"
    app_id, _ = jobs.run(jobs.role(script, resource=resource))
    lines = jobs.log(app_id)
    assert lines[0].split()[1] == str(64 << 10)
    assert lines[1] == f"{64 << 20}\n"
    assert jobs.container(app_id)["HostConfig"]["NanoCpus"] == 1_000_000_000


def test_out_of_memory(jobs):
    role = jobs.role(
        "", args=["-c", "exec python3 -c 'len(bytes(1 << 20) * 500)'"], resource=Resource(-1, 0, 32)
    )
    _, response = jobs.run(role)
    replica = response.to_status().replicas()[0]
    assert (response.state, replica.exit_code) == (AppState.FAILED, 137)
    assert "out of memory" in replica.reason
    assert "out of memory" in response.msg


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [("exit 3", 3, "exit code 3"), ("kill -9 $$$$", 137, "SIGKILL"), ("kill -11 $$$$", 139, "SIGSEGV")],
)
def test_exit_codes(jobs, script, code, reason):
    _, response = jobs.run(script)
    replica = response.to_status().replicas()[0]
    assert replica.exit_code == code
    assert reason in replica.reason
    assert replica.started_at <= replica.ended_at


def test_mounts(jobs, tmp_path):
    (tmp_path / "given").write_text("from outside\n")
    volume = f"shunter-test-{uuid.uuid4().hex[:12]}"
    mounts = [
        BindMount(str(tmp_path), "/rw"),
        BindMount(str(tmp_path), "/ro", read_only=True),
        VolumeMount(volume, "/kept"),
        DeviceMount("/dev/null", "/dev/nothing", "rw"),
    ]
    script = (
        "cat /ro/given; touch /ro/x || echo read-only; echo made > /rw/made; "
        "echo v > /kept/v; [ -c /dev/nothing ] && echo device"
    )
    try:
        app_id, response = jobs.run(jobs.role(script, mounts=mounts))
        assert response.state == AppState.SUCCEEDED
        assert jobs.log(app_id, streams="stdout") == ["from outside\n", "read-only\n", "device\n"]
        assert (tmp_path / "made").read_text() == "made\n"
        again, _ = jobs.run(jobs.role("cat /kept/v", mounts=[VolumeMount(volume, "/kept", read_only=True)]))
        assert jobs.log(again) == ["v\n"]
    finally:
        jobs.remove_all()
        jobs.docker.run("volume", "rm", volume)


@pytest.mark.slow
def test_missing_source_of_a_mount_is_refused(jobs, tmp_path):
    role = jobs.role("exit 0", num_replicas=2, mounts=[BindMount(str(tmp_path / "none"), "/x")])
    with pytest.raises(BackendError, match="bind source path does not exist") as caught:
        jobs.submit(role)
    assert "must exist" in caught.value.hint
    assert jobs.containers() == []


def test_environment(jobs, monkeypatch):
    monkeypatch.setenv("TY_COPIED", "copied")
    monkeypatch.setenv("TY_BOTH", "copied")
    monkeypatch.setenv("OTHER", "left behind")
    role = jobs.role("env | sort", env={"TY_ROLE": "role", "ID": macros.replica_id})
    env = {"TY_BOTH": "option", "TY_ROLE": "option"}
    app_id, _ = jobs.run(role, copy_env=["TY_*"], env=env)
    lines = jobs.log(app_id)
    assert {"TY_COPIED=copied\n", "TY_BOTH=option\n", "TY_ROLE=role\n", "ID=0\n"} <= set(lines)
    assert f"TORCHX_IMAGE={jobs.image}\n" in lines
    assert not [line for line in lines if line.startswith("OTHER")]


def test_ports_are_found_on_this_machine(jobs):
    role = jobs.role("echo up; while true; do echo answer | nc -l -p 8000; done", port_map={"http": 8000})
    app_id = jobs.submit(role)
    jobs.wait_for_line(app_id)
    response = jobs.scheduler.describe(app_id)
    place = response.metadata["port.r/0.http"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+", place)
    assert response.ui_url == f"http://{place}"
    assert f"http: {place}" in response.to_status().format()
    host, _, port = place.partition(":")

    def answers() -> bool:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                return connection.recv(100) == b"answer\n"
        except OSError:
            return False

    wait_until(answers, "an answer at the published port")


@pytest.mark.slow
def test_publishing_at_a_given_port(jobs):
    port = random.randrange(20000, 32000)  # below those that the kernel hands out to other tests
    role = jobs.role("sleep 600", port_map={"http": 8000})
    app_id = jobs.submit(role, publish={"http": str(port)})
    place = f"127.0.0.1:{port}"
    wait_until(lambda: jobs.scheduler.describe(app_id).metadata.get("port.r/0.http") == place, "its port")
    _, response = jobs.run(role, publish={"8000": f"127.0.0.1:{port}"})
    assert response.state == AppState.FAILED
    assert re.search(r"could not be started: .*(already allocated|address already in use)", response.msg)
    assert "Another program uses that port" in response.msg


def test_privileged_is_passed_on(jobs):
    """Machines that give not all capabilities away refuse it, which must be told."""
    app_id, response = jobs.run("exit 0", privileged=True)
    assert jobs.container(app_id)["HostConfig"]["Privileged"]
    assert response.state == AppState.SUCCEEDED or "without the option privileged" in response.msg


def test_gpus_that_are_not_there(jobs):
    _, response = jobs.run(jobs.role("exit 0", resource=Resource(-1, 1, -1)))
    if response.state == AppState.FAILED:
        assert "could not select device driver" in response.msg
        assert "NVIDIA Container Toolkit" in response.msg


def test_missing_image(jobs):
    with pytest.raises(BackendError, match="cannot be pulled") as caught:
        jobs.submit(jobs.role("exit 0", image="registry.invalid/none:1", num_replicas=2))
    assert "docker images" in caught.value.hint
    assert jobs.containers() == []
    with pytest.raises(BackendError, match="has no image sha256"):
        jobs.submit(jobs.role("exit 0", image="sha256:" + "0" * 64))


def test_missing_program(jobs):
    app_id, response = jobs.run(jobs.role("", entrypoint="no-such-program", args=[]))
    assert response.state == AppState.FAILED
    assert "exit code 127, as when a program is not in the image" in response.msg
    assert "no-such-program" in "".join(jobs.log(app_id))


@pytest.mark.slow
def test_network_of_ones_own(jobs):
    name = f"shunter-test-{uuid.uuid4().hex[:12]}"
    jobs.docker.run("network", "create", name)
    try:
        app_id, response = jobs.run(jobs.role("exit 0", num_replicas=2), network=name)
        assert response.state == AppState.SUCCEEDED
        assert list(jobs.container(app_id)["NetworkSettings"]["Networks"]) == [name]
        with pytest.raises(BackendError, match="none-such") as caught:
            jobs.submit("exit 0", network="none-such")
        assert "docker network ls" in caught.value.hint
    finally:
        jobs.remove_all()
        jobs.docker.run("network", "rm", name)


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "nan"}, "timeout"),
        ({"grace_period": -1}, "grace_period"),
        ({"publish": {"nope": "1"}}, "no port 'nope'"),
        ({"publish": {"80": "x"}}, "does not end in a port number"),
        ({"env": {"A=B": "1"}}, "not a valid variable name"),
        ({"publish": {"80": "8080"}, "network": "host"}, "nothing is published"),
    ],
)
def test_options_that_are_refused(jobs, cfg, words):
    with pytest.raises(ConfigError, match=words):
        jobs.dryrun(jobs.role("exit 0"), **cfg)


@pytest.mark.parametrize(
    "fields",
    [
        {"image": ""},
        {"port_map": {"http": 0}},
        {"mounts": [BindMount("/a", "/x"), BindMount("/b", "/x")]},
        {"mounts": [BindMount("/a", "relative")]},
        {"resource": Resource(-1, -1, 4)},
    ],
)
def test_roles_that_are_refused(jobs, fields):
    with pytest.raises(ConfigError, match="cannot run on Docker"):
        jobs.dryrun(jobs.role("exit 0", **fields))

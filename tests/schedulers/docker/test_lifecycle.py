"""How jobs in containers live and end: retries, limits, cancelling, and processes killed meanwhile."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from shunter.components import utils
from shunter.errors import BackendError, ConfigError
from shunter.schedulers.docker_scheduler import housekeeping, labels
from shunter.schedulers.docker_scheduler.job import ContainerJob
from shunter.schedulers.docker_scheduler.scheduler import create_scheduler
from shunter.specs import AppState, BindMount, RetryPolicy
from shunter.workspace.images.image_config import LABEL_FINGERPRINT
from tests.backends import need

from .conftest import Jobs, kill_supervisor, states, wait_until

# ---- cancelling


def test_cancel_gives_time_and_says_who(jobs):
    script = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    app_id = jobs.submit(*utils.sh("sh", "-c", script, image=jobs.image).roles)
    jobs.wait_for_line(app_id, "sh")
    jobs.scheduler.cancel(app_id)
    response = jobs.end_of(app_id)
    assert response.state == AppState.CANCELLED
    assert "cancelled by" in response.msg
    assert jobs.log(app_id, "sh") == ["up\n", "saved\n"]


@pytest.mark.slow
def test_what_does_not_listen_is_killed(jobs):
    app_id = jobs.submit(
        jobs.role("trap '' TERM; echo up; while :; do sleep 0.05; done", num_replicas=2), grace_period=1
    )
    jobs.wait_for_line(app_id, k=1)
    jobs.scheduler.cancel(app_id)
    response = jobs.end_of(app_id)
    assert states(response) == {"r/0": "CANCELLED", "r/1": "CANCELLED"}
    assert [r.exit_code for r in response.to_status().replicas()] == [137, 137]


@pytest.mark.slow
def test_what_had_ended_before_keeps_its_outcome(jobs):
    app_id = jobs.submit(jobs.role("exit 0", "quick"), jobs.role("echo up; sleep 600", "slow"))
    jobs.wait_for_line(app_id, "slow")
    wait_until(
        lambda: states(jobs.scheduler.describe(app_id))["quick/0"] == "SUCCEEDED", "the quick one's end"
    )
    jobs.scheduler.cancel(app_id)
    response = jobs.end_of(app_id)
    assert response.state == AppState.CANCELLED
    assert states(response) == {"quick/0": "SUCCEEDED", "slow/0": "CANCELLED"}


# ---- limits and groups


def attempts(jobs, app_id, expected):
    return {name: [len(jobs.log(app_id, name, k)) for k in range(len(n))] for name, n in expected.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RetryPolicy.REPLICA, {"bad": [2, 1], "peer": [1]}),
        (RetryPolicy.ROLE, {"bad": [2, 2], "peer": [1]}),
        (RetryPolicy.APPLICATION, {"bad": [2, 2], "peer": [2]}),
    ],
)
def test_what_is_restarted(jobs, policy, expected):
    # the first attempt of bad/0 fails once all have written; a file in the container outlives the restart
    bad = (
        'echo attempt; [ "${replica_id}" = 0 ] || exec sleep 4; '
        "[ -e /failed ] || { touch /failed; sleep 1; exit 1; }; sleep 1"
    )
    role = jobs.role(bad, "bad", num_replicas=2, max_retries=3, retry_policy=policy)
    app_id, response = jobs.run(role, jobs.role("echo attempt; exec sleep 4", "peer"), grace_period=1)
    assert response.state == AppState.SUCCEEDED, response
    assert attempts(jobs, app_id, expected) == expected
    assert response.num_restarts == 1


def test_a_killed_supervisor_takes_its_containers_with_it(jobs):
    """At the latest when somebody asks for the job."""
    app_id = jobs.submit(jobs.role("echo up; exec sleep 600", num_replicas=2))
    jobs.wait_for_line(app_id, k=1)
    kill_supervisor(app_id)
    response = jobs.end_of(app_id)
    assert response.state == AppState.FAILED
    assert "its supervisor was killed" in response.msg
    assert not [c for c in jobs.containers() if c["State"]["Status"] == "running"]
    assert jobs.networks(app_id) == []


@pytest.mark.slow
def test_without_a_daemon_a_job_whose_supervisor_was_killed_may_still_run(jobs, tmp_path, monkeypatch):
    app_id = jobs.submit("echo up; exec sleep 600")
    jobs.wait_for_line(app_id)
    document = ContainerJob.of(app_id).read_request()
    kill_supervisor(app_id)
    with monkeypatch.context() as away:
        daemon = {"DOCKER_HOST": f"unix://{tmp_path}/none"}
        away.setattr(ContainerJob, "read_request", lambda self: {**document, "daemon": daemon})
        response = jobs.scheduler.describe(app_id)
        assert response.state == AppState.UNREACHABLE
        assert "cannot reach a Docker daemon" in response.msg
        assert {row.app_id: row.state for row in jobs.scheduler.list()}[app_id] == AppState.UNREACHABLE
    assert jobs.end_of(app_id).state == AppState.FAILED
    assert not [c for c in jobs.containers() if c["State"]["Status"] == "running"]


@pytest.mark.slow
def test_a_killed_command_is_replaced(jobs, tmp_path):
    """Nothing of the log is lost or doubled, and the job does not notice."""
    script = "i=0; while [ ! -e /gate/go ]; do i=$$((i+1)); echo line $$i; sleep 0.01; done; echo $$i lines"
    app_id = jobs.submit(jobs.role(script, mounts=[BindMount(str(tmp_path), "/gate")]))

    def command():
        return ContainerJob.of(app_id).read_state()["roles"][0]["replicas"][0]["pid"]

    for count in (3, 30, 100):
        wait_until(lambda count=count: len(jobs.log(app_id)) > count, "some lines")
        killed = command()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda killed=killed: command() != killed, "another one")
    (tmp_path / "go").touch()
    response = jobs.end_of(app_id)
    assert response.state == AppState.SUCCEEDED, response
    *lines, last = jobs.log(app_id)
    assert lines == [f"line {number + 1}\n" for number in range(len(lines))]
    assert last == f"{len(lines)} lines\n"
    assert response.num_restarts == 0


@pytest.mark.slow
def test_what_a_killed_command_has_not_copied_is_read_after_the_end(jobs, tmp_path):
    script = "echo up; while [ ! -e /gate/go ]; do sleep 0.05; done; seq 5"
    app_id = jobs.submit(jobs.role(script, mounts=[BindMount(str(tmp_path), "/gate")]))
    jobs.wait_for_line(app_id)
    command = ContainerJob.of(app_id).read_state()["roles"][0]["replicas"][0]["pid"]
    os.kill(command, signal.SIGSTOP)
    (tmp_path / "go").touch()
    wait_until(lambda: jobs.container(app_id)["State"]["Status"] == "exited", "the container's end")
    os.kill(command, signal.SIGKILL)
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED
    assert jobs.log(app_id) == ["up\n", *(f"{number}\n" for number in range(1, 6))]


# ---- what is done to the containers behind our back


@pytest.mark.slow
def test_container_removed_by_hand(jobs, tmp_path):
    script = "echo up; while [ ! -e /gate/go ]; do sleep 0.05; done"
    app_id = jobs.submit(jobs.role(script, num_replicas=2, mounts=[BindMount(str(tmp_path), "/gate")]))
    jobs.wait_for_line(app_id, k=1)
    container = jobs.container(app_id, k=1)["Id"]
    jobs.docker.run("rm", "--force", container)
    wait_until(lambda: states(jobs.scheduler.describe(app_id))["r/1"] == "FAILED", "the end of the one")
    (tmp_path / "go").touch()
    response = jobs.end_of(app_id)
    assert states(response) == {"r/0": "SUCCEEDED", "r/1": "FAILED"}
    assert "its container was removed" in response.msg
    assert jobs.log(app_id, k=1) == ["up\n"]


# ---- submissions that are interrupted

CHILD = """
import os, sys, time
from shunter.docker import command
from shunter.schedulers.docker_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, Role

where, count, image, session = sys.argv[1:5]
seen = []
def pausing(real):
    def run(self, *words, **kwargs):
        if where in words:
            seen.append(words)
            if len(seen) == int(count):
                print("here", flush=True)
                sys.stdin.readline()
        return real(self, *words, **kwargs)
    return run
command.DockerCommand.run = pausing(command.DockerCommand.run)
role = Role("r", image, entrypoint="sh", args=["-c", "sleep 600"], num_replicas=3)
info = create_scheduler(session).submit_dryrun(AppDef("job", [role]), {})
print(info.app_id, flush=True)
print(create_scheduler(session).schedule(info), flush=True)
"""


def start_child(jobs, where, count):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, where, str(count), jobs.image, jobs.session],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    child.app_id = child.stdout.readline().decode().strip()
    assert child.stdout.readline() == b"here\n", child.stderr.read()
    return child


STAGES = [("network", 1), ("create", 2), ("create", 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "count"), STAGES)
def test_interrupted_by_the_user(jobs, where, count):
    child = start_child(jobs, where, count)
    child.send_signal(signal.SIGINT)
    child.stdin.write(b"\n")
    child.stdin.flush()
    _, errors = child.communicate(timeout=50)
    assert child.returncode != 0
    assert b"KeyboardInterrupt" in errors
    assert jobs.containers() == []
    assert jobs.networks(child.app_id) == []
    assert not jobs.scheduler.exists(child.app_id)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "count"), STAGES)
def test_submitter_killed(jobs, where, count):
    child = start_child(jobs, where, count)
    child.kill()
    child.communicate(timeout=50)
    response = jobs.end_of(child.app_id)
    assert response.state == AppState.FAILED
    assert "submission was interrupted" in response.msg
    assert {row.app_id: row.state for row in jobs.scheduler.list()}[child.app_id] == AppState.FAILED
    assert jobs.containers() == []
    jobs.scheduler.delete(child.app_id)
    assert jobs.networks(child.app_id) == []


@pytest.mark.slow
def test_submitter_killed_after_the_submission(jobs):
    program = CHILD.replace('"sleep 600"', '"sleep 1; echo done"') + "os.kill(os.getpid(), 9)\n"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", program, "/never", "1", jobs.image, jobs.session]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == -signal.SIGKILL
    app_id = done.stdout.split()[-1]
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED
    assert jobs.log(app_id, k=2) == ["done\n"]


def test_one_that_cannot_be_started_fails_the_job(jobs):
    """Here because its port is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        roles = [jobs.role("sleep 600", "a"), jobs.role("sleep 600", "b", port_map={"p": 9000})]
        _, response = jobs.run(*roles, publish={"p": str(port)}, fail_fast=True)
    assert states(response) == {"a/0": "CANCELLED", "b/0": "FAILED"}
    assert response.msg.startswith("b/0: could not be started: ")


@pytest.mark.slow
def test_submitting_twice_starts_nothing_more(jobs):
    info = jobs.dryrun(jobs.role("sleep 600", num_replicas=2))
    assert jobs.scheduler.schedule(info) == info.app_id
    with pytest.raises(BackendError, match="submitted already"):
        jobs.scheduler.schedule(info)
    assert len(jobs.containers()) == 2
    assert jobs.scheduler.describe(info.app_id).state == AppState.RUNNING


# ---- deleting and collecting


@pytest.mark.slow
def test_delete_leaves_nothing(jobs):
    app_id = jobs.submit(
        jobs.role("trap '' TERM; echo up; while :; do sleep 1; done", num_replicas=2), grace_period=3
    )
    for k in (0, 1):
        jobs.wait_for_line(app_id, k=k)
    jobs.scheduler.cancel(app_id)
    with pytest.raises(ConfigError, match="cannot be deleted"):
        jobs.scheduler.delete(app_id)
    jobs.end_of(app_id)
    assert len(jobs.containers()) == 2
    jobs.scheduler.delete(app_id)
    assert jobs.containers() == []
    assert jobs.networks(app_id) == []
    assert not jobs.scheduler.exists(app_id)
    assert jobs.docker.inspect("image", jobs.image)


@pytest.mark.slow
def test_gc_finds_ended_jobs_and_images_with_code(jobs):
    repo = "shunter-test-" + jobs.session
    container = jobs.docker.run("create", jobs.image, "true").strip()
    jobs.docker.run("commit", "--change", f"LABEL {LABEL_FINGERPRINT}={'f' * 64}", container, f"{repo}:1")
    jobs.docker.run("rm", container)
    ended, _ = jobs.run(jobs.role("exit 0", image=f"{repo}:1"))
    running = jobs.submit(jobs.role("sleep 600", image=f"{repo}:1"))

    def found():
        mine = [i for i in jobs.scheduler.leftovers({}, 0) if i.app_id in (ended, running) or repo in i.name]
        return {item.app_id or item.name for item in mine}, mine

    assert not [i for i in jobs.scheduler.leftovers({}, 3600) if i.app_id == ended]
    assert found()[0] == {ended}
    jobs.scheduler.cancel(running)
    jobs.end_of(running)
    names, mine = found()
    assert names == {ended, running, f"image {repo}:1"}
    jobs.scheduler.remove_leftovers({}, mine)
    assert found()[0] == set()
    assert jobs.containers() == []


# ---- the same job, seen through other eyes


@pytest.mark.slow
def test_docker_client_that_is_handed_in(image):
    docker = pytest.importorskip("docker")
    client = docker.from_env()
    jobs = Jobs(image, docker_client=client)
    try:
        app_id, response = jobs.run(jobs.role("seq 3", num_replicas=2), timeout=50)
        assert response.state == AppState.SUCCEEDED
        assert jobs.log(app_id, k=1) == ["1\n", "2\n", "3\n"]
        assert jobs.log(app_id, k=1, should_tail=True) == ["1\n", "2\n", "3\n"]
    finally:
        jobs.remove_all()
        assert client.ping()
        client.close()


def test_no_daemon_says_nothing_of_the_job(tmp_path, monkeypatch):
    need("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    scheduler = create_scheduler("test")
    assert scheduler.describe("x") is None
    from shunter.specs import AppDef, Role

    info = scheduler.submit_dryrun(AppDef("a", [Role("r", "i", entrypoint="e")]), {})
    assert json.loads(repr(info))["app_id"] == info.app_id
    with pytest.raises(BackendError, match="cannot reach a Docker daemon"):
        scheduler.schedule(info)


@pytest.mark.slow
def test_containers_of_an_unknown_job_are_collected_by_their_owner(jobs, monkeypatch):
    monkeypatch.setattr(housekeeping, "SUBMISSION_SECONDS", 0.0)
    app_id, _ = jobs.run(jobs.role("exit 0"))
    [container] = jobs.containers()

    def found():
        return [item for item in jobs.scheduler.leftovers({}, 0) if item.id == container["Id"]]

    assert found() == []
    shutil.rmtree(ContainerJob.of(app_id).path)
    [item] = found()
    assert not item.shared
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(labels, "owner", lambda: "another")
        assert [item.shared for item in found()] == [True]
    jobs.scheduler.remove_leftovers({}, [item])
    assert jobs.containers() == []

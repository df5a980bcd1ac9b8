"""What driver and actors do without a cluster: retries by class of failure, telling of the end, hangs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shunter.schedulers.ray_scheduler.options import RayOpts
from shunter.schedulers.ray_scheduler.request import make_request
from shunter.schedulers.ray_scheduler.shipped import replica_actor
from shunter.schedulers.ray_scheduler.shipped.ray_driver import Driver
from shunter.schedulers.ray_scheduler.shipped.replica_actor import ReplicaActor
from shunter.specs import AppDef, RetryPolicy, Role
from shunter.workspace.toolkit_files import toolkit_archive
from tests.receiver import receiving

LOST_PEER = [
    "Traceback (most recent call last):",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
]
OUT_OF_MEMORY = ["Traceback (most recent call last):", '  File "t.py", line 1', "MemoryError"]
EXCEPTION = ["Traceback (most recent call last):", '  File "t.py", line 1', "ValueError: bad"]


def driver_of(policy: RetryPolicy = RetryPolicy.APPLICATION, **options: Any) -> Driver:
    role = Role("train", "", entrypoint="python", num_replicas=2, max_retries=1, retry_policy=policy)
    request = make_request(AppDef("job", [role]), RayOpts(**options), "job-1", "http://head:8265", "gcs://p")
    return Driver(request.plan, "")


def fail(driver: Driver, lines: list[str], reason: str = "exit code 1", code: int | None = 1) -> Any:
    replica = driver.replicas[1]
    replica.state, replica.reason, replica.exit_code = "FAILED", reason, code
    replica.tail.extend(lines)
    driver.restarting.clear()
    driver.failed(replica)
    return replica


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (RetryPolicy.REPLICA, {"train/1"}),
        (RetryPolicy.ROLE, {"train/0", "train/1"}),
        (RetryPolicy.APPLICATION, {"train/0", "train/1"}),
    ],
)
def test_each_class_has_its_own_number(policy: RetryPolicy, names: set[str]) -> None:
    driver = driver_of(policy, retry={"oom": "2", "node": "1", "exception": "0"})
    for _ in range(2):
        fail(driver, OUT_OF_MEMORY)
        assert driver.restarting == names
    fail(driver, [], "lost on worker: ActorDiedError: The actor died unexpectedly", None)
    assert driver.restarting == names
    replica = fail(driver, OUT_OF_MEMORY)
    assert driver.restarting == set()
    assert [note.rpartition("restarted: ")[2] for note in replica.notes] == [
        "oom: retry 1 of 2",
        "oom: retry 2 of 2",
        "node: retry 1 of 1",
        "oom: 2 of 2 retries are used up",
    ]


@pytest.mark.parametrize("policy", [RetryPolicy.ROLE, RetryPolicy.APPLICATION])
def test_an_elastic_role_restarts_one_replica_and_only_as_often_as_it_may(policy: RetryPolicy) -> None:
    driver = driver_of(policy)
    driver.plan["roles"][0]["min"] = 1
    fail(driver, ["odd"], "exit code 9", 9)
    assert driver.restarting == {"train/1"}
    fail(driver, ["odd"], "exit code 9", 9)
    assert driver.restarting == set()


def test_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toolkit.pyz").write_bytes(toolkit_archive())
    with receiving() as receiver:
        driver = driver_of(notify=[receiver.url], notify_secret="hush-hush-1")
        driver.plan["notify"]["handle"] = "ray://s/job-1"
        first, second = driver.replicas
        for replica, lines, when in ((first, LOST_PEER, 1.0), (second, OUT_OF_MEMORY, 2.0)):
            replica.state, replica.reason, replica.exit_code = "FAILED", "exit code 1", 1
            replica.tail.extend(lines)
            replica.started_at, replica.ended_at = 0.5, when
        driver.final, driver.msg, driver.fatal = "FAILED", "train/1: exit code 1", [first, second]
        driver.notify()
        [message] = receiver.wait_for(1)
        [(headers, _)] = receiver.received
    assert (message["handle"], message["state"]) == ("ray://s/job-1", "FAILED")
    assert message["reason"] == "train/1: exit code 1"
    cause = message["cause"]
    assert (cause["name"], cause["replica"], cause["exit_code"]) == ("out_of_memory", "train/1", 1)
    assert cause["evidence"] == "MemoryError"
    assert (message["started_at"], message["ended_at"]) == (0.5, 2.0)
    assert headers["webhook-signature"].startswith("v1,")


def test_the_secret_is_not_shown() -> None:
    role = Role("train", "", entrypoint="python")
    opts = RayOpts(notify=["https://u:pass-1@h/x"], notify_secret="hush-hush-1", retry={"oom": "1"})
    shown = str(make_request(AppDef("job", [role]), opts, "job-1", "http://head:8265", "gcs://p"))
    assert "hush-hush-1" not in shown
    assert "pass-1" not in shown
    assert '"retry"' in shown


@pytest.mark.slow
def test_a_replica_that_hangs_shows_its_stacks_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch)
    ended = tmp_path / "ended"
    loop = f"while not os.path.exists({str(ended)!r}): time.sleep(0.1)"
    script = f"import os, time\ndef waits():\n    {loop}\nwaits()"
    role = Role("train", "", entrypoint="python3", args=["-c", script])
    opts = RayOpts(hang_timeout=4, job_dir=str(tmp_path / "jobs"))
    plan = make_request(AppDef("job", [role]), opts, "job-1", "http://head:8265", "gcs://p").plan
    actor = ReplicaActor(plan, plan["roles"][0], 0)
    answers = [actor.start(0, {})]
    while answers[-1]["end"] is None:
        answers.append(actor.read())
        if any("end of the stacks" in answer["text"] for answer in answers):
            ended.touch()
    log, end = "".join(answer["text"] for answer in answers), answers[-1]["end"]
    hangs = "no output for 4 s and no GPU activity"
    assert f"err| shunter: {hangs}; the stacks of its process:" in log
    assert "in waits" in log or "waits (" in log  # the latter by py-spy
    assert f"it hangs: {hangs}; its log has the stacks" in [answer["note"] for answer in answers]
    assert (end["code"], end["hung"]) == (0, "")


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a directory that has what an actor finds in its own."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "toolkit.pyz").write_bytes(toolkit_archive())
    shutil.copy(Path(replica_actor.__file__).with_name("replica_process.py"), folder)
    monkeypatch.chdir(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize(
    "plant", ["mkdir -p -m 777 {root}/job-1/train-0/code", "ln -s {place}/nobodys {root}"]
)
def test_a_directory_that_another_user_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str
) -> None:
    """Everybody knows the name below /tmp: what lies there must not run as us."""
    package(tmp_path, monkeypatch)
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # `tmp_path` is below a directory of root's
        os.chmod(place, 0o1777)
        monkeypatch.setattr(tempfile, "tempdir", place)
        folder = "job-1/train-0/code"
        script = (
            f"mkdir -p {place}/nobodys/{folder} && {plant.format(root=f'{place}/shunter-0', place=place)}"
        )
        script += f" && echo 'echo planted' > {place}/shunter-0/{folder}/train.sh"
        subprocess.run(["runuser", "-u", "nobody", "--", "sh", "-c", script], check=True)
        role = Role("train", "", entrypoint="sh", args=["train.sh"])
        plan = make_request(AppDef("job", [role]), RayOpts(), "job-1", "http://head:8265", "gcs://p").plan
        actor = ReplicaActor(plan, plan["roles"][0], 0)
        error = actor.start(0, {})["end"]["error"]
        assert f"{place}/shunter-0: it is not a directory of this user alone" in error
        assert "-cfg job_dir=DIR" in error
        assert actor.process is None


def test_directories_of_replicas_are_private(tmp_path: Path) -> None:
    path = tmp_path / "own"
    replica_actor.make_own_directory(str(path))
    replica_actor.make_own_directory(str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o770)
    with pytest.raises(PermissionError, match="-cfg job_dir=DIR"):
        replica_actor.make_own_directory(str(path))

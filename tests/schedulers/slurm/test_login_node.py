"""`host=`: a real Slurm is used from a machine that has none, through the sshd of its login node."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from shunter.schedulers.api import LogQuery
from shunter.schedulers.hpc.ssh import SshCommands
from shunter.schedulers.slurm_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, AppState, RetryPolicy
from shunter.testing import SchedulerConformance
from tests import backends
from tests.receiver import receiving
from tests.schedulers.hpc.conftest import LoginNode, forget_connections, run_on_terminal, use_config
from tests.schedulers.known_context import KnownContext
from tests.slurm_cluster import private_cluster

from .conftest import Jobs, only, role
from .test_follow_up import HUNGRY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.xdist_group("slurm login node")]


@pytest.fixture(scope="module")
def cluster():
    backends.need("slurm")
    backends.need("sshd")
    with private_cluster() as cluster:
        cluster.addresses["login"] = 20
        cluster.add_host("login")
        yield cluster


@pytest.fixture(scope="module")
def login_node(cluster, tmp_path_factory):
    """The cluster's login node; nodes see the home directory there."""
    directory = tmp_path_factory.mktemp("login") / "home"
    address = f"{cluster.net}.20"
    node = LoginNode(directory, host=cluster.hosts["login"], address=address, environment=cluster.environment)
    yield node
    node.stop()


@pytest.fixture
def laptop(login_node, tmp_path, monkeypatch):
    """This machine knows the login node as ``login1``, and no Slurm."""
    use_config(tmp_path, monkeypatch, {"login1": login_node.config})
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    yield login_node
    forget_connections()


@only(
    "success",
    "failure_with_its_exit_code",
    "arguments_arrive_as_given",
    "environment_arrives_as_given",
    "roles_and_replicas",
    "job_is_listed_and_described",
    "unknown_job",
    "cancel_is_idempotent",
    "delete",
    "streams",
    "lines_are_followed_while_the_job_runs",
    "following_a_silent_job_ends_with_it",
    "odd_bytes",
    "since_and_until",
)
class TestSlurmOverSsh(SchedulerConformance):
    retry_policies = tuple(RetryPolicy)
    combined_is_exact = False
    time_resolution = 1.5

    @pytest.fixture
    def scheduler(self, laptop):
        self.cfg = {"host": "login1"}
        with closing(create_scheduler("test")) as scheduler:
            scheduler.context = KnownContext(self.cfg)
            yield scheduler


TRAINING = """
import os, pathlib, time
print("data", pathlib.Path(os.environ["SM_CHANNEL_TRAINING"], "x").read_text(), flush=True)
pathlib.Path(os.environ["SM_MODEL_DIR"], "model").write_text("learned")
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.1)
print("trained", flush=True)
"""


class Laptop:
    """Runs commands as on a laptop whose configuration names the host."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        (directory / "shunter.toml").write_text('[scheduler.slurm]\nhost = "login1"\n')
        self("trust", "--yes")

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "shunter", *words]
        return subprocess.Popen(
            command, cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __call__(self, *words: str, code: int = 0) -> str:
        process = self.start(*words)
        out, errors = process.communicate(timeout=100)
        assert process.returncode == code, (words, out, errors)
        return out

    def run(self, *words: str) -> str:
        return next(
            word for word in self("run", "-s", "slurm", *words).split() if word.startswith("slurm://")
        )


def test_the_login_node_is_asked_whether_nodes_could_run_a_job(laptop, tmp_path):
    here = Laptop(tmp_path / "project")
    plan = ["plan", "--live", "-s", "slurm", "utils.sh", "--cpu"]
    assert "ok   the job: nodes of its partition could run it" in here(*plan, "1", "--", "true")
    said = here(*plan, "999", "--", "true", code=4)
    assert "FAIL the job: the job can never start on Slurm on login1: no node of the partition" in said
    with closing(create_scheduler("test")) as scheduler:
        info = scheduler.submit_dryrun(AppDef("job", [role("true")]), {})
        (check,) = scheduler.examine_job(info)  # here, where there is no Slurm
    assert (check.ok, check.text.partition(":")[0]) == (None, "it was not checked")


def test_a_training_job_from_its_code_to_its_model(laptop, tmp_path):
    here = Laptop(tmp_path / "project")
    (here.directory / "train.py").write_text(TRAINING)
    data, go = laptop.directory / "data", laptop.directory / "go"
    data.mkdir(exist_ok=True)
    (data / "x").write_text("far")
    words = ["--script", "train.py", "--channel", f"training={data}", "--env", f"GO={go}", "--cpu", "1"]
    ship = ["--workspace", "."]
    job = here.run(*ship, "train.script", *words)
    follower = here.start("log", "-f", job)
    after = here.run("--workspace", "", "--after", job, "utils.echo", "--msg", "next")
    assert "data far" in follower.stdout.readline()
    laptop.cut()  # followers connect again
    assert "PENDING" in here("status", after)
    assert here("exec", job, "train/0", "--", "sh", "-c", "hostname; exit 3", code=3) in (
        "n1\n",
        "n2\n",
        "n3\n",
        "n4\n",
    )
    assert job.rpartition("/")[2] in here("list", "-s", "slurm")
    go.touch()
    assert "trained" in follower.communicate(timeout=100)[0]
    assert follower.returncode == 0
    here("wait", job)
    here("wait", after)
    assert "next" in here("log", after)
    place = next(word for word in here("status", job).split() if word.startswith(f"{laptop.directory}/"))
    assert (Path(place) / "model" / "model").read_text() == "learned"
    go.unlink()
    endless = here.run("--workspace", "", "utils.sh", "sleep", "300")
    here("cancel", endless)
    here("wait", endless, code=1)
    assert "CANCELLED" in here("status", endless)


def test_nothing_is_lost_or_doubled_when_the_connection_is_cut(laptop, tmp_path):
    jobs, go = Jobs(host="login1"), laptop.directory / "cut"
    app_id = jobs.submit(
        role(f"seq 1 1000; while [ ! -e {go} ]; do sleep 0.1; done; seq 1001 2000; printf end")
    )
    jobs.scheduler.context = KnownContext({"host": "login1"})
    before, lines = laptop.logins(), []
    for block in jobs.scheduler.log_blocks(app_id, [("r", 0)], LogQuery(should_tail=True)):
        lines += block.data.splitlines()
        if lines[-1] == b"1000" and not go.exists():
            laptop.cut()
            go.touch()
    assert lines == [b"%d" % number for number in range(1, 2001)] + [b"end"]
    assert laptop.logins() > before
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED


def test_what_follows_on_the_end_needs_no_connection(laptop, cluster):
    """The login node is out of reach while a job fails, is submitted again, and succeeds."""
    jobs, go = Jobs(host="login1"), laptop.directory / "hungry"
    jobs.scheduler.context = KnownContext({"host": "login1"})
    with receiving(f"{cluster.net}.1") as receiver:
        common = {"notify": [receiver.url], "notify_secret": "s3"}
        waits = f"echo up; while [ ! -e {go} ]; do sleep 0.1; done; {HUNGRY}"
        hungry = jobs.submit(role(waits), retry={"oom": "3:1G"}, **common)
        hung = jobs.submit(role("sleep 300"), hang_timeout=1.0, on_hang="stop", **common)
        jobs.wait_for_line(hungry, "up")
        laptop.cut()
        forget_connections()
        go.touch()
        messages = {message["job"]: message for message in receiver.wait_for(2)}
    assert (messages[hungry]["state"], messages[hungry]["restarts"]) == ("SUCCEEDED", 1)
    assert messages[hung]["cause"]["name"] == "hung"
    found = jobs.end_of(hungry)
    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    assert jobs.end_of(hung).state == AppState.FAILED


ASKING = """
import sys
from shunter.schedulers.api import Context
from shunter.schedulers.slurm_scheduler.scheduler import create_scheduler
class Configured(Context):
    def configured_options(self):
        return {"host": "login1"}
scheduler = create_scheduler("test")
scheduler.context = Configured()
print("jobs", len(scheduler.list()))
"""


def test_a_one_time_password_is_asked_for_once(cluster, tmp_path, monkeypatch):
    directory = tmp_path / "secure"
    password = tmp_path / "password"
    password.write_text("493817")
    check, service = tmp_path / "check", tmp_path / "pam"
    # what PAM hands over ends with a NUL; one who knows the password has used it up
    check.write_text(f'#!/bin/sh\n[ "$(tr -d "\\0")" = "$(cat {password})" ] && rm {password}\n')
    check.chmod(0o755)
    service.write_text(
        f"auth requisite pam_exec.so expose_authtok quiet {check}\nauth required pam_permit.so\n"
        "account required pam_permit.so\nsession required pam_permit.so\n"
    )
    login, log = cluster.hosts["login"], tmp_path / "mount.log"
    mount = login.start("mount", "--bind", str(service), "/etc/pam.d/sshd", environment={}, log=log)
    assert mount.wait(50) == 0, log.read_text()
    settings = (
        "PermitRootLogin yes\nUsePAM yes\nKbdInteractiveAuthentication yes\n"
        "AuthenticationMethods publickey,keyboard-interactive\n"
    )
    node = LoginNode(
        directory,
        host=login,
        address=f"{cluster.net}.20",
        settings=settings,
        environment=cluster.environment,
    )
    try:
        use_config(tmp_path, monkeypatch, {"login1": node.config})
        shown = run_on_terminal(ASKING, b"assword", b"493817")
        assert b"jobs 0" in shown
        # the next process has no terminal, and uses the same connection
        again = subprocess.run([sys.executable, "-c", ASKING], capture_output=True, text=True, check=True)
        assert again.stdout == "jobs 0\n"
        SshCommands("login1").disconnect()
        alone = subprocess.run([sys.executable, "-c", ASKING], capture_output=True, text=True, check=False)
        assert "cannot reach login1" in alone.stderr
        assert "Permission denied" in alone.stderr
    finally:
        SshCommands("login1").disconnect()
        forget_connections()
        node.stop()


def test_a_folder_that_the_nodes_do_not_see_is_named_as_the_reason(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    hidden, log = tmp_path / "hidden", tmp_path / "mount.log"
    hidden.mkdir()
    for name in cluster.nodes:
        mount = cluster.hosts[name].start(
            "mount", "-t", "tmpfs", "none", str(hidden), environment={}, log=log
        )
        assert mount.wait(50) == 0, log.read_text()
    jobs = Jobs(shared_dir=str(hidden), requeue=False)
    jobs.scheduler.context = KnownContext({"shared_dir": str(hidden)})
    _, found = jobs.run(role("true"))
    assert found.state == AppState.FAILED
    assert "does its node see the shared folder?" in found.msg

"""AWS Batch on moto's HTTP server, whose jobs are real containers: conformance and the command line.

What moto does not have: live logs (they appear when a container has ended), retries, node numbers, exit
codes and nodes in descriptions, overrides of nodes, pages. For those see the tests on our fake.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.runner import get_runner
from shunter.schedulers.api import Stream
from shunter.schedulers.aws import cloudwatch
from shunter.schedulers.aws_batch_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, AppState, Resource, Role
from shunter.testing import SchedulerConformance
from shunter.workspace.toolkit_files import toolkit_archive
from tests import result_jobs
from tests.aws.moto_server import Moto, running_batch
from tests.receiver import receiving
from tests.toolkit.image import bridge_gateway, docker

pytestmark = [pytest.mark.xdist_group("moto"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def server() -> Iterator[Moto]:
    with running_batch() as moto:
        yield moto


@pytest.fixture
def moto(server: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    return server


@pytest.mark.slow
class TestConformance(SchedulerConformance):
    streams = (Stream.COMBINED,)
    has_exit_codes = False
    can_follow = False
    keeps_bytes = False
    time_resolution = 1.5
    patience = 60

    @pytest.fixture
    def scheduler(self, moto: Moto) -> Any:
        self.moto = moto
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler

    @property
    def image(self) -> str:  # type: ignore[override]
        return self.moto.image

    @property
    def cfg(self) -> dict[str, Any]:  # type: ignore[override]
        return {"queue": self.moto.queue}

    @pytest.fixture(autouse=True)
    def logs_are_complete_at_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cloudwatch, "SETTLE", 0.2)

    def _is_not_in_moto(self) -> None:
        pytest.skip("moto has no retries, numbers of nodes, logs of single nodes, or order of two streams")

    # on our fake they are done
    test_retries_are_as_many_as_asked_for = _is_not_in_moto
    test_one_failure_among_replicas_fails_the_job = _is_not_in_moto
    test_roles_and_replicas = _is_not_in_moto
    test_blocks_of_all_replicas_hold_all_lines = _is_not_in_moto
    test_streams = _is_not_in_moto
    test_lines_keep_their_white_space = _is_not_in_moto


class CommandLine:
    """The CLI in a process of its own, and its home."""

    def __init__(self, home: str) -> None:
        self.env = {**os.environ, "SHUNTER_HOME": home}

    def __call__(self, *words: str, code: int = 0, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "shunter", *words],
            capture_output=True,
            text=True,
            timeout=150,
            env={**self.env, **env},
            check=False,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def cli(moto: Moto, home: Any) -> CommandLine:
    return CommandLine(str(home))


def submit(
    cli: CommandLine, moto: Moto, script: str, *words: str, cfg: str = "", options: tuple[str, ...] = ()
) -> str:
    given = f"queue={moto.queue}" + (f",{cfg}" if cfg else "")
    base = (
        "run",
        "-s",
        "aws_batch",
        *options,
        "-cfg",
        given,
        "utils.sh",
        "--image",
        moto.image,
        *words,
        "sh",
        "-c",
        script,
    )
    return cli(*base).split()[-1]


SCRIPT = "echo $TORCHX_ROLE_NAME $TORCHX_REPLICA_IDX $TORCHX_JOB_ID"


@pytest.mark.slow
def test_a_job_from_its_start_to_its_deletion(cli: CommandLine, moto: Moto) -> None:
    handle = submit(cli, moto, SCRIPT)
    assert handle.startswith(f"aws_batch://shunter/{moto.queue}:sh-")
    assert "SUCCEEDED" in cli("wait", handle)
    status = json.loads(cli("status", handle, "--json"))
    assert status["state"] == "SUCCEEDED"
    assert [role["role"] for role in status["roles"]] == ["sh"]
    assert f"sh 0 {handle}" in cli("log", handle)
    assert handle in cli("list", "-s", "aws_batch")
    assert handle in cli("list", "-s", "aws_batch", "-cfg", f"queue={moto.queue}", "--state", "succeeded")
    assert handle not in cli("list", "-s", "aws_batch", "--state", "failed")
    # without its history, from another place
    assert "SUCCEEDED" in cli("status", handle, SHUNTER_HOME=cli.env["SHUNTER_HOME"] + "-other")
    listed = cli("list", "-s", "aws_batch", SHUNTER_HOME=cli.env["SHUNTER_HOME"] + "-other")
    assert handle in listed
    cli("delete", handle)
    assert handle not in cli("list", "-s", "aws_batch")


@pytest.mark.slow
def test_failure_and_cancelling(cli: CommandLine, moto: Moto) -> None:
    retry = ("--retry", "node=2,exception=0")
    failing = submit(cli, moto, "exit 3", options=retry)
    cli("wait", failing, code=1)
    assert json.loads(cli("status", failing, "--json"))["state"] == "FAILED"
    strategies = [
        each["retryStrategy"]
        for each in moto.client("batch").describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    ]
    rules = [{"onStatusReason": "Host EC2*", "action": "retry"}, {"onReason": "*", "action": "exit"}]
    assert {"attempts": 3, "evaluateOnExit": [{"onExitCode": "0", "action": "exit"}, *rules]} in strategies
    running = submit(cli, moto, "sleep 600")
    cli("cancel", running)
    cli("cancel", running)
    assert "CANCELLED" in cli("wait", running, code=1)
    assert json.loads(cli("status", running, "--json"))["state"] == "CANCELLED"


@pytest.mark.slow
def test_array_job(cli: CommandLine, moto: Moto) -> None:
    handle = submit(cli, moto, SCRIPT, "--num_replicas", "3", cfg="array=true")
    cli("wait", handle)
    status = json.loads(cli("status", handle, "--json"))
    replicas = status["roles"][0]["replicas"]
    assert [(each["id"], each["state"]) for each in replicas] == [(k, "SUCCEEDED") for k in range(3)]
    assert "#jobs/array-job/" in status["url"]
    log = cli("log", handle)
    for k in range(3):
        assert f"sh {k} {handle}" in log


@pytest.mark.slow
def test_multi_node_job(cli: CommandLine, moto: Moto) -> None:
    script = "test $TORCHX_RANK0_HOST = localhost && sleep 20; echo rank0 is at $TORCHX_RANK0_HOST"
    handle = submit(cli, moto, script, "--num_replicas", "2")
    cli("wait", handle)
    status = json.loads(cli("status", handle, "--json"))
    assert [each["id"] for each in status["roles"][0]["replicas"]] == [0, 1]
    assert "#jobs/mnp-job/" in status["url"]
    log = cli("log", f"{handle}", "sh/0")
    assert "rank0 is at localhost" in log
    assert "rank0 is at 1" in log  # moto writes the logs of all nodes to one stream


@pytest.mark.slow
def test_definitions_are_used_again_and_collected(cli: CommandLine, moto: Moto) -> None:
    marker = f"echo {moto.queue} again"
    handles = [submit(cli, moto, marker) for _ in range(2)]
    definitions = moto.client("batch").describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    ours = [d for d in definitions if marker in str(d.get("containerProperties", {}).get("command"))]
    assert [d["revision"] for d in ours] == [1]
    running = submit(cli, moto, "sleep 601")
    cli("gc", "-s", "aws_batch", "--older-than", "0s")  # removes nothing without --yes
    assert len(moto.client("batch").describe_job_definitions(status="ACTIVE")["jobDefinitions"]) > 1
    for handle in handles:
        cli("wait", handle)
    cli("cancel", running)
    cli("wait", running, code=1)
    found = json.loads(cli("gc", "-s", "aws_batch", "--older-than", "0s", "--yes", "--json"))["found"]
    assert ours[0]["jobDefinitionArn"] in {item["id"] for item in found}
    again = submit(cli, moto, marker)
    cli("wait", again)


@pytest.mark.slow
def test_doctor(cli: CommandLine, moto: Moto) -> None:
    options = f"queue={moto.queue},job_role_arn={moto.role},log_group=/nowhere"
    checks = json.loads(cli("doctor", "-s", "aws_batch", "-cfg", options, "--json", code=4))
    found = {check["name"]: check["ok"] for check in checks}
    assert found == {
        "credentials": True,
        "queue": True,
        "job_role_arn": True,
        "log group": False,
        "policy": None,
        "torchx": None,
    }
    policy = next(check["text"] for check in checks if check["name"] == "policy")
    statements = json.loads(policy.partition("\n")[2])["Statement"]
    assert {"Look", "Submit", "ReadLogs", "PassRoles"} == {each["Sid"] for each in statements}
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/none"
    text = cli("doctor", "-s", "aws_batch", "-cfg", f"queue=none,image_repo={image}", code=4)
    assert "there is no job queue none in us-east-1" in text
    assert f"there is no repository {image}" in text


@pytest.fixture
def training_image(moto: Moto) -> Iterator[str]:
    """The image with the toolkit and a script that hangs."""
    name, tag = f"shunter-hang-{uuid.uuid4().hex[:8]}", f"shunter-moto-hang:{uuid.uuid4().hex[:12]}"
    docker("create", "--name", name, moto.image, "true")
    try:
        files = {"toolkit.pyz": toolkit_archive(), "t.py": b"import time\ntime.sleep(100)\n"}
        with tempfile.TemporaryDirectory() as folder:
            for file, content in files.items():
                (Path(folder) / file).write_bytes(content)
                docker("cp", str(Path(folder) / file), f"{name}:/tmp/{file}")
        docker("commit", name, tag)
        yield tag
    finally:
        docker("rm", "-f", name)
        docker("rmi", "-f", tag, check=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:notify:RuntimeWarning")
def test_the_container_tells_of_its_end(moto: Moto, training_image: str) -> None:
    """The toolkit in a real container stops the script that hangs, and notifies a receiver outside."""
    document = {"version": 1, "name": "job", "program": "t.py", "code": "/tmp", "host_count": 1}
    train = Role(
        "train",
        training_image,
        entrypoint="python3",
        args=["/tmp/toolkit.pyz", "train"],
        env={"SHUNTER_JOB": json.dumps(document)},
        resource=Resource(cpu=1, gpu=0, memMB=256),
    )
    with receiving(bridge_gateway()) as receiver, closing(create_scheduler("test")) as scheduler:
        cfg = {"queue": moto.queue, "notify": [receiver.url], "hang_timeout": 1.0, "on_hang": "stop"}
        app_id = scheduler.submit(AppDef("job", [train]), cfg)
        [message] = receiver.wait_for(1)
        response = scheduler.wait(app_id, 60)
    assert (message["handle"], message["state"]) == (f"aws_batch://test/{app_id}", "FAILED")
    assert (message["cause"]["name"], message["cause"]["replica"]) == ("hung", "train/0")
    assert message["reason"] == "t.py was stopped because it hung: no output for 1 s"
    assert response is not None
    assert response.state is AppState.FAILED


@pytest.mark.slow
def test_results_go_to_the_place_for_code_and_are_fetched(
    cli: CommandLine, moto: Moto, project: Path
) -> None:
    """Code by a presigned URL, results by a form: the container has neither role nor tools of AWS."""
    (project / "train.py").write_text(result_jobs.SCRIPT)
    options = f"queue={moto.queue},code_location=s3://{moto.bucket}/team"
    words = ["--script", "train.py", "--image", moto.image, "--memMB", "256"]
    handle = cli("run", "-s", "aws_batch", "-cfg", options, "train.script", *words).split()[-1]
    cli("wait", handle)
    with get_runner() as runner:
        result_jobs.check_results(runner, handle)
    target = project / "fetched"
    cli("fetch", handle, "model/*", "--to", str(target))
    assert (target / "model/sub/weights").read_bytes() == result_jobs.WEIGHTS
    assert not (target / "output").exists()
    # a part that came before is gone on with
    weights = target / "model/sub/weights"
    weights.unlink()
    assert "fetched" in cli("fetch", handle, "--to", str(target))
    assert weights.read_bytes() == result_jobs.WEIGHTS
    again = cli("rerun", handle).split()[-1]
    cli("wait", again)
    assert "model/sub/weights" in cli("fetch", again, "--list")
    for words in (["describe", handle], ["describe", handle, "--json"], ["log", handle]):
        shown = cli(*words)
        assert "ignature" not in shown
        assert "AKIAEXAMPLE" not in shown
    for path in Path(cli.env["SHUNTER_HOME"]).rglob("*"):
        assert not path.is_file() or b"ignature=" not in path.read_bytes(), path
    key = f"team/results/{handle.rpartition(':')[2]}/train/0/results.tar.gz"
    moto.client("s3").put_object(Bucket=moto.bucket, Key=key, Body=b"not an archive")
    done = subprocess.run(
        [sys.executable, "-m", "shunter", "fetch", handle, "--to", str(project / "again")],
        capture_output=True,
        text=True,
        env=cli.env,
        check=False,
    )
    assert done.returncode == 4
    assert f"cannot read s3://{moto.bucket}/{key}" in done.stderr


@pytest.mark.slow
def test_small_results_come_with_the_log(moto: Moto, training_image: str) -> None:
    document = {"version": 1, "name": "job", "program": "t.py", "code": "/tmp", "host_count": 1}
    train = Role(
        "train",
        training_image,
        entrypoint="sh",
        args=["-c", 'printf %s "$SCRIPT" >/tmp/t.py; exec python3 /tmp/toolkit.pyz train'],
        env={"SHUNTER_JOB": json.dumps({**document, "output": {"log": True}}), "SCRIPT": result_jobs.SCRIPT},
        resource=Resource(cpu=1, gpu=0, memMB=256),
    )
    with get_runner("test") as runner:
        handle = runner.run(AppDef("job", [train]), "aws_batch", {"queue": moto.queue})
        runner.wait(handle)
        result_jobs.check_results(runner, handle)
        assert not [line for line in runner.log_lines(handle, "train") if "shunter-results" in line]

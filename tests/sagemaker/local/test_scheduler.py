"""`sagemaker_local`: any component, SageMaker's options, the same request, carried out here."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.api import Stream
from shunter.schedulers.sagemaker_local_scheduler.scheduler import create_scheduler
from shunter.specs import RetryPolicy
from shunter.testing import SchedulerConformance
from tests.forked_command import run_shunter

from .conftest import Bucket, unpack, until
from .test_distributed import hosts_of


@pytest.mark.slow
class TestConformanceOfProcesses(SchedulerConformance):
    image = "none"
    cfg: ClassVar[dict[str, Any]] = {}
    retry_policies: ClassVar[tuple[RetryPolicy, ...]] = ()
    streams: ClassVar[tuple[Stream, ...]] = (Stream.COMBINED,)

    def test_success_is_not_retried(self, scheduler: Any) -> None:
        """SageMaker repeats no job that failed by itself, so nobody is let think so."""
        with pytest.raises(ConfigError, match="max_retries"):
            self.submit(scheduler, self.role("true", max_retries=2))

    @pytest.fixture
    def scheduler(self, processes: str) -> Any:
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler


def shunter(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    if cwd is not None:
        (cwd / "README").touch()  # an empty directory is refused as a workspace
    return run_shunter(*words, cwd=cwd)


SCRIPT = """
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
parser.add_argument("--training", default=os.environ["SM_CHANNEL_TRAINING"])
args = parser.parse_args()
host = os.environ["SM_CURRENT_HOST"]
print("hosts", os.environ["SM_HOSTS"], "lr", args.lr)
data = open(os.path.join(args.training, "a.csv")).read()
json.dump({"lr": args.lr, "data": data}, open(os.path.join(args.model_dir, host + ".json"), "w"))
print("loss: 0.25")
"""


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 3])
def test_a_script_from_the_command_line(mode: str, hosts: int, tmp_path: Path, request: Any) -> None:
    """submit -> log -> status -> model, with the toolkit and channels, on containers and on processes."""
    image = request.getfixturevalue("image") if mode == "containers" else "none"
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "data/a.csv").write_text("1,2")
    (project / "train.py").write_text(SCRIPT)
    done = shunter(
        *("run", "-s", "sagemaker_local", "--wait", "train.script", "--script", "train.py", "--image", image),
        *("--channel", "training=data", "--output", str(tmp_path / "out"), "--num_replicas", str(hosts)),
        *("--metric", "loss", "--", "--lr", "0.1"),
        cwd=project,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    handle = done.stdout.split()[0]
    name = handle.rpartition("/")[2]
    log = shunter("log", handle)
    assert log.stdout.count("] lr 0.1") == hosts, log.stderr
    status = json.loads(shunter("status", "--json", handle).stdout)
    assert status["state"] == "SUCCEEDED"
    replicas = status["roles"][0]["replicas"]
    assert [replica["exit_code"] for replica in replicas] == [0] * hosts
    model = unpack((tmp_path / "out" / name / "output/model.tar.gz").read_bytes())
    assert sorted(model) == sorted(f"{host}.json" for host in hosts_of(name, hosts, mode))
    assert [json.loads(text) for text in model.values()] == [{"lr": 0.1, "data": "1,2"}] * hosts
    described = shunter("describe", handle).stdout
    assert name in described


@pytest.mark.slow
def test_several_roles_are_instance_groups(processes: str, tmp_path: Path) -> None:
    component = tmp_path / "job.py"
    component.write_text(
        "from shunter.specs import AppDef, Role, Resource, macros\n\n"
        "def job() -> AppDef:\n"
        '    """Two roles."""\n'
        "    def role(name, count):\n"
        "        args = ['-c', 'echo $TORCHX_REPLICA_IDX of ' + name + ' " + "$" + "{0}'.format('') , ]\n"
        "        return Role(name, 'none', entrypoint='sh', args=args, num_replicas=count,\n"
        "                    resource=Resource(1, 0, 100))\n"
        "    return AppDef('two', [role('left', 1), role('right', 2)])\n"
    )
    text = component.read_text().replace(" ${0}'.format('') , ]", "']")
    component.write_text(text)
    done = shunter("run", "-s", "sagemaker_local", "--wait", f"{component}:job", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    log = shunter("log", done.stdout.split()[0]).stdout
    assert sorted(line.partition(" ")[2] for line in log.splitlines()) == [
        "0 of left",
        "0 of right",
        "1 of right",
    ]


@pytest.mark.slow
def test_code_goes_along_once_per_content(processes: str, tmp_path: Path, home: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "hello.txt").write_text("hello")
    line = (
        "run",
        "-s",
        "sagemaker_local",
        "--wait",
        "--workspace",
        ".",
        "utils.sh",
        "--image",
        "none",
        "cat",
        "hello.txt",
    )
    for _ in range(2):
        done = shunter(*line, cwd=project)
        assert done.returncode == 0, done.stderr + done.stdout
        assert "hello" in shunter("log", done.stdout.split()[0]).stdout
    assert len(list((home / "state/sagemaker-code").iterdir())) == 1


def test_links_that_lead_out_of_the_code_are_kept(processes: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "data.txt").write_text("from outside")
    (project / "data").symlink_to(tmp_path / "data.txt")
    (project / "relative").symlink_to("../data.txt")
    (project / "nothing").symlink_to("/no/such/file")
    (project / "show.py").write_text("import os; print(open('data').read(), os.readlink('nothing'))")
    line = (
        "run",
        "-s",
        "sagemaker_local",
        "--wait",
        "--workspace",
        ".",
        "train.script",
        "--script",
        "show.py",
    )
    done = shunter(*line, "--image", "none", cwd=project)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "from outside /no/such/file" in shunter("log", done.stdout.split()[0]).stdout


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["sagemaker_local", "local_cwd"])
@pytest.mark.parametrize("output", [[], ["--output", "./out"]], ids=["default", "output"])
def test_the_results_that_are_named_are_there(
    processes: str, tmp_path: Path, scheduler: str, output: list[str]
) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit('no')")
    (tmp_path / "works.py").write_text("import os; open(os.environ['SM_MODEL_DIR'] + '/model', 'w').close()")
    for name, code in (("works", 0), ("fails", 1)):
        line = ("run", "-s", scheduler, "--wait", "train.script", "--script", f"{name}.py", *output)
        done = shunter(*line, "--image", "none", cwd=tmp_path)
        assert done.returncode == code, done.stderr + done.stdout
        found = json.loads(shunter("status", done.stdout.split()[0], "--json").stdout)["results"]
        assert found is None or Path(found).is_dir()
        assert found or name == "fails"


@pytest.mark.slow
def test_cancel_list_delete(processes: str, tmp_path: Path) -> None:
    done = shunter(
        *("run", "--detach", "-s", "sagemaker_local", "utils.sh", "--image", "none", "sleep", "600"),
        cwd=tmp_path,
    )
    handle = done.stdout.split()[0]
    assert "RUNNING" in shunter("list").stdout or "PENDING" in shunter("list").stdout
    assert shunter("delete", handle).returncode != 0
    assert shunter("cancel", "--wait", handle).returncode == 0
    assert "CANCELLED" in shunter("status", handle).stdout
    assert shunter("delete", handle).returncode == 0


@pytest.mark.slow
def test_results_that_went_nowhere_else_go_with_the_job(processes: str, tmp_path: Path, home: Path) -> None:
    (tmp_path / "run.sh").write_text('echo weights >"$SM_MODEL_DIR/model.bin"\n')
    words = ("run", "-s", "sagemaker_local", "--wait", "train.script", "--script", "run.sh")
    handle = shunter(*words, cwd=tmp_path).stdout.split()[0]
    results = Path(json.loads(shunter("status", "--json", handle).stdout)["results"])
    assert results.parent.parent == home / "state/sagemaker-results"
    assert (results / "model.tar.gz").exists()
    assert f"Results: {results}\n" in shunter("describe", handle).stdout
    assert f"deleted {handle} and its results in {results}\n" in shunter("delete", handle).stderr
    assert not results.parent.exists()


def test_a_failure_tells_its_host(processes: str, tmp_path: Path) -> None:
    with closing(create_scheduler("test")) as scheduler:
        from shunter.specs import AppDef, Resource, Role

        go = tmp_path / "go"
        fails = f"until [ -e {go} ]; do sleep 0.02; done; echo no such file; exit 3"
        script = f'test "$TORCHX_REPLICA_IDX" = 1 && {{ {fails}; }}; exit 0'
        role = Role(
            "w", "none", entrypoint="sh", args=["-c", script], num_replicas=2, resource=Resource(1, 0, 64)
        )
        app_id = scheduler.submit(AppDef("a", [role]), {})

        def code_of_first() -> int | None:
            response = scheduler.describe(app_id)
            return response.roles_statuses[0].replicas[0].exit_code if response else None

        until(lambda: code_of_first() == 0)
        go.touch()
        described = scheduler.wait(app_id, 50)
        assert described is not None
        assert described.state.name == "FAILED"
        assert described.msg == "AlgorithmError: no such file, exit code: 3, host: algo-2"
        assert [r.exit_code for r in described.roles_statuses[0].replicas] == [0, 3]
        assert [r.state.name for r in described.roles_statuses[0].replicas] == ["SUCCEEDED", "FAILED"]


@pytest.mark.slow
def test_reading_commands_do_not_load_the_sdk(processes: str, tmp_path: Path) -> None:
    done = shunter(
        "run", "-s", "sagemaker_local", "--wait", "utils.sh", "--image", "none", "true", cwd=tmp_path
    )
    handle = done.stdout.split()[0]
    code = (
        "import sys; from shunter.cli import main\n"
        "main(['status', sys.argv[1]])\n"
        "print([n for n in ('boto3', 'botocore', 'requests', 'docker') if n in sys.modules], file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", code, handle], capture_output=True, text=True, check=True)
    assert shown.stderr.splitlines()[-1] == "[]", shown.stderr


def test_a_dry_run_writes_nothing(processes: str, tmp_path: Path, home: Path) -> None:
    line = (
        "run",
        "-s",
        "sagemaker_local",
        "--dryrun",
        "--workspace",
        ".",
        "utils.sh",
        "--image",
        "none",
        "true",
    )
    (tmp_path / "x").write_text("x")
    done = shunter(*line, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"TrainingJobName"' in done.stdout
    assert not (home / "state/sagemaker").exists()
    assert not (home / "state/sagemaker-code").exists()


@pytest.mark.slow
def test_spot_with_checkpoints_in_s3(processes: str, bucket: Bucket, tmp_path: Path) -> None:
    script = (
        "b=$SAGEMAKER_BASE_DIR/checkpoints; if [ -f $b/state ]; then cat $b/state; exit 0; fi;"
        " echo first > $b/state.tmp; mv $b/state.tmp $b/state; echo ready; sleep 600"
    )
    options = f"use_spot_instances=true,max_run=600,max_wait=900,checkpoint_s3_uri={bucket.uri('c')}"
    done = shunter(
        *("run", "--detach", "-s", "sagemaker_local", "-cfg", options),
        *("utils.sh", "--image", "none", "sh", "-c", script),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    handle = done.stdout.split()[0]
    until(lambda: bucket.keys("c") == ["c/state"])
    assert shunter("drill", "spot", handle).returncode == 0
    assert shunter("wait", handle).returncode == 0
    assert shunter("log", handle).stdout.split("\n")[:2] == ["sh/0 ready", "sh/0 first"]


@pytest.mark.slow
def test_keeping_house(processes: str, tmp_path: Path, home: Path) -> None:
    line = ("run", "-s", "sagemaker_local", "--wait", "utils.sh", "--image", "none", "true")
    assert shunter(*line, cwd=tmp_path).returncode == 0
    assert "processes" in shunter("doctor", "-s", "sagemaker_local").stdout
    kept = shunter("gc", "-s", "sagemaker_local", "--yes")
    assert kept.returncode == 0, kept.stderr
    assert len(list((home / "state/sagemaker").iterdir())) == 1
    gone = shunter("gc", "-s", "sagemaker_local", "--older-than", "0s", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert list((home / "state/sagemaker").iterdir()) == []
    assert list((home / "state/sagemaker-code").iterdir()) == []


@pytest.mark.slow
def test_what_only_aws_can_do_is_named_once(processes: str, tmp_path: Path, bucket: Bucket) -> None:
    (tmp_path / "train.py").write_text("import os\nprint('job', os.environ['TORCHX_JOB_ID'])\n")
    given = {
        "batch_queue": "gpu",
        "batch_priority": 1,
        "tensorboard_output_config": {"s3_output_path": "s3://board/x"},
        "mlflow_config": {
            "resource_arn": "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/one",
        },
    }
    options = [word for key, value in given.items() for word in ("-cfg", f"{key}={_text(value)}")]
    words = ["run", "--detach", "-s", "sagemaker_local", *options, "train.script", "--script", "train.py"]
    done = shunter(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = "on this machine these options do nothing: batch_queue, mlflow_config, tensorboard_output_config"
    assert done.stderr.count(said) == 1
    handle = done.stdout.split()[-1]
    assert shunter("wait", handle).returncode == 0
    assert "gpu:" not in handle
    assert f"job {handle}\n" in shunter("log", handle).stdout


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

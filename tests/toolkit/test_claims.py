"""Sentences of docs/contract.md that no other test shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import DUMP, RESOURCE, Tree, backend
from .objects import Bucket, bare, bucket, run
from .test_contract import _full
from .test_serve import MODEL, Served, served

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bare", "bucket", "served"]  # fixtures

CONTRACT = (Path(__file__).parents[2] / "docs/contract.md").read_text(encoding="utf-8")
TABLE = CONTRACT.partition("## Variables")[2].partition("Also set:")[0]
ROWS = re.findall(r"^\| `(SM_[A-Z_]+)(?:<NAME>)?` \| (.+?) \| (.+) \|$", TABLE, re.MULTILINE)
FORMS: dict[str, Callable[[str], bool]] = {
    "JSON list": lambda value: isinstance(json.loads(value), list),
    "JSON object": lambda value: isinstance(json.loads(value), dict),
    "number": str.isdigit,
    "`true`/`false`": lambda value: value in ("true", "false"),
    "text": lambda value: not value.startswith(("[", "{", '"')),
    "text or JSON": lambda value: True,
}


def test_every_row_has_the_form_that_the_table_says(tree: Tree) -> None:
    _full(tree)
    tree.configure("resourceconfig", {**RESOURCE, "topology": [{"host": "algo-1"}]})
    assert tree.train().returncode == 0
    env = tree.dump()["env"]
    assert len(ROWS) > 30
    for name, form, _ in ROWS:
        values = [value for seen, value in env.items() if seen == name or (name[-1] == "_" and name in seen)]
        assert values, name
        assert all(FORMS[form](value) for value in values), (name, form, values)


def test_values_where_the_platform_says_nothing(tree: Tree) -> None:
    tree.script(DUMP)
    tree.configure("resourceconfig", {"current_host": "here", "hosts": ["here"]})
    assert tree.train().returncode == 0
    env = tree.dump()["env"]
    wanted = {
        "SM_CURRENT_INSTANCE_TYPE": "local",
        "SM_CURRENT_INSTANCE_GROUP": "homogeneousCluster",
        "SM_CURRENT_INSTANCE_GROUP_HOSTS": "[]",
        "SM_INSTANCE_GROUPS": "[]",
        "SM_INSTANCE_GROUPS_DICT": "{}",
        "SM_NETWORK_INTERFACE_NAME": "eth0",
        "SM_LOG_LEVEL": "20",
        "SM_FRAMEWORK_MODULE": "",
        "SM_HPS": "{}",
        "SM_CHANNELS": "[]",
        "SAGEMAKER_REGION": "",
    }
    assert {name: env[name] for name in wanted} == wanted


def test_variables_that_the_toolkit_reads(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/train.py").write_text(DUMP)
    given = {
        "SAGEMAKER_SUBMIT_DIRECTORY": str(tmp_path / "source"),
        "SAGEMAKER_CONTAINER_LOG_LEVEL": "30",
        "AWS_REGION": "eu-west-3",
    }
    done = tree.train(**given)
    assert done.returncode == 0, done.stderr
    env = tree.dump()["env"]
    seen = (env["SM_MODULE_DIR"], env["SM_LOG_LEVEL"], env["SAGEMAKER_REGION"])
    assert seen == tuple(given.values())
    assert done.stderr == ""  # a level of 30 leaves the announcement out
    tree.hyperparameters(sagemaker_container_log_level="40", sagemaker_region='"us-east-2"')
    tree.train(**given)
    env = tree.dump()["env"]
    assert (env["SM_LOG_LEVEL"], env["SAGEMAKER_REGION"]) == ("40", "us-east-2")


def test_stderr_can_be_left_alone(tree: Tree) -> None:
    tree.script(
        """
        import os, sys
        print(os.readlink("/proc/self/fd/2") == os.readlink(f"/proc/{os.getppid()}/fd/2"), flush=True)
        raise KeyError("said once")
        """
    )
    done = tree.train(SHUNTER_STDERR="straight")
    assert (done.returncode, done.stdout) == (1, "True\n")
    assert "said once" in done.stderr
    assert tree.report["stderr"] == []
    assert tree.train().stdout == "False\n"


@pytest.mark.parametrize(
    ("start", "code"), [("#!/etc/passwd\n", 126), ("#!/no/such/program\n", 127)], ids=["126", "127"]
)
def test_programs_that_cannot_be_started(tree: Tree, start: str, code: int) -> None:
    tree.script(start, "run.sh").chmod(0o755)
    tree.hyperparameters("run.sh")
    assert tree.train().returncode == code
    assert (tree.report["class"], tree.report["exit_code"]) == ("client_error", code)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2])
def test_other_signals_are_passed_on_and_do_not_stop_the_job(tree: Tree, number: signal.Signals) -> None:
    tree.script(
        f"""
        import os, signal
        read, write = os.pipe()
        signal.signal({number.value}, lambda *a: os.write(write, b"x"))
        print("ready", flush=True)
        os.read(read, 1)
        """
    )
    process = tree.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert tree.succeeded


def test_grace_of_the_job_document(bare: Tree) -> None:
    bare.script(
        "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    job = {"program": "train.py", "grace_seconds": 0.1}
    process = bare.start(SHUNTER_JOB=json.dumps(job), SHUNTER_GRACE_SECONDS="300")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 137
    assert bare.report["class"] == "preempted"


@pytest.mark.slow
def test_which_host_this_is(bare: Tree) -> None:
    bare.script("import os; print(os.environ['SM_CURRENT_HOST'])")
    hosts = {"hosts": ["h0", "h1", "h2"]}
    env = {"SHUNTER_CURRENT_HOST": "h1", "TORCHX_REPLICA_IDX": "2"}
    assert run(bare, {**hosts, "current_host": "h0"}, **env).stdout == "h0\n"
    assert run(bare, hosts, **env).stdout == "h1\n"
    del env["SHUNTER_CURRENT_HOST"]
    assert run(bare, hosts, **env).stdout == "h2\n"
    machine = {"hosts": ["h0", os.uname().nodename]}
    assert run(bare, machine).stdout == f"{os.uname().nodename}\n"


@pytest.mark.parametrize(("interface", "there"), [("lo", True), ("nowhere0", False)])
def test_the_libraries_get_the_clusters_interface(
    bare: Tree, tmp_path: Path, interface: str, there: bool
) -> None:
    package = tmp_path / "fake/torch/distributed"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.write_text("")
    (package / "run.py").write_text(DUMP)
    bare.script("pass")
    document = {
        "network_interface": interface,
        "distribution": {"kind": "torchrun", "processes_per_host": 3},
        "hyperparameters": {"lr": 0.5},
    }
    done = run(bare, document, PYTHONPATH=str(tmp_path / "fake"))
    assert done.returncode == 0, done.stderr
    line = "--nnodes 1 --nproc_per_node 3 --standalone train.py --lr 0.5"
    assert bare.dump()["argv"] == line.split()
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        assert bare.dump()["env"].get(name) == (interface if there else None)


def test_mpi_options_of_the_job(bare: Tree) -> None:
    backend("mpi", shutil.which("mpirun") is not None, "mpirun is not installed")
    bare.script(
        """
        import os
        words = [os.environ[name] for name in ("OMPI_COMM_WORLD_SIZE", "WORDS", "HERE")]
        os.write(1, f"<{' '.join(words)}>\\n".encode())
        """
    )
    options = "-x WORDS='a $HOME' -x HERE --display-map"
    document = {
        "network_interface": "lo",
        "distribution": {"kind": "mpi", "processes_per_host": 2, "mpi_options": options},
    }
    done = run(bare, document, HERE="from outside", SHUNTER_KEY_DIR=str(bare.base))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("<2 a $HOME from outside>") == 2, done.stdout
    assert "JOB MAP" in done.stdout
    bare.script("pass")
    document["distribution"]["mpi_options"] = "'open"
    assert run(bare, document).returncode == 1
    assert "sagemaker_mpi_custom_mpi_options" in bare.failure


def test_endpoint_of_the_store(bare: Tree, bucket: Bucket) -> None:
    bucket.put("data/x", b"1")
    env = {name: value for name, value in bucket.env.items() if name != "AWS_ENDPOINT_URL"}
    bare.script("import os; print(os.listdir(os.environ['SM_CHANNEL_A']))")
    done = run(
        bare, {"channels": {"a": "s3://jobs/data"}}, S3_ENDPOINT_URL=bucket.env["AWS_ENDPOINT_URL"], **env
    )
    assert (done.returncode, done.stdout) == (0, "['x']\n"), done.stderr


def test_results_of_another_host_lie_under_its_name(bare: Tree, tmp_path: Path) -> None:
    bare.script("import os; open(os.environ['SM_MODEL_DIR'] + '/m', 'w').close()")
    document = {"hosts": ["a", "b"], "output": {"uri": str(tmp_path / "out"), "compression": "none"}}
    for host in ("a", "b"):
        assert run(bare, document, SHUNTER_CURRENT_HOST=host).returncode == 0
    found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert [path for path in found if path.endswith("/m")] == ["j1/output/b/model/m", "j1/output/model/m"]


def test_deletions_are_not_mirrored(bare: Tree, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "old").write_text("old")
    bare.script(
        """
        import os
        folder = os.environ["SAGEMAKER_BASE_DIR"] + "/checkpoints"
        os.unlink(folder + "/old")
        open(folder + "/new", "w").close()
        """
    )
    done = run(bare, {"checkpoints": {"uri": str(kept)}})
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(kept)) == ["new", "old"]


def test_the_environment_can_be_shown(tree: Tree) -> None:
    tree.hyperparameters(api_key="sesame-sesame", lr="0.5")
    line = [*tree.command()[:-1], "env"]
    done = subprocess.run(line, env=tree.env(), capture_output=True, text=True, check=True)
    assert "SM_HP_LR=0.5\n" in done.stdout
    assert "SM_HP_API_KEY=******\n" in done.stdout
    assert "sesame" not in done.stdout


def test_a_default_for_any_accept(served: Served) -> None:
    served.tree.script(MODEL, "inference.py")
    served.start(SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT="text/csv")
    assert served.invoke(b"[[1, 2]]", "application/json", "*/*") == (200, b"2.0,4.0\n")

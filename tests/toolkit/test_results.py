"""What a job leaves behind goes to its store: model, data, checkpoints, intermediate output."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import time
from typing import TYPE_CHECKING

import pytest

from .objects import Bucket, bare, bucket, run

__all__ = ["bare", "bucket"]  # fixtures

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Tree

RESULTS = """
import os, sys
for folder, name in (("SM_MODEL_DIR", "model.bin"), ("SM_OUTPUT_DATA_DIR", "eval.json")):
    open(os.path.join(os.environ[folder], name), "w").write(name)
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_model_and_data_are_sent_as_on_sagemaker(
    bare: Tree, bucket: Bucket, tmp_path: Path, code: int
) -> None:
    bare.script(RESULTS)
    done = run(bare, {"output": {"uri": "s3://jobs/out"}}, CODE=str(code), **bucket.env)
    assert done.returncode == code, done.stderr
    expected = ["out/j1/output/output.tar.gz"]
    assert bucket.keys("out/") == (["out/j1/output/model.tar.gz"] if code == 0 else []) + expected
    if code == 0:
        (tmp_path / "m.tar.gz").write_bytes(bucket.get("out/j1/output/model.tar.gz"))
        with tarfile.open(tmp_path / "m.tar.gz") as tar:
            assert tar.getnames() == ["model.bin"]


def test_plain_results_to_a_folder(bare: Tree, tmp_path: Path) -> None:
    bare.script(RESULTS)
    done = run(bare, {"output": {"uri": f"file://{tmp_path}/out", "compression": "none"}})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/j1/output/model/model.bin").read_text() == "model.bin"
    assert (tmp_path / "out/j1/output/data/eval.json").read_text() == "eval.json"


def test_results_that_cannot_be_sent_fail_the_job(bare: Tree, bucket: Bucket) -> None:
    bare.script(RESULTS)
    done = run(bare, {"output": {"uri": "s3://no-such-bucket/out"}}, **bucket.env)
    assert done.returncode == 1
    assert bare.report["class"] == "client_error"
    assert "no-such-bucket" in bare.failure


CHECKPOINTS = """
import os, sys, time
folder = os.environ["SAGEMAKER_BASE_DIR"] + "/checkpoints/"
print(sorted(os.listdir(folder)), flush=True)
os.makedirs(folder + "epoch", exist_ok=True)
for name in ("epoch/a", "b"):
    with open(folder + name + ".tmp", "w") as file:
        file.write(name)
    os.replace(folder + name + ".tmp", folder + name)
print("written", flush=True)
if sys.stdin.readline():
    pass
"""


@pytest.mark.parametrize("portable", ["0", "1"])  # told of changes by the kernel, or scanning for them
def test_checkpoints_go_out_during_the_run_and_come_back(bare: Tree, bucket: Bucket, portable: str) -> None:
    bucket.put("ckpt/old", b"old")
    bare.script(CHECKPOINTS)
    document = {"program": "train.py", "checkpoints": {"uri": "s3://jobs/ckpt"}}
    command = bare.command()
    env = bare.env(SHUNTER_JOB=json.dumps(document), SHUNTER_PORTABLE=portable, **bucket.env)
    first = bucket.client.head_object(Bucket="jobs", Key="ckpt/old")["LastModified"]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "['old']\n"
        assert process.stdout.readline() == "written\n"
        deadline = time.monotonic() + 20
        wanted = ["ckpt/b", "ckpt/epoch/a", "ckpt/old"]
        while bucket.keys("ckpt/") != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        assert bucket.keys("ckpt/") == wanted  # while the script still runs, put in place by rename, no .tmp
        process.communicate("\n", timeout=30)
        assert process.returncode == 0
    assert bucket.get("ckpt/epoch/a") == b"epoch/a"
    assert bucket.client.head_object(Bucket="jobs", Key="ckpt/old")["LastModified"] == first


def test_checkpoint_of_a_stopped_job_is_kept(bare: Tree, tmp_path: Path) -> None:
    bare.script(
        """
        import os, signal, sys, time
        def save(number, frame):
            open(os.environ["SAGEMAKER_BASE_DIR"] + "/checkpoints/last", "w").write("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(100)
        """
    )
    hook = [
        sys.executable,
        "-c",
        f"import os; open({str(tmp_path / 'hook')!r}, 'w').write(os.environ['SHUNTER_SCRIPT_PID'])",
    ]
    document = {"program": "train.py", "checkpoints": {"uri": f"{tmp_path}/kept"}, "stop_hook": hook}
    process = bare.start(SHUNTER_JOB=json.dumps(document))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert bare.report["outcome"] == "stopped"
    assert (tmp_path / "kept/last").read_text() == "saved"
    assert (tmp_path / "hook").read_text().isdigit()


def test_intermediate_output_on_sagemaker(tree: Tree, bucket: Bucket) -> None:
    tree.hyperparameters(sagemaker_s3_output='"s3://jobs/res"')
    tree.script(
        """
        import os
        folder = os.environ["SM_OUTPUT_INTERMEDIATE_DIR"]
        for i in range(20):
            path = os.path.join(folder, f"{i}.txt")
            open(path + ".tmp", "w").write(str(i))
            os.replace(path + ".tmp", path)
        """
    )
    done = tree.train(TRAINING_JOB_NAME="tj", **bucket.env)
    assert done.returncode == 0, done.stderr
    assert len(bucket.keys("res/tj/output/intermediate/")) == 20


def test_sync_from_a_frameworks_own_code(tree: Tree, bucket: Bucket) -> None:
    code = """
from shunter_toolkit import environment, intermediate_output
import os
sync = intermediate_output.start_sync("s3://jobs/own", "us-east-1")
open(os.path.join(environment.output_intermediate_dir, "a.txt"), "w").write("a")
sync.join()
assert intermediate_output.start_sync("file:///x", None) is None
assert intermediate_output.start_sync("s3://jobs/own", None) is None  # the folder is there: the platform's
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=tree.env(**bucket.env), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert bucket.keys("own/") == ["own/output/intermediate/a.txt"]


def test_one_failing_step_does_not_keep_the_others(bare: Tree, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    document = {"checkpoints": {"uri": f"{tmp_path}/kept"}, "output": {"uri": "s3://jobs/out"}}
    bare.script(
        """
        import os
        open(os.environ["SAGEMAKER_BASE_DIR"] + "/checkpoints/c", "w").close()
        os.rmdir(os.environ["KEPT"])
        open(os.environ["KEPT"], "w").close()
        """
    )
    done = run(bare, document, KEPT=str(tmp_path / "kept"), **bucket.env)
    assert done.returncode == 1
    assert "Cannot store" in bare.failure
    assert bucket.keys("out/") == ["out/j1/output/model.tar.gz"]


def test_no_file_of_a_new_folder_is_missed(tmp_path: Path) -> None:
    """Folders and files that come at full speed, put in place by rename: the watch races with the writer."""
    import select

    from shunter_toolkit.inotify import Tree as Watched

    writer = (
        "import os, sys\n"
        "for i in range(150):\n"
        "    folder = os.path.join(sys.argv[1], f'{i}/deep')\n"
        "    os.makedirs(folder)\n"
        "    open(folder + '/x.tmp', 'w').close()\n"
        "    os.replace(folder + '/x.tmp', folder + '/x')\n"
    )
    watched = Watched(str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", writer, str(tmp_path)])
    wanted = {str(tmp_path / f"{i}/deep/x") for i in range(150)}
    seen: set[str] = set()
    deadline = time.monotonic() + 20
    while not wanted <= seen and time.monotonic() < deadline:
        select.select([watched.descriptor], [], [], 0.2)
        seen |= watched.changes()[0]
    assert process.wait() == 0
    watched.close()
    assert wanted - seen == set()

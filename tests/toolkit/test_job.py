"""The job document: the base directory prepared, and results sent, off SageMaker. S3 is a moto server."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import DUMP, Tree
from .objects import Bucket, bare, bucket, run

__all__ = ["bare", "bucket"]  # fixtures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_local_channels_are_linked_and_configuration_is_written(bare: Tree, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text("1")
    bare.script(DUMP)
    done = run(
        bare,
        {
            "hyperparameters": {"lr": 0.1, "name": "x", "deep": {"a": [1]}},
            "channels": {"training": str(data), "copied": {"uri": f"file://{data}", "mode": "copy"}},
        },
    )
    assert done.returncode == 0, done.stderr
    env = bare.dump()["env"]
    assert env["SM_CHANNELS"] == '["copied","training"]'
    assert json.loads(env["SM_HPS"]) == {"lr": 0.1, "name": "x", "deep": {"a": [1]}}
    assert os.path.realpath(env["SM_CHANNEL_TRAINING"]) == str(data)
    assert (bare.base / "input/data/copied/a.csv").read_text() == "1"
    assert not (bare.base / "input/data/copied").is_symlink()
    raw = json.loads((bare.base / "input/config/hyperparameters.json").read_text())
    assert raw["lr"] == "0.1"
    assert raw["name"] == '"x"'


def test_document_from_a_file_and_code_from_a_folder(bare: Tree, tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "main.py").write_text("print('from folder')")
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"program": "main.py", "code": str(source)}))
    done = bare.train("--job", str(path))
    assert (done.returncode, done.stdout) == (0, "from folder\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"chanels": {}}, "Did you mean 'channels'"),
        ({"channels": {"a": {"url": "x"}}}, 'an object with a "uri"'),
        ({"channels": {"a": {"uri": "x", "mode": "move"}}}, "link or copy"),
        ({"channels": {"a": "/no/such/folder"}}, "nothing at /no/such/folder"),
        ({"channels": {"../a": "/tmp"}}, "one path segment"),
        ({"channels": {"a": "ftp://x"}}, "s3://bucket/prefix"),
        ({"hosts": ["a", "b"]}, "Cannot tell which host"),
        ({"version": 9}, "version 9"),
        ({"timeout_seconds": "1"}, "must be int or float"),
        ({"distribution": {"kind": "smp"}}, "none, torchrun or mpi"),
        ({"metrics": [{"name": "x", "regex": "("}]}, "is wrong"),
        ({"metrics": [{"name": "x", "regex": "loss"}]}, "has no group"),
        ({"output": {"uri": "/tmp/x", "compression": "zip"}}, "gzip"),
        ({"checkpoints": {"path": "/opt/ml/../x"}}, "an absolute path without '..'"),
        ({"checkpoints": {"path": "here"}}, "an absolute path without '..'"),
        ({"name": ".."}, "it cannot be '..'"),
        ({"hosts": [".."]}, "A host cannot be named '..'"),
        ({"hosts": ["a\n10.0.0.1 b"]}, "A host cannot be named"),
    ],
)
def test_mistakes_in_the_document(bare: Tree, document: dict[str, Any], words: str) -> None:
    bare.script("pass")
    done = run(bare, document)
    assert done.returncode == 1
    assert words in bare.failure
    assert bare.report["class"] == "client_error"
    assert "Traceback" not in done.stderr


def test_the_documents_program_wins_over_what_an_image_sets(bare: Tree) -> None:
    bare.script("print('the script')")
    image = {"SAGEMAKER_PROGRAM": "other.py", "SAGEMAKER_TRAINING_MODULE": "framework.training:main"}
    assert run(bare, {}, **image).stdout == "the script\n"


def test_a_folder_of_code_wins_over_what_an_image_holds(bare: Tree, tmp_path: Path) -> None:
    bare.script("print('of the image')")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train.py").write_text("import os; print('own', os.getcwd())")
    done = run(bare, {"code": str(tmp_path / "own")})
    assert done.stdout == f"own {tmp_path / 'own'}\n"
    assert done.stderr == ""


def test_nothing_is_installed_where_that_is_not_wanted(bare: Tree) -> None:
    bare.script("print('ran')")
    (bare.base / "code/requirements.txt").write_text("no-such-package-at-all==1\n")
    (bare.base / "code/setup.py").write_text("raise SystemExit('not to be run')\n")
    done = run(bare, {}, SHUNTER_INSTALLER="none")
    assert (done.stdout, done.stderr, done.returncode) == ("ran\n", "", 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_belongs_to_the_directories_owner(bare: Tree, tmp_path: Path) -> None:
    """As where a container writes to directories of somebody's machine."""
    out = tmp_path / "out"
    out.mkdir()
    (bare.base / "model").mkdir(exist_ok=True)
    for folder in (out, bare.base / "model"):
        os.chown(folder, 4321, 4321)
    bare.script("import os; d = os.environ['SM_MODEL_DIR'] + '/a'; os.mkdir(d); open(d + '/b', 'w').close()")
    assert run(bare, {"output": {"uri": str(out)}}).returncode == 0
    written = [bare.base / "model/a/b", out / "j1/output/model.tar.gz"]
    assert [path.stat().st_uid for path in written] == [4321, 4321]


def test_another_python_can_be_named_for_scripts(bare: Tree, tmp_path: Path) -> None:
    own = tmp_path / "bin/own-python"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\nMARK=own exec {sys.executable} "$@"\n')
    own.chmod(0o755)
    bare.script("import os; print(os.environ.get('MARK'))")
    path = f"{own.parent}:{os.environ['PATH']}"
    assert run(bare, {}, SHUNTER_PYTHON="own-python", PATH=path).stdout == "own\n"
    assert run(bare, {}, SHUNTER_PYTHON="absent", PATH=path).stdout == "None\n"


def test_time_limit(bare: Tree) -> None:
    bare.script("import time; time.sleep(100)")
    assert run(bare, {"timeout_seconds": 0.3}).returncode == 143
    assert bare.report["class"] == "timeout"
    assert bare.report["outcome"] == "failed"
    assert bare.failure.startswith("Timeout: train.py was stopped after")


@pytest.mark.slow
def test_s3_channels_whole_and_sharded(bare: Tree, bucket: Bucket) -> None:
    for i in range(7):
        bucket.put(f"data/part-{i}", bytes([i]) * 10)
    bucket.put("data/deep/er", b"x")
    bucket.put("database/other", b"x")
    bucket.put("single.csv", b"one")
    bare.script(DUMP)
    sharded = {"uri": "s3://jobs/data", "distribution": "ShardedByS3Key"}
    done = run(
        bare,
        {
            "channels": {"all": "s3://jobs/data/", "mine": sharded, "one": "s3://jobs/single.csv"},
            "hosts": ["h1", "h2", "h3"],
            "current_host": "h2",
        },
        **bucket.env,
    )
    assert done.returncode == 0, done.stderr
    data = bare.base / "input/data"
    assert sorted(p.name for p in (data / "all").iterdir()) == ["deep", *(f"part-{i}" for i in range(7))]
    assert (data / "all/part-3").read_bytes() == b"\3" * 10
    assert sorted(p.name for p in (data / "mine").iterdir()) == ["part-0", "part-3", "part-6"]
    assert (data / "one/single.csv").read_bytes() == b"one"
    config = json.loads((bare.base / "input/config/inputdataconfig.json").read_text())
    assert config["mine"]["S3DistributionType"] == "ShardedByS3Key"


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["s3://jobs/nothing", "s3://no-such-bucket/x"])
def test_s3_channel_with_nothing_behind_it(bare: Tree, bucket: Bucket, uri: str) -> None:
    bare.script("pass")
    done = run(bare, {"channels": {"a": uri}}, **bucket.env)
    assert done.returncode == 1
    assert uri in bare.failure
    assert bare.report["class"] == "client_error"


def test_download_goes_on_where_it_stopped(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shunter_toolkit.store import Place, Store

    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    body = os.urandom(3_000_000)
    bucket.put("big", body)
    store = Store()
    asked: list[str] = []
    real = store._client.get_object

    def broken(**kwargs: Any) -> Any:
        answer = real(**kwargs)
        asked.append(kwargs.get("Range", ""))
        if len(asked) == 1:
            blocks = [answer["Body"].read(1_000_000)]
            answer["Body"].close()

            class Cut:
                def iter_chunks(self, size: int) -> Iterator[bytes]:
                    yield from blocks
                    raise OSError("connection reset")

            answer["Body"] = Cut()
        return answer

    monkeypatch.setattr(store._client, "get_object", broken)
    store.download(store.find(Place("jobs", "big")), str(tmp_path / "big"))
    assert asked == ["", "bytes=1000000-"]
    assert (tmp_path / "big").read_bytes() == body
    assert [p.name for p in tmp_path.iterdir()] == ["big"]


def test_damage_is_found_by_checksum(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shunter_toolkit.errors import StoreError
    from shunter_toolkit.store import Place, Store

    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    bucket.put("x", b"right")
    tag = hashlib.md5(b"right").hexdigest()
    (tmp_path / f"x.{tag[:16]}.partial").write_bytes(b"wrong")
    with pytest.raises(StoreError, match="checksum"):
        Store().download(Store().find(Place("jobs", "x")), str(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


def test_code_from_s3(bare: Tree, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print('from s3')")
    with tarfile.open(tmp_path / "s.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "main.py", "main.py")
    bucket.put("src/sourcedir.tar.gz", (tmp_path / "s.tar.gz").read_bytes())
    done = run(bare, {"program": "main.py", "code": "s3://jobs/src/sourcedir.tar.gz"}, **bucket.env)
    assert (done.returncode, done.stdout) == (0, "from s3\n"), done.stderr


def test_host_count_and_replica_index(bare: Tree) -> None:
    bare.script(DUMP)
    assert run(bare, {"host_count": 3}, TORCHX_REPLICA_IDX="1").returncode == 0
    env = bare.dump()["env"]
    assert env["SM_HOSTS"] == '["algo-1","algo-2","algo-3"]'
    assert env["SM_CURRENT_HOST"] == "algo-2"


def test_an_output_that_cannot_be_used_fails_without_its_password_in_the_log(bare: Tree) -> None:
    bare.script("")
    done = run(bare, {"output": {"uri": "memory://user:s3cr3tw0rd@host/x"}})
    assert done.returncode == 1
    assert "Cannot use 'memory://user:******@host/x" in done.stderr
    assert "Traceback" not in done.stderr
    assert "s3cr3tw0rd" not in done.stdout + done.stderr

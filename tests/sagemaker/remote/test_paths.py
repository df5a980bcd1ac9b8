"""Paths of this machine: noticed early, and read as what they are."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError
from shunter.progress import Silent
from shunter.schedulers.aws_sagemaker_scheduler.code_archive import plan_code
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.submission import upload_code
from shunter.schedulers.registry import get_scheduler_factories
from shunter.specs.app import AppDef, Role
from shunter.specs.workspace import Workspace
from tests import backends


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(directory)
    return directory


@pytest.mark.parametrize("wanted", [{"channels": {"training": "nothere"}}, {"model_uri": "nothere"}])
@pytest.mark.parametrize("name", ["aws_sagemaker", "sagemaker_local"])
def test_a_path_that_is_not_there_is_noticed_before_anything_is_done(
    project: Path, name: str, wanted: dict[str, Any]
) -> None:
    backends.need("botocore")
    scheduler = get_scheduler_factories()[name]("test")
    role = {"role": "arn:aws:iam::123456789012:role/R", "instance_type": "ml.m5.large"}
    app = AppDef("job", [Role("any", "i:1", entrypoint="ls")])
    with pytest.raises(ConfigError, match=f"no file or directory {project}/nothere"):
        scheduler.submit_dryrun(app, {**role, **wanted})
    scheduler.close()


def test_a_full_disk_while_packing_says_where(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = AppDef("job", [Role("train", "i:1", entrypoint="python", args=["train.py"])])
    package = plan_code(app, Workspace(), AWSSageMakerOpts(role="R", instance_type="ml.m5.large"))
    assert package is not None

    def full(name: str, path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Empty:
        def has(self, uri: str) -> bool:
            return False

    before = list(tmp_path.iterdir())
    monkeypatch.setattr(package, "write_file", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match=f"into a file of {tmp_path}.*No space left") as caught:
        upload_code(package, Empty(), "s3://b/x/", Silent())  # type: ignore[arg-type]
    assert "TMPDIR" in caught.value.hint
    assert list(tmp_path.iterdir()) == before

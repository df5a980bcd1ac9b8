"""Channels on EFS and FSx for Lustre, for which directories of this machine stand."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.sagemaker_local_scheduler.filesystems import VARIABLE, parse
from tests.forked_command import run_shunter

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Jobs

EFS, LUSTRE = "fs-0123456789abcdef0", "fs-0fedcba9876543210"
READ_AND_WRITE = """
for name in ('fixed', 'open'):
    folder = BASE + '/input/data/' + name
    print(sorted(os.listdir(folder)), open(folder + '/a').read(), flush=True)
    try:
        open(f'{folder}/{HOST}', 'w').write(HOST)
        print('written', flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


def file_system_channel(name: str, identity: str, path: str, access: str, **more: Any) -> dict[str, Any]:
    kind = "FSxLustre" if identity == LUSTRE else "EFS"
    source = {
        "FileSystemId": identity,
        "FileSystemType": kind,
        "DirectoryPath": path,
        "FileSystemAccessMode": access,
    }
    return {"ChannelName": name, "DataSource": {"FileSystemDataSource": source}, **more}


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two directories that stand for file systems."""
    for name in ("efs/data/deep", "lustre/set"):
        (tmp_path / "mnt" / name).mkdir(parents=True)
        (tmp_path / "mnt" / name / "a").write_text(name)
    monkeypatch.setenv(VARIABLE, f"{EFS}:{tmp_path}/mnt/efs; {LUSTRE}={tmp_path}/mnt/lustre")
    return tmp_path / "mnt"


@pytest.mark.slow
def test_a_directory_is_shown_as_its_access_mode_says(jobs: Jobs, containers: str, mounted: Path) -> None:
    ended = jobs.run(
        READ_AND_WRITE,
        hosts=2,
        channels=[
            file_system_channel("fixed", EFS, "/data/deep", "ro"),
            # with the mount name, which a Lustre file system's own paths begin with
            file_system_channel("open", LUSTRE, "/abcdefgh/set", "rw"),
        ],
    )
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    lines = jobs.lines(ended["TrainingJobName"])
    assert lines[:2] == ["['a'] efs/data/deep", "Read-only file system"]
    assert lines[2].endswith("lustre/set")
    assert lines[3] == "written"
    assert sorted(os.listdir(mounted / "efs/data/deep")) == ["a"]
    assert sorted(os.listdir(mounted / "lustre/set")) == ["a", "algo-1", "algo-2"]
    assert (mounted / "lustre/set/algo-2").read_text() == "algo-2"


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        (("d", "fs-00000000", "/", "ro"), ["no directory of this machine stands for fs-00000000", VARIABLE]),
        (("d", EFS, "/nowhere", "ro"), ["has no directory /nowhere", "Create it"]),
        (("d", EFS, "/data/../..", "ro"), ["would leave the file system"]),
    ],
)
def test_what_is_not_there_is_refused_before_the_start(
    jobs: Jobs, processes: str, mounted: Path, channel: tuple[str, str, str, str], words: list[str]
) -> None:
    request = jobs.request("print('never')", channels=[file_system_channel(*channel)])
    with pytest.raises(jobs.sagemaker.exceptions.ClientError) as caught:
        jobs.sagemaker.create_training_job(**request)
    error = caught.value.response["Error"]
    assert error["Code"] == "ValidationException"
    assert all(word in error["Message"] for word in ["'d'", *words]), error["Message"]
    with pytest.raises(jobs.sagemaker.exceptions.ClientError, match="not found"):
        jobs.describe(request["TrainingJobName"])


@pytest.mark.parametrize("wrong", ["Pipe", "FastFile"])
def test_file_systems_are_read_in_file_mode(jobs: Jobs, processes: str, mounted: Path, wrong: str) -> None:
    channel = file_system_channel("d", EFS, "/data", "ro", InputMode=wrong)
    with pytest.raises(jobs.sagemaker.exceptions.ClientError, match="needs the input mode File"):
        jobs.start("print('never')", channels=[channel])


@pytest.mark.slow
def test_from_the_command_line(processes: str, tmp_path: Path, mounted: Path) -> None:
    """An option of the job; it goes before the variable."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").write_text("other's")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/README").touch()

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        line = ["run", "-s", "sagemaker_local", "--wait"]
        line += [word for option in options for word in ("-cfg", option)]
        line += ["utils.sh", "--image", "none", "sh", "-c", "cat $SAGEMAKER_BASE_DIR/input/data/d/a"]
        return run_shunter(*line, cwd=tmp_path / "work")

    def shown(done: subprocess.CompletedProcess[str]) -> str:
        assert done.returncode == 0, done.stderr
        return run_shunter("log", done.stdout.split()[0]).stdout

    assert "sh/0 efs/data/deep" in shown(run(f"channels=d:efs://{EFS}/data/deep"))
    options = (f"channels=d:efs://{EFS}/", f"file_systems={EFS}:{other}")
    assert "sh/0 other's" in shown(run(*options))
    refused = run("channels=d:efs://fs-00000000/x")
    assert refused.returncode != 0
    assert "no directory of this machine stands for fs-00000000" in refused.stderr
    assert "file_systems=fs-" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("text", ["fs-123:/x", "fs-0123456789", "/mnt", "fs-0123456789="])
def test_settings_that_make_no_sense(text: str) -> None:
    with pytest.raises(ConfigError, match="not an id of a file system"):
        parse(text)

"""Data of this machine on its way to S3: whole or not at all, and no byte twice."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.components.train import script
from shunter.errors import ConfigError
from shunter.progress import Silent
from shunter.schedulers.aws import session
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws.s3 import PART_BYTES, S3
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_sagemaker_scheduler import datasets
from shunter.schedulers.aws_sagemaker_scheduler.datasets import read_dataset, upload_dataset
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import create_scheduler
from shunter.schedulers.sagemaker_local_scheduler.scheduler import create_scheduler as create_local_scheduler
from tests.sagemaker.remote.conftest import Cloud
from tests.sagemaker.remote.proxy import DROP, PASS, Proxy, between
from tests.sagemaker.remote.test_jobs import options

LARGE = PART_BYTES + 1000


class Line:
    """The way to S3, on which requests are counted and can be dropped."""

    def __init__(self, cloud: Cloud, proxy: Proxy) -> None:
        self.cloud = cloud
        self.sent: list[str] = []
        self.broken: tuple[str, ...] = ()
        proxy.fault = self._decide
        self._session = AwsSession("us-east-1")
        self.s3 = S3(self._session)

    def _decide(self, method: str, path: str, headers: dict[str, str]) -> str:
        if method != "PUT":
            return PASS
        name = path.partition("?")[0].rpartition("/")[2]
        if name in self.broken:
            return DROP
        self.sent.append(name)
        return PASS

    def upload(self, path: Path) -> str:
        self.sent.clear()
        return upload_dataset(read_dataset(str(path)), f"s3://{self.cloud.bucket}/data", self.s3, Silent())

    def close(self) -> None:
        self._session.close()


@pytest.fixture
def line(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setattr(session, "ATTEMPTS", 2)
    with between(cloud.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        made = Line(cloud, proxy)
        yield made
        made.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    (directory / "inner").mkdir(parents=True)
    for number in range(30):
        (directory / f"small-{number}").write_bytes(os.urandom(100))
    (directory / "inner" / "large").write_bytes(os.urandom(LARGE))
    return directory


@pytest.mark.slow
def test_what_has_arrived_is_not_sent_again(line: Line, data: Path) -> None:
    line.broken = ("small-7", "large")
    with pytest.raises(AwsError):
        line.upload(data)
    assert [key for key in line.cloud.objects() if key.endswith(".complete")] == []
    line.broken = ("large",)
    with pytest.raises(AwsError):
        line.upload(data)
    assert "small-7" in line.sent
    line.broken = ()
    uri = line.upload(data)
    mark = uri.rstrip("/").rpartition("/")[2] + ".complete"
    assert line.sent == ["large", "large", mark]  # two parts
    prefix = uri.partition(f"{line.cloud.bucket}/")[2]
    for path in filter(Path.is_file, data.rglob("*")):
        assert line.cloud.read(f"{prefix}{path.relative_to(data)}") == path.read_bytes()
    assert line.upload(data) == uri
    assert line.sent == []


@pytest.mark.slow
def test_a_large_object_that_arrived_is_known_by_its_parts(line: Line, data: Path) -> None:
    uri = line.upload(data)
    prefix = uri.partition(f"{line.cloud.bucket}/")[2]
    client = line.cloud.client("s3")
    client.delete_object(Bucket=line.cloud.bucket, Key=f"{prefix.rstrip('/')}.complete")
    line.upload(data)
    assert "large" not in line.sent
    # somebody else's object of the same size, in its place
    client.delete_object(Bucket=line.cloud.bucket, Key=f"{prefix.rstrip('/')}.complete")
    line.cloud.put(f"{prefix}inner/large", b"x" * LARGE)
    line.cloud.put(f"{prefix}small-1", b"x" * 100)
    line.upload(data)
    assert sorted(set(line.sent))[:2] == [prefix.split("/")[1] + ".complete", "large"]
    assert "small-1" in line.sent
    assert line.cloud.read(f"{prefix}inner/large") == (data / "inner" / "large").read_bytes()


@pytest.mark.slow
def test_a_file_that_changes_while_it_is_uploaded(
    line: Line, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = S3.put

    def change(self: S3, path: Path, *rest: object) -> None:
        put(self, path, *rest)  # type: ignore[arg-type]
        (data / "small-3").write_text("changed")

    monkeypatch.setattr(S3, "put", change)
    with pytest.raises(ConfigError, match="was changed while it was uploaded"):
        line.upload(data)
    assert [key for key in line.cloud.objects() if key.endswith(".complete")] == []


@pytest.mark.slow
def test_a_single_file_and_links(line: Line, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "deep"
    real.mkdir(parents=True)
    (real / "x").write_text("x")
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / "link").symlink_to(real.parent)
    (directory / "file").symlink_to(real / "x")
    uri = line.upload(directory)
    assert sorted(key.partition(uri.split("/")[-2] + "/")[2] for key in line.cloud.objects())[1:] == [
        "file",
        "link/deep/x",
    ]
    single = line.upload(real / "x")
    assert single.endswith("/x")
    assert line.cloud.read(single.partition(f"{line.cloud.bucket}/")[2]) == b"x"


@pytest.mark.slow
def test_what_is_no_file_is_left_out(line: Line, data: Path) -> None:
    wanted = line.upload(data)
    (data / "dangling").symlink_to("nowhere")
    (data / "inner" / "loop").symlink_to(data)
    os.mkfifo(data / "fifo")
    assert line.upload(data) == wanted


def test_data_that_cannot_be_read_is_named_at_once(
    line: Line, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(datasets, "hash_file", refuse)  # root may read everything
    with pytest.raises(ConfigError) as caught:
        line.upload(data)
    assert f"{data}/small-0: Permission denied" in str(caught.value)
    assert "... and 26 more" in str(caught.value)
    assert line.sent == []


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [True, False])
def test_no_data(line: Line, tmp_path: Path, is_there: bool) -> None:
    directory = tmp_path / "data"
    if is_there:
        (directory / "inner").mkdir(parents=True)
    with pytest.raises(ConfigError, match="which should contain the job's data"):
        line.upload(directory)


def test_missing_data_is_noticed_by_a_dry_run(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    for scheduler in (create_scheduler("test"), create_local_scheduler("test")):
        cfg = {**options(cloud), "channels": {"training": "/no/such/directory"}}
        with pytest.raises(ConfigError, match="there is no file or directory /no/such/directory"):
            scheduler.submit_dryrun(script(script="train.py", image="i:1"), cfg)
        scheduler.close()
    assert cloud.objects() == []

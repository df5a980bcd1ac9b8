"""Input channels: File, FastFile, Pipe; whole or shared out; from S3, from a manifest, from this machine."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import file_channel

if TYPE_CHECKING:
    from .conftest import Bucket, Jobs

TELL = """
def tree(folder):
    return {os.path.relpath(os.path.join(w, n), folder): open(os.path.join(w, n)).read()
            for w, _, names in os.walk(folder) for n in names}
found = {c: tree(f'{BASE}/input/data/{c}') for c in os.listdir(BASE + '/input/data') if c != 'script'}
json.dump(found, open(BASE + f'/model/{HOST}.json', 'w'))
"""


def told(jobs: Jobs, name: str) -> dict[str, dict[str, dict[str, str]]]:
    return {host.removesuffix(".json"): json.loads(data) for host, data in jobs.artifact(name).items()}


def test_file_channels_from_s3(jobs: Jobs, processes: str, bucket: Bucket) -> None:
    bucket.put("data/a.csv", b"a")
    bucket.put("data/deep/b.csv", b"b")
    bucket.put("data/deep/", b"")
    bucket.put("data2/more.csv", b"more")
    bucket.put("parts/part-1", b"1")
    bucket.put("parts/part-2", b"2")
    bucket.put("list", json.dumps([{"prefix": bucket.uri("data/")}, "a.csv", "deep/b.csv"]).encode())
    ended = jobs.run(
        TELL,
        channels=[
            file_channel("folder", bucket.uri("data/")),
            file_channel("prefix", bucket.uri("data")),
            file_channel("one", bucket.uri("data/a.csv")),
            file_channel("parts", bucket.uri("parts/part-")),
            file_channel("listed", bucket.uri("list"), S3DataType="ManifestFile"),
        ],
    )
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    assert told(jobs, ended["TrainingJobName"])["algo-1"] == {
        "folder": {"a.csv": "a", "deep/b.csv": "b"},
        "prefix": {"a.csv": "a", "deep/b.csv": "b", "data2/more.csv": "more"},
        "one": {"a.csv": "a"},
        "parts": {"part-1": "1", "part-2": "2"},
        "listed": {"a.csv": "a", "deep/b.csv": "b"},
    }


@pytest.mark.slow
def test_channels_are_shared_out_and_go_to_their_groups(jobs: Jobs, processes: str, bucket: Bucket) -> None:
    for number in range(5):
        bucket.put(f"data/{number}", str(number).encode())
    groups = [
        {"InstanceGroupName": "one", "InstanceType": "ml.c5.xlarge", "InstanceCount": 2},
        {"InstanceGroupName": "two", "InstanceType": "ml.r5.large", "InstanceCount": 1},
    ]
    ended = jobs.run(
        TELL,
        ResourceConfig={"InstanceGroups": groups, "VolumeSizeInGB": 5},
        channels=[
            file_channel("all", bucket.uri("data"), "ShardedByS3Key", InstanceGroupNames=["one", "two"]),
            file_channel("some", bucket.uri("data"), "ShardedByS3Key", InstanceGroupNames=["one"]),
            file_channel("mine", bucket.uri("data/0"), InstanceGroupNames=["two"]),
        ],
    )
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    assert told(jobs, ended["TrainingJobName"]) == {
        "algo-1": {"all": {"0": "0", "3": "3"}, "some": {"0": "0", "2": "2", "4": "4"}},
        "algo-2": {"all": {"1": "1", "4": "4"}, "some": {"1": "1", "3": "3"}},
        "algo-3": {"all": {"2": "2"}, "mine": {"0": "0"}},
    }


@pytest.mark.slow
def test_every_host_has_its_own_copy(jobs: Jobs, mode: str, tmp_path: Path) -> None:
    """File: what a program does to its data stays with it."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("a")
    script = f"path = BASE + '/input/data/d/a'\nopen(path, 'a').write(HOST)\n{TELL}"
    ended = jobs.run(script, hosts=2, channels=[file_channel("d", data.as_uri())])
    assert told(jobs, ended["TrainingJobName"]) == {
        "algo-1": {"d": {"a": "aalgo-1"}},
        "algo-2": {"d": {"a": "aalgo-2"}},
    }
    assert (data / "a").read_text() == "a"


@pytest.mark.slow
def test_fast_file_cannot_be_written(jobs: Jobs, containers: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("a")
    script = """
try:
    open(BASE + '/input/data/d/a', 'w')
except OSError as error:
    print(error.strerror, open(BASE + '/input/data/d/a').read())
"""
    ended = jobs.run(script, channels=[file_channel("d", data.as_uri(), InputMode="FastFile")])
    assert jobs.lines(ended["TrainingJobName"]) == ["Read-only file system a"]


@pytest.mark.slow
def test_pipes_bring_every_epoch(jobs: Jobs, mode: str, bucket: Bucket) -> None:
    for number in range(3):
        bucket.put(f"data/{number}", str(number).encode() * 70_000)
        bucket.put(f"zipped/{number}", gzip.compress(f"z{number}".encode()))
    script = """
import stat, struct
data = BASE + '/input/data/'
print(stat.S_ISFIFO(os.stat(data + 'plain_0').st_mode), os.path.exists(data + 'plain'))
for epoch in range(3):
    with open(f'{data}plain_{epoch}', 'rb') as pipe:
        text = pipe.read()
    print(epoch, len(text), [text[i] - 48 for i in (0, 70_000, 140_000)])
with open(data + 'plain_3', 'rb') as pipe:
    pipe.read(10)          # enough of this epoch
print(len(open(data + 'plain_4', 'rb').read()))
print(open(data + 'zipped_0', 'rb').read())
with open(data + 'records_0', 'rb') as pipe:
    magic, size = struct.unpack('<II', pipe.read(8))
    print(hex(magic), size, len(pipe.read()))
orders = set()
for epoch in range(8):
    text = open(f'{data}mixed_{epoch}', 'rb').read()
    orders.add(tuple(text[i] - 48 for i in (0, 70_000, 140_000)))
print(len(orders) > 1, all(sorted(order) == [0, 1, 2] for order in orders))
"""
    ended = jobs.run(
        script,
        channels=[
            file_channel("plain", bucket.uri("data"), InputMode="Pipe"),
            file_channel("zipped", bucket.uri("zipped"), InputMode="Pipe", CompressionType="Gzip"),
            file_channel("records", bucket.uri("data/0"), InputMode="Pipe", RecordWrapperType="RecordIO"),
            file_channel("mixed", bucket.uri("data"), InputMode="Pipe", ShuffleConfig={"Seed": 7}),
        ],
    )
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    assert jobs.lines(ended["TrainingJobName"]) == [
        "True False",
        "0 210000 [0, 1, 2]",
        "1 210000 [0, 1, 2]",
        "2 210000 [0, 1, 2]",
        "210000",
        "b'z0z1z2'",
        "0xced7230a 70000 70000",
        "True True",
    ]
    assert struct.calcsize("<II") == 8


@pytest.mark.slow
def test_data_that_are_not_there_fail_the_job(
    jobs: Jobs, processes: str, bucket: Bucket, tmp_path: Path
) -> None:
    for uri, words in (
        (bucket.uri("nothing"), "no object is found for the channel 'd'"),
        ("s3://no-such-bucket-anywhere/x", "NoSuchBucket"),
        (f"file://{tmp_path}/nothing", "There is no file or directory"),
    ):
        ended = jobs.run("print('never')", channels=[file_channel("d", uri)])
        assert ended["TrainingJobStatus"] == "Failed"
        assert ended["FailureReason"].startswith("ClientError: Data download failed: ")
        assert words in ended["FailureReason"]
        assert "TrainingStartTime" not in ended

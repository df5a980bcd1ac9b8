"""Augmented manifests: attributes and objects of each line, through a pipe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import file_channel

if TYPE_CHECKING:
    from .conftest import Bucket, Jobs

LINES = [
    {
        "author": "Melville",
        "image-ref": "",
        "is-a-cat": 1,
        "note": "Call me \u00efshmael",
        "box": [1, {"x": 2}],
    },
    {"image-ref": "", "note": "plain", "is-a-cat": 0, "box": None, "more": "ignored"},
]
READ = """
import struct
def records(path):
    found = []
    with open(path, 'rb') as pipe:
        while head := pipe.read(8):
            magic, size = struct.unpack('<II', head)
            assert magic == 0xCED7230A, hex(magic)
            found.append(pipe.read(size))
            pipe.read(-size % 4)
    return found
data = BASE + '/input/data/'
"""


def augmented(
    name: str, uri: str, attributes: list[str], distribution: str = "FullyReplicated", **more: Any
) -> Any:
    channel = file_channel(
        name, uri, distribution, S3DataType="AugmentedManifestFile", **{"InputMode": "Pipe", **more}
    )
    channel["DataSource"]["S3DataSource"]["AttributeNames"] = attributes
    return channel


def put_manifest(bucket: Bucket) -> str:
    rows = []
    for number, line in enumerate(LINES):
        bucket.put(f"images/{number}", f"image {number}".encode())
        rows.append({**line, "image-ref": bucket.uri(f"images/{number}")})
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    bucket.put("list.jsonl", f"{text}\n\n".encode())
    return bucket.uri("list.jsonl")


@pytest.mark.slow
def test_attributes_come_in_the_order_that_is_asked_for(jobs: Jobs, mode: str, bucket: Bucket) -> None:
    uri = put_manifest(bucket)
    script = f"""{READ}
for epoch in (0, 1):
    print(records(f'{{data}}wrapped_{{epoch}}'))
print(open(data + 'plain_0', 'rb').read())
"""
    ended = jobs.run(
        script,
        channels=[
            augmented("wrapped", uri, ["image-ref", "is-a-cat", "note", "box"], RecordWrapperType="RecordIO"),
            augmented("plain", uri, ["is-a-cat", "image-ref"]),
        ],
    )
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    wrapped = [
        *(b"image 0", b"1", "Call me \u00efshmael".encode(), b'[1, {"x": 2}]'),
        *(b"image 1", b"0", b"plain", b"null"),
    ]
    assert jobs.lines(ended["TrainingJobName"]) == [str(wrapped), str(wrapped), "b'1image 00image 1'"]


@pytest.mark.slow
def test_lines_are_shuffled_whole_and_shared_out(jobs: Jobs, processes: str, bucket: Bucket) -> None:
    """With shuffling, a host gets other lines in other epochs, and all hosts together every line."""
    rows = [{"k": f"k{number}", "v": f"v{number}"} for number in range(8)]
    bucket.put("rows", "\n".join(map(json.dumps, rows)).encode())
    script = f"""{READ}
for epoch in range(6):
    print(json.dumps([record.decode() for record in records(f'{{data}}c_{{epoch}}')]))
"""
    channel = augmented(
        "c",
        bucket.uri("rows"),
        ["v", "k"],
        "ShardedByS3Key",
        RecordWrapperType="RecordIO",
        ShuffleConfig={"Seed": 7},
    )
    ended = jobs.run(script, hosts=2, channels=[channel])
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    name = ended["TrainingJobName"]
    epochs = list(
        zip(*(map(json.loads, jobs.lines(name, host)) for host in ("algo-1", "algo-2")), strict=True)
    )
    assert len(epochs) == 6
    shares = set()
    for first, second in epochs:
        assert len(first) == len(second) == 8
        for records in (first, second):
            assert [v[1:] for v in records[::2]] == [k[1:] for k in records[1::2]]  # lines stay whole
        assert sorted([*first[::2], *second[::2]]) == [f"v{number}" for number in range(8)]
        shares.add(frozenset(first[::2]))
    assert len(shares) > 1
    again = jobs.run(script, hosts=2, channels=[channel])["TrainingJobName"]
    assert jobs.lines(again) == jobs.lines(name)  # the seed decides


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1 of s3://BUCKET/rows is not JSON"),
        ("[1]", "line 1 of s3://BUCKET/rows is not a JSON object"),
        ('{"a-ref": "s3://b/x"}\n{"b": 1}', "line 2 of s3://BUCKET/rows has no attribute 'a-ref'"),
        ('{"a-ref": 3}', "is 3, which is not the URI of an object"),
        ('{"a-ref": "b/x"}', "Cannot use 'b/x'"),
    ],
)
def test_a_manifest_that_is_wrong_fails_the_job_before_it_starts(
    jobs: Jobs, processes: str, bucket: Bucket, text: str, words: str
) -> None:
    bucket.put("rows", text.encode())
    ended = jobs.run("print('never')", channels=[augmented("c", bucket.uri("rows"), ["a-ref"])])
    assert ended["TrainingJobStatus"] == "Failed"
    assert ended["FailureReason"].startswith("ClientError: Data download failed: ")
    assert words.replace("BUCKET", bucket.name) in ended["FailureReason"]
    assert "TrainingStartTime" not in ended


def test_an_object_that_is_missing_fails_the_job_when_its_turn_comes(
    jobs: Jobs, processes: str, bucket: Bucket, tmp_path: Any
) -> None:
    for uri in (bucket.uri("gone"), f"file://{tmp_path}/gone"):
        bucket.put("rows", json.dumps({"a-ref": uri}).encode())
        channel = augmented("c", bucket.uri("rows"), ["a-ref"])
        ended = jobs.run(f"{READ}\nprint(open(data + 'c_0', 'rb').read())", channels=[channel])
        assert ended["TrainingJobStatus"] == "Failed"
        assert f"Cannot fetch {uri}" in ended["FailureReason"]

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
def test_attributes_come_in_the_order_that_is_asked_for(jobs: Jobs, processes: str, bucket: Bucket) -> None:
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

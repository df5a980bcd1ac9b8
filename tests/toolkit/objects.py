"""A moto server with a bucket, and base directories in which nothing has been prepared."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import Tree

if TYPE_CHECKING:
    from pathlib import Path


class Bucket:
    """An empty bucket, the only one of its moto server."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self.env = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret-key",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test-secret-key",
            region_name="us-east-1",
        )
        self.client.create_bucket(Bucket="jobs")

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket="jobs", Key=key, Body=body)

    def get(self, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket="jobs", Key=key)["Body"].read()
        return body

    def keys(self, prefix: str = "") -> list[str]:
        listing = self.client.list_objects_v2(Bucket="jobs", Prefix=prefix)
        return sorted(entry["Key"] for entry in listing.get("Contents", ()))


@pytest.fixture
def bucket(moto: str) -> Bucket:
    urllib.request.urlopen(urllib.request.Request(f"{moto}/moto-api/reset", method="POST")).close()
    return Bucket(moto)


@pytest.fixture
def bare(tmp_path: Path) -> Tree:
    """A base directory in which nothing has been prepared."""
    tree = Tree(tmp_path / "ml")
    for name in ("hyperparameters", "inputdataconfig", "resourceconfig"):
        (tree.base / f"input/config/{name}.json").unlink()
    return tree


def run(tree: Tree, document: dict[str, Any], **env: str) -> subprocess.CompletedProcess[str]:
    return tree.train(SHUNTER_JOB=json.dumps({"program": "train.py", "name": "j1", **document}), **env)

"""A moto server with a bucket, and base directories in which nothing has been prepared."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import Tree, backend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Bucket:
    """A bucket of its own on a moto server of its own."""

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


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    import importlib.util

    backend("moto", importlib.util.find_spec("moto") is not None, "moto[server,s3] is not installed")
    code = (
        "from moto.server import DomainDispatcherApplication, create_backend_app\n"
        "from werkzeug.serving import make_server\n"
        "app = DomainDispatcherApplication(create_backend_app)\n"
        "server = make_server('127.0.0.1', 0, app, threaded=True)\n"
        "print(server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


@pytest.fixture
def bucket(endpoint: str) -> Bucket:
    import urllib.request

    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")).close()
    return Bucket(endpoint)


@pytest.fixture
def bare(tmp_path: Path) -> Tree:
    """A base directory in which nothing has been prepared."""
    tree = Tree(tmp_path / "ml")
    for name in ("hyperparameters", "inputdataconfig", "resourceconfig"):
        (tree.base / f"input/config/{name}.json").unlink()
    return tree


def run(tree: Tree, document: dict[str, Any], **env: str) -> subprocess.CompletedProcess[str]:
    return tree.train(SHUNTER_JOB=json.dumps({"program": "train.py", "name": "j1", **document}), **env)

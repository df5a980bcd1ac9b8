"""Blobs and manifests, against a real registry."""

from __future__ import annotations

import os

import pytest

from shunter.errors import ConfigError
from shunter.image_registry.registry_errors import ContentMismatchError, RegistryError
from tests.registry.images import push_image, sha256
from tests.registry.proxies import http_proxy

MIB = 1 << 20


class Recorder:
    """Progress that is remembered."""

    def __init__(self):
        self.steps, self.sizes = [], []

    def step(self, text):
        self.steps.append(text)

    def advance(self, label, done, total):
        self.sizes.append((label, done, total))

    def output(self, line):
        pass

    def done(self, text):
        self.steps.append(text)


def fetched(client, repo, digest):
    return client.read_blob(repo, digest, 1 << 30)


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 5 * MIB])
def test_blob_of_any_size_comes_back(client, repo, size):
    content = os.urandom(size)
    assert client.upload_blob(repo, content, sha256(content), size) is True
    assert fetched(client, repo, sha256(content)) == content
    assert client.blob_exists(repo, sha256(content))


def test_blob_that_is_there_is_not_sent_again(client, repo):
    content = os.urandom(2 * MIB)
    client.upload_blob(repo, content, sha256(content), len(content))

    def opened():
        raise AssertionError("the content was read")

    assert client.upload_blob(repo, opened, sha256(content), len(content)) is False


def test_relative_locations_are_followed(tmp_path, connect, repo):
    from tests.registry.server import RegistryServer

    server = RegistryServer(tmp_path / "r", {"http": {"relativeurls": True}})
    server.config["http"] |= {"addr": server.host}
    server.start()
    try:
        content = os.urandom(3 * MIB)
        client = connect(server.host)
        client.upload_blob(repo, content, sha256(content), len(content))
        assert fetched(client, repo, sha256(content)) == content
    finally:
        server.stop()


def test_file_that_is_gone_or_cut_is_an_error_that_says_so(client, repo, tmp_path):
    content = os.urandom(2 * MIB)
    with pytest.raises(ConfigError, match=r"cannot read .*/gone"):
        client.upload_blob(repo, tmp_path / "gone", sha256(content), len(content))
    (tmp_path / "cut").write_bytes(content[:MIB])
    with pytest.raises(RegistryError, match="ends at 1,048,576 bytes, but was 2,097,152"):
        client.upload_blob(repo, tmp_path / "cut", sha256(content), len(content))
    assert not client.blob_exists(repo, sha256(content))


@pytest.mark.parametrize("size", [100, 3 * MIB])
def test_content_that_was_changed_is_refused_by_the_registry(client, repo, size):
    content = os.urandom(size)
    with pytest.raises(RegistryError, match="digest"):
        client.upload_blob(repo, bytes(size), sha256(content), size)
    assert not client.blob_exists(repo, sha256(content))


def test_damaged_content_is_noticed(registry, connect, repo):
    client = connect(registry.host)
    push_image(client, repo, "v1", [{"a": b"1"}])
    content = os.urandom(1000)
    client.upload_blob(repo, content, sha256(content), 1000)
    with http_proxy(registry.port) as proxy:
        passed = proxy.passed

        def damaged(request, body):
            status, headers, answer = passed(request, body)
            return status, headers, answer.replace(answer[:1], b"!", 1) if status == 200 else answer

        proxy.passed = damaged
        client = connect(proxy.host)
        with pytest.raises(ContentMismatchError, match="does not match its digest"):
            fetched(client, repo, sha256(content))
        with pytest.raises(ContentMismatchError, match="sent a manifest whose content does not match"):
            client.manifest(repo, "v1")


def test_blob_that_is_longer_than_it_may_be(client, repo):
    content = bytes(3 * MIB)
    client.upload_blob(repo, content, sha256(content), len(content))
    with pytest.raises(RegistryError, match="has more than 1 MiB"):
        client.read_blob(repo, sha256(content), MIB)

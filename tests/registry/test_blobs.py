"""Blobs and manifests, against a real registry."""

from __future__ import annotations

import os

import pytest

from shunter.errors import ConfigError
from shunter.image_registry.image_manifest import DOCKER_MANIFEST, OCI_MANIFEST
from shunter.image_registry.registry_errors import ContentMismatchError, RegistryError
from tests.registry.conftest import LOGIN
from tests.registry.images import push_image, sha256
from tests.registry.proxies import Fault, http_proxy

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


def fetched(client, repo, digest, offset=0):
    with client.open_blob(repo, digest, offset) as stream:
        return b"".join(iter(stream.read, b""))


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 5 * MIB])
def test_blob_of_any_size_comes_back(client, repo, size):
    content = os.urandom(size)
    assert client.upload_blob(repo, content, sha256(content), size, chunk_size=2 * MIB) is True
    assert fetched(client, repo, sha256(content)) == content
    assert client.blob_exists(repo, sha256(content))


def test_blob_that_is_there_is_not_sent_again(client, repo):
    content = os.urandom(2 * MIB)
    client.upload_blob(repo, content, sha256(content), len(content))

    def opened(_):
        raise AssertionError("the content was read")

    assert client.upload_blob(repo, opened, sha256(content), len(content)) is False


def test_big_blob_goes_in_pieces_that_say_where_they_belong(registry, connect, repo):
    content = os.urandom(5 * MIB)
    with http_proxy(registry.port) as proxy:
        client = connect(proxy.host)
        client.upload_blob(repo, content, sha256(content), len(content), chunk_size=2 * MIB)
        ranges = [seen.headers.get("Content-Range") for seen in proxy.of("PATCH")]
        assert ranges == ["0-2097151", "2097152-4194303", "4194304-5242879"]
        lengths = [int(seen.headers["Content-Length"]) for seen in proxy.of("PATCH")]
        assert lengths == [2 * MIB, 2 * MIB, MIB]
    assert fetched(connect(registry.host), repo, sha256(content)) == content


def test_registry_that_wants_bigger_pieces_gets_them(registry, connect, repo):
    content = os.urandom(5 * MIB)
    with http_proxy(registry.port) as proxy:
        passed = proxy.passed

        def with_header(request, body):
            status, headers, answer = passed(request, body)
            return status, {**headers, "OCI-Chunk-Min-Length": str(4 * MIB)}, answer

        proxy.passed = with_header
        connect(proxy.host).upload_blob(repo, content, sha256(content), len(content), chunk_size=MIB)
        assert [seen.headers["Content-Length"] for seen in proxy.of("PATCH")] == [str(4 * MIB), str(MIB)]


def test_small_blob_takes_two_requests_after_the_question(registry, connect, repo):
    with http_proxy(registry.port) as proxy:
        client = connect(proxy.host)
        client.upload_blob(repo, b"first", sha256(b"first"), 5)
        proxy.seen.clear()
        client.upload_blob(repo, b"small", sha256(b"small"), 5)
        assert [seen.method for seen in proxy.seen] == ["HEAD", "POST", "PUT"]


def test_relative_locations_are_followed(tmp_path, connect, repo):
    from tests.registry.server import RegistryServer

    server = RegistryServer(tmp_path / "r", {"http": {"relativeurls": True}})
    server.config["http"] |= {"addr": server.host}
    server.start()
    try:
        content = os.urandom(3 * MIB)
        client = connect(server.host)
        client.upload_blob(repo, content, sha256(content), len(content), chunk_size=MIB)
        assert fetched(client, repo, sha256(content)) == content
    finally:
        server.stop()


def test_file_is_uploaded_with_progress(client, repo, tmp_path):
    content = os.urandom(3 * MIB)
    path = tmp_path / "layer"
    path.write_bytes(content)
    progress = Recorder()
    client.upload_blob(repo, path, sha256(content), len(content), progress, label="workspace")
    assert {(label, total) for label, _, total in progress.sizes} == {("workspace", 3 * MIB)}
    done = [done for _, done, _ in progress.sizes]
    assert done == sorted(done)
    assert done[-1] == 3 * MIB
    assert len(done) > 5


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


def test_blob_is_mounted_from_another_repository(client, repo):
    content = os.urandom(100)
    client.upload_blob(repo, content, sha256(content), len(content))
    assert not client.upload_blob(f"{repo}-2", content, sha256(content), len(content), mount_from=repo)
    assert fetched(client, f"{repo}-2", sha256(content)) == content
    assert client.upload_blob(f"{repo}-3", b"other", sha256(b"other"), 5, mount_from=repo)


def test_blob_is_read_from_an_offset(client, repo):
    content = os.urandom(100_000)
    client.upload_blob(repo, content, sha256(content), len(content))
    assert fetched(client, repo, sha256(content), 99_000) == content[99_000:]


def test_offset_where_the_registry_has_no_ranges(registry, connect, repo):
    content = os.urandom(100_000)
    with http_proxy(registry.port) as proxy:
        client = connect(proxy.host)
        client.upload_blob(repo, content, sha256(content), len(content))
        proxy.rule = lambda request, _: Fault(200, {}, content) if request.method == "GET" else None
        assert fetched(client, repo, sha256(content), 99_000) == content[99_000:]


def test_absent_blob(client, repo):
    with (
        pytest.raises(RegistryError, match="it has no blob sha256:"),
        client.open_blob(repo, sha256(b"x")) as blob,
    ):
        blob.read(1)


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


@pytest.mark.parametrize(("kind", "media_type"), [("docker", DOCKER_MANIFEST), ("oci", OCI_MANIFEST)])
def test_manifest_of_either_kind(client, repo, kind, media_type):
    digest = push_image(client, repo, "v1", [{"a": b"1"}], kind=kind)
    for selector in ("v1", digest):
        found = client.manifest(repo, selector)
        assert (found.digest, found.media_type, sha256(found.body)) == (digest, media_type, digest)
        assert client.manifest_digest(repo, selector) == digest


def test_digest_where_the_registry_does_not_name_it(registry, connect, repo):
    digest = push_image(connect(registry.host), repo, "v1", [{"a": b"1"}])
    with http_proxy(registry.port) as proxy:
        passed = proxy.passed

        def without(request, body):
            status, headers, answer = passed(request, body)
            return status, {k: v for k, v in headers.items() if k != "Docker-Content-Digest"}, answer

        proxy.passed = without
        assert connect(proxy.host).manifest_digest(repo, "v1") == digest


def test_absent_manifest_and_repository(client, repo):
    push_image(client, repo, "v1", [{"a": b"1"}])
    assert client.manifest(repo, "v2") is None
    assert client.manifest_digest(repo, "v2") is None
    assert client.manifest(f"{repo}-none", "v1") is None


def test_manifest_whose_blobs_are_missing_is_refused(registry, client, repo):
    body = (
        b'{"schemaVersion":2,"mediaType":"%s","config":{"mediaType":"x","digest":"%s","size":1},"layers":[]}'
        % (
            OCI_MANIFEST.encode(),
            sha256(b"gone").encode(),
        )
    )
    with pytest.raises(RegistryError, match=r"cannot push to .*: the registry answered 40"):
        client.put_manifest(repo, "v1", body, OCI_MANIFEST)
    assert registry.tags(repo) == []


def test_connections_are_kept(registry, connect, repo):
    """A push is many small requests: over a new connection each they would take twice as long."""
    client = connect(registry.host, LOGIN)
    before = len(_ports(registry))
    for number in range(10):
        content = str(number).encode()
        client.upload_blob(repo, content, sha256(content), len(content))
    assert len(_ports(registry)) - before <= 2


def _ports(registry):
    import re

    return set(re.findall(r"remoteaddr=\"(127\.0\.0\.1:\d+)\"", registry.log))

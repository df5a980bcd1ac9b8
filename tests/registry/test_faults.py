"""Registries that die and fill up, and networks that break. Time is a fake one."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from shunter.image_registry.registry_errors import RegistryError, RegistryUnavailableError
from tests.registry.images import append_layer, layer_file, push_image, sha256, with_layer
from tests.registry.proxies import FakeTime, Fault, cutting_proxy, http_proxy
from tests.registry.server import RegistryServer, htpasswd
from tests.registry.test_append import ref
from tests.registry.test_blobs import Recorder, fetched

MIB = 1 << 20


@pytest.fixture
def own(tmp_path):
    """A registry that a test may kill."""
    folder = tmp_path / "own"
    server = RegistryServer(folder, htpasswd(folder)).start()
    yield server
    server.stop()


# The registry dies


def test_registry_that_dies_in_mid_upload_and_comes_back(own, connect, repo):
    content = os.urandom(8 * MIB)

    class Killing(Recorder):
        def advance(self, label, done, total):
            super().advance(label, done, total)
            if done >= 4 * MIB and len(self.sizes) < 100:
                own.kill()
                self.sizes += 100 * [None]

    time = FakeTime(own.revive)
    progress = Killing()
    client = connect(own.host, clock=time, progress=progress)
    assert client.upload_blob(repo, content, sha256(content), len(content), progress)
    assert None in progress.sizes
    assert fetched(connect(own.host), repo, sha256(content)) == content
    assert any(step.startswith(f"waiting for {own.host}: ") for step in progress.steps)


@pytest.mark.slow
def test_registry_that_dies_at_every_request_of_a_push(own, connect, repo, tmp_path):
    """Whichever request it is that the registry dies at, the image is right in the end."""
    push_image(connect(own.host), repo, "base", [{"a": os.urandom(MIB)}])
    time = FakeTime(own.revive)
    number = 0
    while True:
        number += 1
        layer = layer_file(tmp_path, {"x": os.urandom(2 * MIB)}, f"layer{number}")
        died = []

        def die(seen, count, number=number, died=died):
            if count == number:
                own.kill()
                died.append(seen)
            return Fault(502) if own.process is None else None

        with http_proxy(own.port, die) as proxy:
            make = lambda host: connect(host, clock=time)  # noqa: E731
            pinned = append_layer(
                ref(proxy, repo, "base"),
                ref(proxy, f"{repo}-{number}"),
                [layer],
                with_layer(layer),
                clients=make,
            )
        if not died:
            break
        found = connect(own.host).manifest(f"{repo}-{number}", "v1")
        assert found.digest == pinned.partition("@")[2]
        client = connect(own.host)
        assert len(fetched(client, f"{repo}-{number}", layer.digest)) == layer.size
    assert number > 10


def test_registry_that_stays_away_is_given_up(own, connect, repo, tmp_path):
    push_image(connect(own.host), repo, "base", [{"a": b"1"}])
    layer = layer_file(tmp_path, {"x": os.urandom(2 * MIB)})
    time = FakeTime()
    own_kill = lambda seen, _: own.kill() if seen.method == "PUT" else None  # noqa: E731
    with http_proxy(own.port, own_kill) as proxy:
        proxy.passed = _or_gateway_error(proxy)
        make = lambda host: connect(host, clock=time, patience=90)  # noqa: E731
        with pytest.raises(RegistryUnavailableError) as caught:
            append_layer(
                ref(proxy, repo, "base"), ref(proxy, repo, "job"), [layer], with_layer(layer), clients=make
            )
    assert (
        f"cannot push to {proxy.host}/{repo}: the registry answered 502 (tried for " in caught.value.message
    )
    assert f"curl -I http://{proxy.host}/v2/" in caught.value.hint
    assert 80 <= sum(time.slept) <= 90
    own.start()
    assert own.tags(repo) == ["base"]


def _or_gateway_error(proxy):
    passed = proxy.passed

    def tried(request, body):
        try:
            return passed(request, body)
        except OSError:
            return 502, {}, b""

    return tried


def test_host_that_does_not_exist_is_not_waited_for(connect, repo, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    time = FakeTime()
    with pytest.raises(RegistryUnavailableError, match="there is no host of this name"):
        connect("registry.invalid", clock=time).manifest(repo, "v1")
    assert time.slept == []


# The disk is full


@pytest.fixture
def small_disk(tmp_path):
    """A file system of four megabytes."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "shunter-test", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_registry_whose_disk_is_full(small_disk, tmp_path, connect, repo):
    server = RegistryServer(tmp_path / "own", storage=small_disk).start()
    try:
        push_image(connect(server.host), repo, "base", [{"a": b"1"}])
        layer = layer_file(tmp_path, {"x": os.urandom(8 * MIB)})
        time = FakeTime()
        make = lambda host: connect(host, clock=time)  # noqa: E731
        with pytest.raises(RegistryError, match=r"cannot push to .*no space left") as caught:
            append_layer(
                ref(server, repo, "base"), ref(server, repo, "job"), [layer], with_layer(layer), clients=make
            )
        assert "Free space" in caught.value.hint
        assert sum(time.slept) <= 120
        assert server.tags(repo) == ["base"]
    finally:
        server.stop()


# The network breaks


@pytest.mark.parametrize("cuts", [[100], [300_000], [3 * MIB], [MIB, 2 * MIB, 3 * MIB, 100]])
def test_upload_goes_on_after_broken_connections(registry, connect, repo, cuts):
    content = os.urandom(6 * MIB)
    with cutting_proxy(registry.port, cuts) as proxy:
        time = FakeTime()
        client = connect(proxy.host, clock=time)
        assert client.upload_blob(repo, content, sha256(content), len(content))
        assert proxy.broken == len(cuts)
    assert fetched(connect(registry.host), repo, sha256(content)) == content


@pytest.mark.parametrize("cuts", [[1000], [MIB, 2 * MIB], [5 * MIB]])
def test_download_goes_on_after_broken_connections(registry, connect, repo, cuts):
    content = os.urandom(6 * MIB)
    connect(registry.host).upload_blob(repo, content, sha256(content), len(content))
    with cutting_proxy(registry.port, cuts, downwards=True) as proxy:
        time = FakeTime()
        client = connect(proxy.host, clock=time)
        assert fetched(client, repo, sha256(content)) == content
        assert proxy.broken == len(cuts)


def test_answer_that_is_lost_after_the_blob_was_stored(registry, connect, repo):
    """The registry has it, and we do not know: no second upload, no error."""
    content = os.urandom(3 * MIB)
    lost = []

    def lose(seen, _):
        if seen.method == "PUT" and not lost:
            lost.append(seen)
            return Fault(504, late=True)
        return None

    with http_proxy(registry.port, lose) as proxy:
        client = connect(proxy.host, clock=FakeTime())
        client.upload_blob(repo, content, sha256(content), len(content))
        assert len(proxy.of("PUT")) == 1
    assert fetched(connect(registry.host), repo, sha256(content)) == content

"""Registries that die, fill up and stumble, and networks that break. Time is a fake one."""

from __future__ import annotations

import io
import os
import socket
import subprocess

import pytest

from tests.registry.conftest import LOGIN
from tests.registry.images import layer_file, push_image, sha256, with_layer
from tests.registry.proxies import FakeTime, Fault, cutting_proxy, http_proxy
from tests.registry.server import RegistryServer, free_port, htpasswd
from tests.registry.test_append import ref
from tests.registry.test_blobs import Recorder, fetched
from trainyard.workspace.registry import RegistryError, RegistryUnavailableError, append_layer
from trainyard.workspace.registry.patience import Patience, retry_after

MIB = 1 << 20


@pytest.fixture
def own(tmp_path):
    """A registry that a test may kill."""
    folder = tmp_path / "own"
    server = RegistryServer(folder, htpasswd(folder)).start()
    yield server
    server.stop()


class Trap:
    """A source that does something once, when it has been read up to a byte."""

    def __init__(self, content, at, action):
        self.content, self.at, self.action = content, at, action
        self.opened = []

    def __call__(self, offset):
        self.opened.append(offset)
        trap = self

        class Stream(io.BytesIO):
            def read(self, size=-1, /):
                if trap.action is not None and self.tell() + offset >= trap.at:
                    action, trap.action = trap.action, None
                    action()
                return super().read(size)

        return Stream(self.content[offset:])


# The registry dies


def test_registry_that_dies_in_mid_upload_and_comes_back(own, connect, repo):
    content = os.urandom(8 * MIB)
    source = Trap(content, 5 * MIB, own.kill)
    time = FakeTime(own.revive)
    progress = Recorder()
    client = connect(own.host, pause=time.patience(), progress=progress)
    assert client.upload_blob(repo, source, sha256(content), len(content), chunk_size=2 * MIB)
    assert source.action is None
    assert fetched(connect(own.host), repo, sha256(content)) == content
    # what had arrived was not sent again
    assert source.opened[0] == 0
    assert all(offset >= 4 * MIB for offset in source.opened[1:])
    assert len(source.opened) == 2
    assert any(step.startswith(f"waiting for {own.host}: ") for step in progress.steps)


def test_registry_that_forgets_uploads_when_it_dies(tmp_path, connect, repo):
    """Without a secret in its configuration a registry does not know its own uploads after a restart."""
    server = RegistryServer(tmp_path / "own", secret="").start()
    try:
        content = os.urandom(8 * MIB)
        source = Trap(content, 5 * MIB, server.kill)
        time = FakeTime(server.revive)
        client = connect(server.host, pause=time.patience())
        assert client.upload_blob(repo, source, sha256(content), len(content), chunk_size=2 * MIB)
        assert fetched(connect(server.host), repo, sha256(content)) == content
        assert source.opened.count(0) == 2
    finally:
        server.stop()


def test_registry_that_dies_and_loses_what_it_had(own, connect, repo):
    import shutil

    content = os.urandom(8 * MIB)

    def lose():
        own.kill()
        shutil.rmtree(own.data)

    source = Trap(content, 5 * MIB, lose)
    time = FakeTime(own.revive)
    client = connect(own.host, pause=time.patience())
    assert client.upload_blob(repo, source, sha256(content), len(content), chunk_size=2 * MIB)
    assert fetched(connect(own.host), repo, sha256(content)) == content


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
            make = lambda host: connect(host, pause=time.patience())  # noqa: E731
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
    own_kill = lambda seen, _: own.kill() if seen.method == "PATCH" else None  # noqa: E731
    with http_proxy(own.port, own_kill) as proxy:
        proxy.passed = _or_gateway_error(proxy)
        make = lambda host: connect(host, pause=time.patience(90))  # noqa: E731
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


def test_connection_refused_at_once_is_given_up_sooner(connect, repo):
    """A registry that never answered is rather mistyped."""
    time = FakeTime()
    host = f"127.0.0.1:{free_port()}"
    with pytest.raises(RegistryUnavailableError, match=f"cannot pull from {host}/{repo}: connection refused"):
        connect(host, pause=time.patience()).manifest(repo, "v1")
    assert 10 <= sum(time.slept) <= 15


def test_registry_that_comes_up_late_is_waited_for(own, connect, repo):
    push_image(connect(own.host), repo, "v1", [{"a": b"1"}])
    own.kill()
    time = FakeTime(lambda: len(time.slept) > 2 and own.revive())
    assert connect(own.host, pause=time.patience()).manifest(repo, "v1") is not None
    assert time.slept == [0.5, 1.0, 2.0]


def test_host_that_does_not_exist_is_not_waited_for(connect, repo, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    time = FakeTime()
    with pytest.raises(RegistryUnavailableError, match="there is no host of this name"):
        connect("registry.invalid", pause=time.patience()).manifest(repo, "v1")
    assert time.slept == []


def test_registry_that_does_not_answer_in_time_is_asked_again(connect, repo, monkeypatch):
    monkeypatch.setattr("trainyard.workspace.registry.transport.SILENCE", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        time = FakeTime()
        client = connect(f"127.0.0.1:{silent.getsockname()[1]}", pause=time.patience(3))
        with pytest.raises(RegistryUnavailableError, match="no answer in time"):
            client.manifest(repo, "v1")
        assert len(time.slept) > 1


# The disk is full


@pytest.fixture
def small_disk(tmp_path):
    """A file system of four megabytes."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "trainyard-test", str(path)]
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
        make = lambda host: connect(host, pause=time.patience())  # noqa: E731
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
        client = connect(proxy.host, pause=time.patience())
        assert client.upload_blob(repo, content, sha256(content), len(content), chunk_size=4 * MIB)
        assert proxy.broken == len(cuts)
    assert fetched(connect(registry.host), repo, sha256(content)) == content


@pytest.mark.parametrize("cuts", [[1000], [MIB, 2 * MIB], [5 * MIB]])
def test_download_goes_on_after_broken_connections(registry, connect, repo, cuts):
    content = os.urandom(6 * MIB)
    connect(registry.host).upload_blob(repo, content, sha256(content), len(content))
    with cutting_proxy(registry.port, cuts, downwards=True) as proxy:
        time = FakeTime()
        client = connect(proxy.host, pause=time.patience())
        assert fetched(client, repo, sha256(content)) == content
        assert proxy.broken == len(cuts)


def test_base_goes_across_although_both_connections_break(own, registry, connect, repo, tmp_path):
    big = os.urandom(6 * MIB)
    push_image(connect(registry.host), repo, "base", [{"big": big}])
    layer = layer_file(tmp_path, {"x": b"1"})
    with (
        cutting_proxy(registry.port, [MIB, 3 * MIB], downwards=True) as far,
        cutting_proxy(own.port, [2 * MIB]) as near,
    ):
        make = lambda host: connect(host, pause=FakeTime().patience())  # noqa: E731
        append_layer(ref(far, repo, "base"), ref(near, repo, "job"), [layer], with_layer(layer), clients=make)
        assert far.broken + near.broken == 3
    assert own.tags(repo) == ["job"]


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
        client = connect(proxy.host, pause=FakeTime().patience())
        client.upload_blob(repo, content, sha256(content), len(content), chunk_size=MIB)
        assert len(proxy.of("PATCH")) == 3
    assert fetched(connect(registry.host), repo, sha256(content)) == content


# The registry stumbles


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@pytest.mark.parametrize("method", ["HEAD", "POST", "PATCH", "PUT"])
def test_stumbling_registry_is_asked_again(registry, connect, repo, status, method):
    content = os.urandom(2 * MIB)
    stumbled = []

    def stumble(seen, _):
        if seen.method == method and len(stumbled) < 2:
            stumbled.append(seen)
            return Fault(status)
        return None

    with http_proxy(registry.port, stumble) as proxy:
        time = FakeTime()
        client = connect(proxy.host, pause=time.patience())
        assert client.upload_blob(repo, content, sha256(content), len(content), chunk_size=MIB)
        assert len(time.slept) == 2
    assert fetched(connect(registry.host), repo, sha256(content)) == content


def test_registry_says_when_to_come_back(registry, connect, repo):
    push_image(connect(registry.host), repo, "v1", [{"a": b"1"}])
    late = lambda seen, count: Fault(429, {"Retry-After": "37"}) if count == 2 else None  # noqa: E731
    with http_proxy(registry.port, late) as proxy:
        time = FakeTime()
        connect(proxy.host, pause=time.patience()).manifest(repo, "v1")
        assert time.slept == [37.0]


def test_registry_that_wants_more_patience_than_there_is(registry, connect, repo):
    busy = Fault(
        429, {"Retry-After": "3600"}, b'{"errors":[{"code":"TOOMANYREQUESTS","message":"pull rate limit"}]}'
    )
    with http_proxy(registry.port, lambda seen, _: None if seen.path == "/v2/" else busy) as proxy:
        time = FakeTime()
        with pytest.raises(RegistryUnavailableError, match="answered 429: pull rate limit") as caught:
            connect(proxy.host, pause=time.patience()).manifest(repo, "v1")
        assert time.slept == []
        assert caught.value.status == 429


def test_registry_that_never_finishes_uploads(registry, connect, repo):
    """Pieces that arrive are progress, but the same pieces again are not."""
    content = os.urandom(3 * MIB)
    with http_proxy(registry.port, lambda seen, _: Fault(500) if seen.method == "PUT" else None) as proxy:
        time = FakeTime()
        with pytest.raises(RegistryUnavailableError, match="the registry answered 500"):
            connect(proxy.host, pause=time.patience(60)).upload_blob(
                repo, content, sha256(content), len(content), chunk_size=MIB
            )
        assert sum(time.slept) <= 60


def test_limit_on_the_size_of_requests_makes_pieces_smaller(registry, connect, repo):
    content = os.urandom(10 * MIB)

    def limit(seen, _):
        return Fault(413) if int(seen.headers.get("Content-Length") or 0) > 3 * MIB else None

    with http_proxy(registry.port, limit) as proxy:
        assert connect(proxy.host).upload_blob(repo, content, sha256(content), len(content))
    assert fetched(connect(registry.host), repo, sha256(content)) == content
    with http_proxy(registry.port, lambda seen, _: Fault(413) if seen.method == "PATCH" else None) as proxy:
        other = os.urandom(10 * MIB)
        with pytest.raises(RegistryError, match="takes no body of this size") as caught:
            connect(proxy.host).upload_blob(repo, other, sha256(other), len(other))
        assert "client_max_body_size" in caught.value.hint


def test_registry_that_takes_no_pieces_gets_the_whole(registry, connect, repo):
    content = os.urandom(5 * MIB)
    whole = lambda seen, _: Fault(416) if "Content-Range" in seen.headers else None  # noqa: E731
    with http_proxy(registry.port, whole) as proxy:
        assert connect(proxy.host).upload_blob(
            repo, content, sha256(content), len(content), chunk_size=2 * MIB
        )
        assert proxy.of("PATCH")[-1].headers["Content-Length"] == str(5 * MIB)
    assert fetched(connect(registry.host), repo, sha256(content)) == content


# Refusals


def _error(code, message="no"):
    return b'{"errors":[{"code":"%s","message":"%s"}]}' % (code.encode(), message.encode())


ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("host", "status", "body", "message", "hint"),
    [
        (
            ECR,
            404,
            _error("NAME_UNKNOWN"),
            "there is no such repository",
            "aws ecr create-repository --region eu-west-1",
        ),
        (ECR, 403, _error("DENIED"), "does not let the user 'builder'", "ecr:InitiateLayerUpload"),
        (
            "r.example",
            404,
            _error("NAME_UNKNOWN"),
            "there is no such repository: no",
            "Create the repository first",
        ),
        (
            "r.example",
            403,
            _error("DENIED", "quota"),
            "does not let the user .*: quota",
            "docker login r.example",
        ),
        ("r.example", 405, b"", "does not support it", "read-only mirror"),
        ("r.example", 418, b"<html>", "the registry answered 418$", ""),
        ("r.example", 400, _error("X", "\\u001b[31mred"), r"\\x1b\[31mred", ""),
    ],
)
def test_refusals_say_what_to_do(host, status, body, message, hint, connect):
    from trainyard.workspace.registry.refusals import Purpose, refusal

    client = connect(host, LOGIN)
    client._auth._credentials = LOGIN
    error = refusal(Purpose("push", host, "team/x"), status, body, client._auth)
    with pytest.raises(RegistryError, match=message) as caught:
        raise error
    assert f"cannot push to {host}/team/x: " in error.message
    assert hint in caught.value.hint
    assert error.exit_code == 4


# Patience


def test_pauses_grow_and_end():
    time = FakeTime()
    patience = time.patience(30)
    while patience.pause():
        pass
    assert time.slept == [0.5, 1, 2, 4, 8, 10, 4.5]


def test_progress_makes_patience_new():
    time = FakeTime()
    patience = time.patience(2)
    assert patience.pause()
    assert patience.pause()
    patience.progressed()
    assert patience.pause()
    assert time.slept[-1] == 0.5


def test_pauses_differ_between_clients():
    slept = []
    for value in (0.0, 1.0):
        patience = Patience(10, slept.append, lambda: 0.0, lambda value=value: value)
        patience.pause()
    assert slept == [0.25, 0.5]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        (" 5 ", 5),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0),
        ("soon", 0),
        ("-5", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_retry_after(value, seconds):
    assert retry_after(value, now=10.0) == seconds

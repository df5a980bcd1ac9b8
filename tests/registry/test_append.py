"""`append_layer` against real registries."""

from __future__ import annotations

import json
import os

import pytest

from shunter.docker.image_reference import Reference
from shunter.errors import ConfigError
from shunter.image_registry.image_manifest import own_platform
from shunter.image_registry.registry_errors import RegistryAuthError
from tests.registry.conftest import LOGIN
from tests.registry.images import append_layer, layer_file, push_image, push_index, with_layer
from tests.registry.proxies import Fault, http_proxy
from tests.registry.server import PASSWORD, USER, RegistryServer, docker_config, htpasswd
from tests.registry.test_blobs import Recorder

KINDS = ["docker", "oci"]


def ref(registry, repo, tag="v1"):
    return Reference.parse(f"{registry.host}/{repo}:{tag}")


@pytest.fixture
def layer(tmp_path):
    return layer_file(tmp_path, {"work/train": b"#!/bin/sh\necho trained here\n"})


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """Another registry."""
    folder = tmp_path_factory.mktemp("second")
    server = RegistryServer(folder, htpasswd(folder)).start()
    yield server
    server.stop()


@pytest.fixture
def both(logged_in, second, tmp_path, monkeypatch):
    """Two registries, with DOCKER_CONFIG logged in to both."""
    config = docker_config(tmp_path / "both", second.host)
    path = config / "config.json"
    auths = json.loads(path.read_text())["auths"]
    path.write_text(json.dumps({"auths": {**auths, logged_in.host: auths[second.host]}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    return logged_in, second


def pulled(client, reference):
    reference = Reference.parse(reference)
    found = client.manifest(reference.repository, reference.selector)
    document = json.loads(found.body)
    config = client.read_blob(reference.repository, document["config"]["digest"], 1 << 20)
    return found, document, json.loads(config)


@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_the_base_is_kept(logged_in, client, repo, layer, kind):
    base = push_image(client, repo, "base", [{"a": b"1"}, {"b": b"2"}], kind=kind)
    pinned = append_layer(
        ref(logged_in, repo, "base"), ref(logged_in, f"{repo}-job"), [layer], with_layer(layer)
    )
    found, document, config = pulled(client, pinned)
    before = json.loads(client.manifest(repo, "base").body)
    assert pinned == f"{logged_in.host}/{repo}-job@{found.digest}"
    assert found.media_type == document["mediaType"] == before["mediaType"]
    assert document["config"]["mediaType"] == before["config"]["mediaType"]
    assert document["layers"][:-1] == before["layers"]
    assert document["layers"][-1] == {
        "mediaType": before["layers"][0]["mediaType"],
        "digest": layer.digest,
        "size": layer.size,
    }
    assert config["rootfs"]["diff_ids"][-1] == layer.diff_id
    assert client.manifest(f"{repo}-job", "v1").digest == found.digest
    names = {"org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"}
    if kind == "oci":
        assert document["annotations"] == dict(
            zip(sorted(names), [base, f"{logged_in.host}/{repo}:base"], strict=True)
        )
    else:
        assert "annotations" not in document


def test_base_of_the_same_registry_is_mounted_and_never_sent(registry, connect, logged_in, repo, layer):
    push_image(connect(registry.host), repo, "base", [{"big": os.urandom(3 << 20)}])
    with http_proxy(registry.port) as proxy:
        make = lambda host: connect(host)  # noqa: E731
        append_layer(
            ref(proxy, repo, "base"), ref(proxy, f"{repo}-job"), [layer], with_layer(layer), clients=make
        )
        sent = sum(int(seen.headers.get("Content-Length") or 0) for seen in proxy.seen)
        assert len(proxy.of("POST", f"from={repo.replace('/', '%2F')}")) == 1
        assert sent < 20_000


def test_registry_that_does_not_mount_gets_a_copy(registry, connect, repo, layer):
    big = os.urandom(3 << 20)
    push_image(connect(registry.host), repo, "base", [{"big": big}])
    with http_proxy(registry.port, lambda seen, _: Fault(405) if "mount=" in seen.path else None) as proxy:
        pinned = append_layer(
            ref(proxy, repo, "base"), ref(proxy, f"{repo}-job"), [layer], with_layer(layer), clients=connect
        )
        assert proxy.of("POST", "mount=")
    assert len(pulled(connect(registry.host), pinned)[1]["layers"]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_base_of_another_registry_is_streamed_across(both, connect, repo, layer, kind):
    near, far = both
    files = [{f"f{number}": os.urandom(2 << 20)} for number in range(6)]
    push_image(connect(far.host), repo, "base", files, kind=kind)
    progress = Recorder()
    pinned = append_layer(
        ref(far, repo, "base"), ref(near, f"{repo}-job"), [layer], with_layer(layer), progress=progress
    )
    client = connect(near.host)
    document = pulled(client, pinned)[1]
    assert len(document["layers"]) == 7
    for descriptor in document["layers"]:
        assert len(client.read_blob(f"{repo}-job", descriptor["digest"], 4 << 20)) == descriptor["size"]
    assert len({label for label, _, _ in progress.sizes}) >= 7
    assert progress.steps[-1] == f"pushed {pinned}"


def test_second_push_sends_nothing_of_the_base(both, connect, repo, tmp_path, layer):
    near, far = both
    push_image(connect(far.host), repo, "base", [{"big": os.urandom(2 << 20)}])
    base, target = ref(far, repo, "base"), ref(near, f"{repo}-job")
    first = append_layer(base, target, [layer], with_layer(layer))
    with http_proxy(near.port) as proxy:
        again = append_layer(base, ref(proxy, f"{repo}-job"), [layer], with_layer(layer), clients=connect)
        assert [seen.method for seen in proxy.seen if seen.method not in ("HEAD", "GET")] == ["PUT"]
        other = layer_file(tmp_path, {"work/train": b"changed"}, "other")
        append_layer(base, ref(proxy, f"{repo}-job"), [other], with_layer(other), clients=connect)
    assert again.partition("@")[2] == first.partition("@")[2]


def test_platform_is_chosen_from_a_list(logged_in, client, repo, layer):
    own = own_platform()
    digests = {
        "linux/s390x": push_image(client, repo, "z", [{"a": b"z"}], kind="oci", platform="linux/s390x"),
        own: push_image(client, repo, "own", [{"a": b"own"}], kind="oci"),
        "unknown/unknown": push_image(client, repo, "att", [{"a": b"att"}], kind="oci"),
    }
    index = push_index(client, repo, "multi", digests)
    base, target = ref(logged_in, repo, "multi"), ref(logged_in, repo, "job")
    document = pulled(client, append_layer(base, target, [layer], with_layer(layer)))[1]
    own_layers = json.loads(client.manifest(repo, "own").body)["layers"]
    assert document["layers"][0] == own_layers[0]
    assert document["annotations"]["org.opencontainers.image.base.digest"] == index
    other = pulled(client, append_layer(base, target, [layer], with_layer(layer), "linux/s390x"))[2]
    assert other["architecture"] == "s390x"
    with pytest.raises(ConfigError, match=f"not available for linux/mips, only for {own}, linux/s390x\n"):
        append_layer(base, target, [layer], with_layer(layer), "linux/mips")


def test_base_is_not_replaced_by_its_own_offspring(logged_in, client, repo, layer):
    before = push_image(client, repo, "v1", [{"a": b"1"}])
    with pytest.raises(ConfigError, match="would be replaced"):
        append_layer(ref(logged_in, repo), ref(logged_in, repo), [layer], with_layer(layer))
    assert client.manifest(repo, "v1").digest == before


def test_absent_base(logged_in, client, repo, layer):
    with pytest.raises(ConfigError, match=f"there is no image {logged_in.host}/{repo}:v1 in its registry"):
        append_layer(ref(logged_in, repo), ref(logged_in, repo, "job"), [layer], with_layer(layer))
    assert logged_in.tags(repo) == []


@pytest.mark.slow
def test_first_failure_ends_the_other_uploads(both, connect, repo, layer):
    near, far = both
    push_image(connect(far.host), repo, "base", [{f"f{n}": os.urandom(2 << 20)} for n in range(8)])
    refuse = lambda seen, _: Fault(403) if seen.method == "PUT" else None  # noqa: E731
    with http_proxy(near.port, refuse) as proxy, pytest.raises(RegistryAuthError, match="does not let"):
        append_layer(
            ref(far, repo, "base"), ref(proxy, repo, "job"), [layer], with_layer(layer), clients=connect
        )
    assert near.tags(repo) == []


@pytest.mark.slow
def test_ctrl_c_stops_the_uploads(both, connect, repo, layer):
    """The signal reaches the main thread; uploads in others must not go on behind its back."""
    import signal
    import threading

    near, far = both
    push_image(connect(far.host), repo, "base", [{f"f{n}": os.urandom(2 << 20)} for n in range(8)])

    interrupted = []

    def interrupt(seen, _):
        if seen.method != "PUT":
            return None
        if not interrupted:
            interrupted.append(seen)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return Fault(503)

    with http_proxy(near.port, interrupt) as proxy:
        with pytest.raises(KeyboardInterrupt):
            append_layer(
                ref(far, repo, "base"), ref(proxy, repo, "job"), [layer], with_layer(layer), clients=connect
            )
        requests = len(proxy.seen)
        # their calls have ended, and the threads are about to
        for thread in threading.enumerate():
            if thread.name.endswith("(run)"):
                thread.join(10)
                assert not thread.is_alive()
        assert len(proxy.seen) == requests
    assert near.tags(repo) == []


def test_login_is_taken_from_the_docker_configuration(registry, repo, layer, tmp_path, connect, monkeypatch):
    push_image(connect(registry.host, LOGIN), repo, "base", [{"a": b"1"}])
    base, target = ref(registry, repo, "base"), ref(registry, repo, "job")
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path / "good", registry.host)))
    assert append_layer(base, target, [layer], with_layer(layer))
    bad = docker_config(tmp_path / "bad", registry.host, password="wrong-pass-1")
    monkeypatch.setenv("DOCKER_CONFIG", str(bad))
    with pytest.raises(
        RegistryAuthError, match=f"password of the user '{USER}' \\(from .*config.json\\)"
    ) as caught:
        append_layer(base, target, [layer], with_layer(layer))
    assert caught.value.hint == f"Log in: docker login {registry.host}"
    assert "wrong-pass-1" not in str(caught.value)
    assert PASSWORD not in str(caught.value)
    monkeypatch.setenv("DOCKER_CONFIG", "/nowhere")
    with pytest.raises(RegistryAuthError, match="no credentials are configured"):
        append_layer(base, target, [layer], with_layer(layer))

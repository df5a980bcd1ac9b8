"""Code in images in a real registry, with and without a Docker daemon."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest

from shunter.docker.command import DockerCommand
from shunter.errors import BackendError
from shunter.image_registry.registry_errors import RegistryError
from tests.registry.server import RegistryServer, docker_config, htpasswd, logged_in, registry
from tests.workspace.machines import (
    Recording,
    Shipper,
    Told,
    base,
    below,
    code,
    command,
    content_of,
    docker,
)

__all__ = ["base", "code", "command", "logged_in", "registry"]
pytestmark = pytest.mark.xdist_group("docker")

APP = "home/u/app"


@pytest.fixture
def pushed(base: str, logged_in: RegistryServer) -> str:
    """The base in the registry, and not under this name in the daemon."""
    name = f"{logged_in.host}/bases/small:1"
    docker("tag", base, name)
    docker("push", name)
    docker("rmi", name)
    return name


@pytest.fixture
def repo(logged_in: RegistryServer) -> str:
    return f"{logged_in.host}/jobs/{uuid.uuid4().hex[:10]}"


@pytest.fixture
def remote() -> Shipper:
    """A scheduler of other machines, where there is no Docker."""
    return Shipper(remote=True)


def pulled(image: str) -> dict[str, Any]:
    """Return the content of an image as a machine has it that pulls it."""
    docker("pull", image)
    try:
        return content_of(image)
    finally:
        docker("rmi", "--force", image)


def manifest_of(server: RegistryServer, image: str) -> Any:
    name, _, digest = image.partition("@")
    _, body = server.get(f"/v2/{name.partition('/')[2]}/manifests/{digest}")
    return json.loads(body)


@pytest.mark.slow
def test_both_ways_give_the_same_content_that_runs(
    base: str, pushed: str, repo: str, remote: Shipper, command: DockerCommand, code: Path
) -> None:
    (code / "run.sh").write_text("echo from $PWD")
    (code / "run.sh").chmod(0o751)
    (code / "link").symlink_to("pkg")
    (code / "empty").mkdir(mode=0o700)
    image = remote.image(pushed, code, image_repo=repo)
    assert image.startswith(f"{repo}@sha256:")
    without = pulled(image)
    assert without == content_of(Shipper(command).image(base, code))
    assert without[APP][1:4] == (0o750, 1000, 1000)
    assert docker("run", "--rm", image, "sh", "run.sh") == b"from /home/u/app\n"
    docker("rmi", "--force", image)


@pytest.mark.slow
def test_an_image_of_the_daemon_is_pushed_by_it(
    base: str, repo: str, command: DockerCommand, code: Path, logged_in: RegistryServer
) -> None:
    image = Shipper(command, remote=True).image(base, code, image_repo=repo)
    assert image.startswith(f"{repo}@sha256:")
    assert below(pulled(image), APP)["main.py"][0] == "file"
    recording = Recording(command)
    before = logged_in.requests("PUT /v2/")
    assert Shipper(command, remote=True).image(base, code, image_repo=repo) == image
    assert recording.changing == []
    assert logged_in.requests("PUT /v2/") == before


def test_unchanged_code_sends_nothing(
    pushed: str, repo: str, remote: Shipper, code: Path, logged_in: RegistryServer
) -> None:
    image = remote.image(pushed, code, image_repo=repo)
    changing = ("POST", "PUT", "PATCH")
    before = [logged_in.requests(f'"{method} /v2/') for method in changing]
    assert sum(before) > 0
    assert remote.image(pushed, code, image_repo=repo) == image
    assert [logged_in.requests(f'"{method} /v2/') for method in changing] == before


def test_an_edit_sends_a_small_layer(
    pushed: str, repo: str, remote: Shipper, code: Path, logged_in: RegistryServer
) -> None:
    first = remote.image(pushed, code, image_repo=repo)
    for number in range(2):
        (code / "main.py").write_text(f"print({number})")
        image = remote.image(pushed, code, image_repo=repo)
        layers = manifest_of(logged_in, image)["layers"]
        assert layers[:-1] == manifest_of(logged_in, first)["layers"]
        assert layers[-1]["size"] < 2_000
    made = below(pulled(image), APP)
    assert made["main.py"][4] == hashlib.sha256(b"print(1)").hexdigest()
    assert "pkg/data.bin" in made


@pytest.mark.slow
def test_a_registry_of_another_host(
    pushed: str,
    remote: Shipper,
    code: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged_in: RegistryServer,
) -> None:
    other = RegistryServer(tmp_path / "other", htpasswd(tmp_path / "other")).start()
    try:
        config = docker_config(tmp_path / "both", logged_in.host)
        document = json.loads((config / "config.json").read_text())
        document["auths"][other.host] = document["auths"][logged_in.host]
        (config / "config.json").write_text(json.dumps(document))
        monkeypatch.setenv("DOCKER_CONFIG", str(config))
        image = remote.image(pushed, code, image_repo=f"{other.host}/jobs")
        assert f"{APP}/main.py" in pulled(image)
    finally:
        other.stop()


@pytest.mark.slow
def test_a_working_directory_deep_in_the_layers_is_found(
    repo: str, remote: Shipper, code: Path, logged_in: RegistryServer, base: str, command: DockerCommand
) -> None:
    """The directory's attributes are those of the topmost layer that has it; others do not matter."""
    name = f"{logged_in.host}/bases/deep:1"
    lines = f'FROM {base}\nRUN ["sh", "-c", "true > /home/u/x"]\nWORKDIR /data/work\nENV A=1\n'
    docker("build", "--tag", name, "-", given=lines.encode())
    docker("push", name)
    local = content_of(Shipper(command).image(name, code))
    docker("rmi", name)
    assert pulled(remote.image(name, code, image_repo=repo)) == local


def test_nothing_is_left_on_this_disk(
    pushed: str, repo: str, remote: Shipper, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def interrupt(done: int) -> None:
        assert [*scratch.iterdir()]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remote.image(pushed, code, Told(interrupt), image_repo=repo)
    assert not [*scratch.iterdir()]
    remote.image(pushed, code, image_repo=repo)
    assert not [*scratch.iterdir()]


def test_an_interrupted_push_leaves_no_image(
    pushed: str, repo: str, remote: Shipper, code: Path, logged_in: RegistryServer
) -> None:
    (code / "big").write_bytes(os.urandom(3_000_000))

    class Impatient(Told):
        def advance(self, label: str, done: int, total: int) -> None:
            if label == "workspace":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remote.image(pushed, code, Impatient(), image_repo=repo)
    assert logged_in.tags(repo.partition("/")[2]) == []
    assert remote.image(pushed, code, image_repo=repo)


def test_a_wrong_password_says_so(
    pushed: str,
    repo: str,
    remote: Shipper,
    code: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged_in: RegistryServer,
) -> None:
    config = docker_config(tmp_path / "wrong", logged_in.host, password="no")
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    with pytest.raises(RegistryError) as caught:
        remote.image(pushed, code, image_repo=repo)
    assert "docker login" in caught.value.hint


def test_a_daemon_that_may_not_push_says_so(
    base: str, repo: str, command: DockerCommand, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nothing"))
    with pytest.raises(BackendError, match=r"cannot push") as caught:
        Shipper(command, remote=True).image(base, code, image_repo=repo)
    assert "docker login" in caught.value.hint


@pytest.mark.slow
def test_a_base_that_is_pulled_with_a_password(pushed: str, command: DockerCommand, code: Path) -> None:
    told = Told()
    image = Shipper(command).image(pushed, code, told)
    assert told.steps[0] == f"pulling {pushed}"
    assert docker("run", "--rm", image, "cat", "main.py") == b"print('hello')\n"
    again = Told()
    assert Shipper(command).image(pushed, code, again) == image
    assert again.steps == []
    docker("rmi", pushed)

"""Images that are made without Docker, in Docker."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from shunter.docker.command import DockerCommand
from shunter.docker.credentials import login_environment
from shunter.docker.image_reference import Reference
from shunter.docker.images import pull_image, remove
from shunter.errors import BackendError
from shunter.progress import Silent
from tests.backends import need
from tests.registry.images import append_layer, busybox, push_image, tar_of, with_layer
from tests.registry.server import docker_config
from tests.registry.test_append import layer, ref  # noqa: F401
from tests.workspace.machines import Told

DOCKER = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["docker", "oci"])
def test_image_runs_in_docker(logged_in, client, repo, tmp_path, layer, kind):  # noqa: F811
    need("docker")
    push_image(client, repo, "base", [busybox()], kind=kind)
    pinned = append_layer(
        ref(logged_in, repo, "base"), ref(logged_in, f"{repo}-job"), [layer], with_layer(layer)
    )
    env = {**os.environ, "DOCKER_CONFIG": str(docker_config(tmp_path / "d", logged_in.host))}

    def docker(*words):
        return subprocess.run(
            [DOCKER, *words], env=env, capture_output=True, text=True, timeout=55, check=True
        )

    try:
        docker("pull", "-q", pinned)
        assert docker("run", "--rm", "--network=none", pinned, "/work/train").stdout == "trained here\n"
        labels = json.loads(docker("inspect", pinned).stdout)[0]["Config"]["Labels"]
        assert labels == {"from": "base", "ours": "shipped"}
    finally:
        subprocess.run([DOCKER, "rmi", "-f", pinned], env=env, capture_output=True, timeout=55, check=False)


def test_the_command_takes_our_login(logged_in, client, repo, tmp_path, monkeypatch):
    """A login that only Podman's file has is handed to the docker command, and nothing of it is left."""
    need("docker")
    push_image(client, repo, "v1", [{"a": os.urandom(9)}])
    image = f"{logged_in.host}/{repo}:v1"
    own = tmp_path / "docker"
    (own / "contexts").mkdir(parents=True)
    podman = tmp_path / "auth.json"
    podman.write_bytes((Path(os.environ["DOCKER_CONFIG"]) / "config.json").read_bytes())
    monkeypatch.setenv("DOCKER_CONFIG", str(own))
    docker = DockerCommand()
    with pytest.raises(BackendError, match="cannot be pulled") as caught:
        pull_image(docker, image, Silent())
    assert "docker login" in caught.value.hint
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(podman))
    try:
        told = Told()
        assert pull_image(docker, image, told)["RepoTags"] == [image]
        assert told.steps == [f"pulling {image}", f"pulling {image}: 1 of 1 layers"]
        with login_environment([logged_in.host]) as environ:
            folder = Path(environ["DOCKER_CONFIG"])
            assert (folder / "contexts").is_dir()
        assert not folder.exists()
    finally:
        remove(docker, image)
    assert sorted(path.name for path in own.iterdir()) == ["contexts"]


def test_base_that_docker_pushed(logged_in, client, repo, tmp_path, layer):  # noqa: F811
    need("docker")
    env = {**os.environ, "DOCKER_CONFIG": str(docker_config(tmp_path / "d", logged_in.host))}
    base = f"{logged_in.host}/{repo}:base"

    def docker(*words, **kwargs):
        return subprocess.run(
            [DOCKER, *words], env=env, capture_output=True, timeout=55, check=True, **kwargs
        )

    try:
        docker("import", "--change", "ENV PATH=/bin", "-", base, input=tar_of(busybox()))
        docker("push", "-q", base)
        pinned = append_layer(Reference.parse(base), ref(logged_in, repo), [layer], with_layer(layer))
        assert docker("run", "--rm", "--network=none", pinned, "/work/train").stdout == b"trained here\n"
    finally:
        for image in (base, locals().get("pinned")):
            subprocess.run(
                [DOCKER, "rmi", "-f", str(image)], env=env, capture_output=True, timeout=55, check=False
            )

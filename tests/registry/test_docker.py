"""Images that are made without Docker, in Docker."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import urllib.parse

import pytest

from shunter.docker.credentials import credentials_for, engine_auth_header
from shunter.docker.image_reference import Reference
from shunter.image_registry.push import append_layer
from tests.backends import need
from tests.registry.images import busybox, push_image, tar_of, with_layer
from tests.registry.server import docker_config
from tests.registry.test_append import layer, ref  # noqa: F401

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


class Engine(http.client.HTTPConnection):
    """The Docker daemon's API."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(55)
        self.sock.connect("/var/run/docker.sock")


def test_daemon_takes_our_login(logged_in, client, repo):
    """The header that the daemon's own pull and push want."""
    need("docker")
    if not os.path.exists("/var/run/docker.sock"):
        pytest.skip("the daemon is elsewhere")
    push_image(client, repo, "v1", [{"a": b"1"}])
    image = f"{logged_in.host}/{repo}:v1"

    def pull(header):
        with contextlib.closing(Engine("docker")) as engine:
            path = f"/images/create?fromImage={urllib.parse.quote(image, safe='')}"
            engine.request("POST", path, headers={"X-Registry-Auth": header})
            return engine.getresponse().read().decode()

    try:
        assert "no basic auth credentials" in pull(engine_auth_header(None))
        assert f"Downloaded newer image for {image}" in pull(
            engine_auth_header(credentials_for(logged_in.host))
        )
    finally:
        subprocess.run([DOCKER, "rmi", "-f", image], capture_output=True, timeout=55, check=False)

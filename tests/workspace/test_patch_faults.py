"""A daemon that fails in the middle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.errors import BackendError
from tests.workspace.daemons import OwnDaemon, own_daemon, small_daemon
from tests.workspace.machines import Shipper, Told, code, content_of, docker, make_base

__all__ = ["code", "own_daemon", "small_daemon"]
pytestmark = pytest.mark.xdist_group("docker")


@pytest.mark.slow
def test_a_full_disk_is_said_and_leaves_no_image(small_daemon: OwnDaemon, code: Path) -> None:
    make_base("base:1", "WORKDIR /app", host=small_daemon.host)
    (code / "big").write_bytes(os.urandom(40_000_000))
    command = small_daemon.command()
    with pytest.raises(BackendError, match="the disk of the Docker daemon is full") as caught:
        Shipper(command).image("base:1", code)
    assert "docker system df" in caught.value.hint
    assert docker("images", "--quiet", "--filter", "dangling=true", host=small_daemon.host) == b""
    assert len(docker("images", "--quiet", host=small_daemon.host).split()) == 1
    (code / "big").unlink()
    image = Shipper(command).image("base:1", code)
    assert "app/main.py" in content_of(image, small_daemon.host)


@pytest.mark.slow
def test_a_daemon_that_dies_while_it_is_loading(own_daemon: OwnDaemon, code: Path) -> None:
    make_base("base:1", "WORKDIR /app", host=own_daemon.host)
    (code / "big").write_bytes(os.urandom(20_000_000))
    command = own_daemon.command()
    shipper = Shipper(command)

    def die(done: int) -> None:
        if done > 5_000_000:
            own_daemon.kill()

    with pytest.raises(EngineUnavailableError) as caught:
        shipper.image("base:1", code, Told(die))
    assert caught.value.hint
    own_daemon.start()
    assert len(docker("images", "--all", "--quiet", host=own_daemon.host).split()) == 1
    image = shipper.image("base:1", code)
    assert "app/big" in content_of(image, own_daemon.host)

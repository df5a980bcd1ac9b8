"""`shunter forward`: a web server in real replicas, reached through a port of this machine."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
from collections.abc import Iterator

import psutil
import pytest

from tests.cli.conftest import Cli
from tests.web_server_job import PROGRAM, Forwarding


@pytest.fixture(params=["local_cwd", pytest.param("local_docker", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, cli: Cli) -> Iterator[tuple[str, int]]:
    """A job that serves on a port of its host; its handle and the port."""
    words = ["--detach", "-s", request.param]
    component = ["utils.sh", "--entrypoint", "python3"]
    if request.param == "local_docker":
        component += ["--image", request.getfixturevalue("image")]
        words += ["--workspace", ""]
    handle = cli("run", *words, *component, "--", "-c", PROGRAM).out.strip()
    follower = cli.start("log", "-f", handle)
    assert follower.stdout is not None
    found = re.search(rb"port (\d+)", follower.stdout.readline())
    assert found
    follower.kill()
    follower.communicate()
    yield handle, int(found[1])
    cli("cancel", "--wait", handle)
    cli("delete", handle)


def test_connections_go_through_and_end_with_the_job(cli: Cli, server: tuple[str, int]) -> None:
    handle, port = server
    with Forwarding(f"{handle}/sh/0", port, cli.environ) as forwarding:
        forwarding.check()
        cli("cancel", "--wait", handle)
        assert "sh/0" in (said := forwarding.said())
    assert "has ended: CANCELLED" in said
    assert forwarding.process.returncode == 0


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "TERM"]
)
def test_a_signal_ends_it_with_its_connections(
    cli: Cli, server: tuple[str, int], signum: signal.Signals, code: int
) -> None:
    handle, port = server
    with (
        Forwarding(handle, port, cli.environ) as forwarding,
        socket.create_connection(("127.0.0.1", forwarding.port), timeout=100) as connection,
    ):
        connection.sendall(b"GET /a HTTP/1.0\r\n")
        while not (children := psutil.Process(forwarding.process.pid).children(recursive=True)):
            pass
        assert "Traceback" not in forwarding.end(signum)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert forwarding.process.returncode == code
    assert not [child for child in children if child.is_running() and child.status() != "zombie"]
    assert cli("status", "--json", handle).json["state"] == "RUNNING"


@pytest.mark.slow
def test_a_port_where_nothing_answers_closes_the_connection_and_says_so(
    cli: Cli, server: tuple[str, int]
) -> None:
    handle, port = server
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = taken.getsockname()[1]
        refused = cli("forward", handle, f"{port}:{other}", code=4)
        assert f"cannot listen on port {other}" in refused.err
    with Forwarding(handle, 1, cli.environ) as forwarding:
        with socket.create_connection(("127.0.0.1", forwarding.port), timeout=100) as connection:
            assert connection.recv(1) == b""
        assert "nothing answers at port 1 of this replica: Connection refused" in forwarding.end(
            signal.SIGINT
        )


@pytest.mark.slow
def test_what_cannot_be_forwarded_is_refused(cli: Cli) -> None:
    assert "examples: 6006" in cli("forward", "0", code=2).err
    assert "examples: 6006" in cli("forward", "6006:x", code=2).err
    handle = cli.shell("true")
    cli("wait", handle)
    assert "has ended: SUCCEEDED" in cli("forward", handle, "6006", code=3).err
    assert "has no role 'x'" in cli("forward", f"{handle}/x/0", "6006", code=2).err
    several = cli("run", "--detach", "utils.sh", "--num_replicas", "2", "--", "sleep", "300").out.strip()
    assert "sh/0, sh/1" in cli("forward", several, "6006", code=2).err
    cli("cancel", several)

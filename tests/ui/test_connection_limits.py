"""What other users of this machine can do to the page: nothing, whatever they send or leave open."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.runner import get_runner
from shunter.ui.connection_limits import MOST_HEADERS
from tests.ui.test_web_server import COMMAND, Visitor, started, tail_path

FILES, ATTACKERS = 256, 300
SERVING = "serving; Ctrl-C ends the page, not the jobs\n"
HURRIED = (
    "import sys, shunter.cli, shunter.ui.connection_limits as connections;"
    "connections.DEADLINE = 0.3; sys.exit(shunter.cli.main(['ui', '--no-browser', '--port', '0']))"
)

POST = b"POST /jobs/act HTTP/1.1\r\nHost: HOST\r\n"
#: What a guest sends first, and then again and again.
SLOW = {
    "nothing": (b"", b""),
    "endless headers": (b"GET / HTTP/1.1\r\nHost: HOST\r\nX: ", b"x"),
    "a slow body": (POST + b"Content-Length: 100000\r\n\r\n", b"x"),
    "an endless body": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "endless requests": (b"", b"GET / HTTP/1.1\r\nHost: HOST\r\n\r\n"),
}


@contextlib.contextmanager
def serving(*words: str) -> Iterator[Visitor]:
    """Serve the page; in the end its stderr must be as if nobody had attacked it."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    visitor = Visitor(process)
    try:
        yield visitor
    finally:
        visitor.close()
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert errors == SERVING


def closes(connection: socket.socket, endless: bytes) -> bool:
    """Send to the server, slowly, until it closes the connection; tells whether it does."""
    connection.settimeout(0.02)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            connection.sendall(endless)
            if connection.recv(1 << 16) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.slow
def test_idle_connections_of_others_take_nothing_from_the_owner(home: Path, tmp_path: Path) -> None:
    handle = started(f"echo said; until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo after the attack")
    words = ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *COMMAND, "--port", "0"]
    with serving(*words) as visitor, contextlib.ExitStack() as attack:
        stream = visitor.get(tail_path(handle))
        while b"said" not in stream.readline():
            pass
        for _ in range(ATTACKERS):
            attack.enter_context(socket.create_connection((visitor.host, visitor.port), timeout=30))
        for _ in range(3):
            assert visitor.get("/").status == 200
        assert len(list(Path(f"/proc/{visitor.process.pid}/fd").iterdir())) < FILES / 2
        (tmp_path / "go").touch()
        assert b"after the attack" in stream.read()
    with get_runner() as runner:
        runner.wait(handle)


@pytest.mark.slow
def test_a_guest_has_a_deadline_and_the_owner_none(home: Path, tmp_path: Path) -> None:
    handle = started(f"echo said; until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo after the deadline")
    with serving(sys.executable, "-c", HURRIED) as visitor:
        stream = visitor.get(tail_path(handle))
        host = f"{visitor.host}:{visitor.port}".encode()
        for name, (begin, endless) in SLOW.items():
            with socket.create_connection((visitor.host, visitor.port)) as guest:
                guest.sendall(begin.replace(b"HOST", host))
                assert closes(guest, endless.replace(b"HOST", host)), name
        (tmp_path / "go").touch()
        assert b"after the deadline" in stream.read()
    with get_runner() as runner:
        runner.wait(handle)


def test_what_is_not_http_is_refused_without_a_word(home: Path) -> None:
    with serving(*COMMAND, "--port", "0") as visitor:
        head = f"POST / HTTP/1.1\r\nHost: {visitor.host}:{visitor.port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        for parts in (
            [b"\x16\x03\x01\r\n\r\n"],
            [head.encode() + b"not a size\r\n"],
            [head.encode(), b"not a size\r\n"],
        ):
            with socket.create_connection((visitor.host, visitor.port), timeout=30) as guest:
                for number, part in enumerate(parts):
                    guest.sendall(part)
                    if number + 1 < len(parts):
                        assert guest.recv(1 << 16).startswith(b"HTTP/1.1 403 ")
                with contextlib.suppress(ConnectionError):
                    while guest.recv(1 << 16):
                        pass
        with socket.create_connection((visitor.host, visitor.port), timeout=30) as crowded:
            crowded.sendall(b"GET / HTTP/1.1\r\nCookie: x=" + b"y" * (MOST_HEADERS + 1))
            assert b"cookies of 127.0.0.1" in b"".join(iter(lambda: crowded.recv(1 << 16), b""))
        assert visitor.get("/").status == 200

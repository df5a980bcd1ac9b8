"""The client of the daemon: against the real one, and against servers that fail as it may."""

import io
import os
import shutil
import socket
import stat
import threading
import uuid

import pytest

from shunter.docker import image_store
from shunter.docker.daemon_errors import EngineError, EngineUnavailableError
from shunter.docker.engine import Engine
from tests.backends import need

HELLO = b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK"


@pytest.fixture
def engine():
    need("docker")
    engine = Engine.from_env()
    yield engine
    engine.close()


@pytest.fixture
def serve(tmp_path):
    """Answer each request with the next of these bytes, and close the connection after each."""
    closers = []

    def start(*answers: bytes) -> Engine:
        path = str(tmp_path / "sock")
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen()

        def run():
            for answer in answers:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.recv(65536)
                connection.sendall(answer)
                connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        engine = Engine.from_env({"DOCKER_HOST": f"unix://{path}"})
        closers.append((server, thread, engine))
        return engine

    yield start
    for server, thread, engine in closers:
        engine.close()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


# ---- the real daemon


def test_error_of_the_daemon(engine):
    with pytest.raises(EngineError, match="No such container") as caught:
        engine.request("GET", "/containers/no-such-thing/json")
    assert caught.value.status == 404


def test_load_tag_and_remove_an_image(engine):
    name = f"shunter-test-{uuid.uuid4().hex[:12]}"
    assert image_store.inspect_image(engine, f"{name}:one") is None
    empty = io.BytesIO(bytes(10240))
    with engine.stream(
        "POST", "/images/create", params={"fromSrc": "-", "repo": name, "tag": "one"}, data=empty
    ) as answer:
        assert list(answer.json_lines())
    try:
        image_store.tag(engine, f"{name}:one", f"{name}:two")
        with engine.stream("GET", f"/images/{name}:two/get") as answer:
            archive = answer.read()
        assert image_store.remove(engine, f"{name}:two")
        told = []
        pieces = (archive[i : i + 1000] for i in range(0, len(archive), 1000))
        assert image_store.load(engine, pieces, told.append) == [f"{name}:two"]
        assert told
        assert image_store.inspect_image(engine, f"{name}:two") is not None
    finally:
        image_store.remove(engine, f"{name}:two")
        assert image_store.remove(engine, f"{name}:one")
    assert not image_store.remove(engine, f"{name}:one")


def test_pull_that_fails(engine):
    with pytest.raises(EngineError, match="no such host"):
        image_store.pull(engine, "registry.invalid/x:1")


def test_docker_client_is_adopted():
    need("docker")
    docker = pytest.importorskip("docker")
    client = docker.from_env()
    try:
        engine = Engine.adopt(client)
        assert engine.request("GET", "/version")["ApiVersion"]
        with pytest.raises(EngineError) as caught:
            engine.request("GET", "/containers/no-such-thing/json")
        assert caught.value.status == 404
        with engine.stream("GET", "/events", params={"since": 1, "until": 2}) as answer:
            assert list(answer.json_lines()) == []
        assert engine.is_local
    finally:
        client.close()


def test_through_ssh(tmp_path, monkeypatch):
    """The program `ssh` of this test takes the command to a shell of this machine."""
    need("docker")
    cli = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else shutil.which("docker")
    ssh = tmp_path / "ssh"
    ssh.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nwhile [ "$1" != -- ]; do shift; done\nshift 3\n'
        f'unset DOCKER_HOST\nexec {cli} "$@"\n'
    )
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    engine = Engine.from_env({"DOCKER_HOST": "ssh://me@far:2222"})
    try:
        assert engine.request("GET", "/info")["OSType"] == "linux"
        assert engine.request("GET", "/version")
    finally:
        engine.close()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["-o ConnectTimeout=30 -T -p 2222 -- me@far docker system dial-stdio"]


def test_what_ssh_says_is_shown(tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailableError, match="Permission denied"):
        Engine.from_env({"DOCKER_HOST": "ssh://far"}).request("GET", "/info")


# ---- no daemon, and daemons that fail


def test_no_socket(tmp_path):
    engine = Engine.from_env({"DOCKER_HOST": f"unix://{tmp_path}/none"})
    with pytest.raises(EngineUnavailableError, match="no such socket") as caught:
        engine.request("GET", "/info")
    assert "DOCKER_HOST" in caught.value.hint


def test_nobody_listens(tmp_path):
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)
    with pytest.raises(EngineUnavailableError, match="nothing listens there"):
        Engine.from_env({"DOCKER_HOST": f"unix://{path}"}).request("GET", "/info")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_socket_of_others(tmp_path):
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        os.chmod(path, 0o600)
        for folder in (tmp_path, *tmp_path.parents[:-2]):
            os.chmod(folder, 0o755)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setuid(65534)
                Engine.from_env({"DOCKER_HOST": f"unix://{path}"}).request("GET", "/info")
            except EngineUnavailableError as error:
                code = 0 if "usermod -aG docker" in error.hint else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[1",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1]\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[1]",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n\r\n",
    ],
)
def test_daemon_dies_in_the_middle_of_an_answer(serve, answer):
    engine = serve(HELLO, answer)
    with pytest.raises(EngineUnavailableError, match="went away"):
        engine.request("POST", "/x")


def test_silent_daemon(tmp_path):
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        engine = Engine.from_env({"DOCKER_HOST": f"unix://{path}"})
        engine._version = "1.41"
        with pytest.raises(EngineUnavailableError, match="does not answer"):
            engine.request("GET", "/info", timeout=0.01)


def test_daemon_that_is_too_old(serve):
    with pytest.raises(EngineUnavailableError, match=r"too old: it speaks version 1\.12"):
        serve(HELLO.replace(b"1.41", b"1.12")).request("GET", "/info")


def test_connection_that_the_daemon_closed_meanwhile(serve):
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]"
    engine = serve(HELLO, ok, ok)
    assert engine.request("POST", "/x") == [1]
    while engine._connections._idle[0].is_idle():
        threading.Event().wait(0.001)
    assert engine.request("POST", "/x") == [1]


def test_refusal_in_the_middle_of_an_upload(serve):
    body = b'{"message": "no space left on device"}'
    answer = b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    engine = serve(HELLO, answer)
    with pytest.raises(EngineError, match="no space left"):
        engine.request("POST", "/images/load", data=(bytes(1 << 20) for _ in range(64)))


def test_error_in_a_progress_stream(serve):
    body = b'{"status": "x"}\r\n{"errorDetail": {"message": "denied"}, "error": "denied"}\r\n'
    engine = serve(HELLO, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    with pytest.raises(EngineError, match="denied"):
        image_store.pull(engine, "x:1")


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("a", ("a", "latest")),
        ("a:1", ("a", "1")),
        ("host:5000/a/b", ("host:5000/a/b", "latest")),
        ("host:5000/a/b:v", ("host:5000/a/b", "v")),
        ("h/a@sha256:00", ("h/a", "sha256:00")),
        ("h/a:v@sha256:00", ("h/a", "sha256:00")),
    ],
)
def test_references(ref, parts):
    assert image_store.split_reference(ref) == parts

"""Commands in replicas that run: streams, terminals, exit codes, lost connections; also over TLS."""

from __future__ import annotations

import logging
import os
import ssl
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import AccessError, ConfigError, UnknownAppException
from shunter.schedulers.kubernetes_scheduler.scheduler import KubernetesScheduler, create_scheduler
from shunter.specs import AppDef
from tests.backends import need
from tests.cli.conftest import Terminal
from tests.kubernetes.certificates import Authority
from tests.kubernetes.jobs import app, role
from tests.kubernetes.stub import Stub, failure

Scheduler = KubernetesScheduler


def shell(script: str, **fields: Any) -> AppDef:
    return app(role(entrypoint="sh", args=["-c", script], **fields))


def name_of(app_id: str) -> str:
    return app_id.partition(":")[2]


# ---- entering


@pytest.fixture(params=["v5.channel.k8s.io", "v4.channel.k8s.io"])
def stub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Iterator[Stub]:
    """A server that is reached as real ones are: over TLS, with a certificate on either side."""
    need("lightkube")
    authority = Authority()
    files = {"ca": authority.pem}
    for name in ("server", "me"):
        files[f"{name}.crt"], files[f"{name}.key"] = authority.issue(name)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca"))
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    context.verify_mode = ssl.CERT_OPTIONAL
    with Stub(context) as server:
        server.users = {"me"}
        server.exec_protocol = request.param
        user = {"client-certificate": "me.crt", "client-key": "me.key"}
        cluster = {"certificate-authority": "ca"}
        monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "kubeconfig", cluster, **user))
        yield server


@pytest.fixture
def scheduler(stub: Stub) -> Iterator[Scheduler]:
    with closing(create_scheduler("test")) as made:
        yield made


@pytest.fixture
def running(stub: Stub, scheduler: Scheduler) -> str:
    app_id = scheduler.submit(shell("exec sleep 100"), {})
    stub.wait_for(lambda: stub.get("jobs", name_of(app_id))["status"].get("ready"))
    return app_id


def enter(scheduler: Scheduler, app_id: str, *command: str, stdin: bytes = b"", tmp_path: Path) -> Any:
    """Run a command with this process's streams replaced; returns its code, stdout and stderr."""
    saved = [os.dup(fd) for fd in range(3)]
    out, err = tmp_path / "out", tmp_path / "err"
    read, write = os.pipe()
    os.write(write, stdin)
    os.close(write)
    try:
        os.dup2(read, 0)
        for fd, path in ((1, out), (2, err)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, fd)
            os.close(file)
        code = scheduler.execute(app_id, "trainer", 0, command, tty=False)
    finally:
        os.close(read)
        for fd, old in enumerate(saved):
            os.dup2(old, fd)
            os.close(old)
    return code, out.read_bytes(), err.read_bytes()


def test_a_command_in_a_replica(running: str, scheduler: Scheduler, tmp_path: Path) -> None:
    script = "head -c 6; echo oh >&2; exit 7"
    found = enter(scheduler, running, "sh", "-c", script, stdin=b"in\x00put", tmp_path=tmp_path)
    assert found == (7, b"in\x00put", b"oh\n")


def test_the_end_of_the_input(
    running: str, stub: Stub, scheduler: Scheduler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The older protocol has none: a command that reads to the end does not learn of it, and that is said."""
    script = "cat" if stub.exec_protocol.startswith("v5") else "head -c 3"
    with caplog.at_level(logging.WARNING):
        assert enter(scheduler, running, "sh", "-c", script, stdin=b"abc", tmp_path=tmp_path)[1] == b"abc"
    assert stub.exec_protocol.startswith("v5") or "cannot signal the end of the input" in caplog.text


def test_without_input_the_command_has_none(running: str, stub: Stub, scheduler: Scheduler) -> None:
    """So that what reads its input ends at once, whatever the protocol."""
    saved = os.dup(0)
    try:
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        assert scheduler.execute(running, "trainer", 0, ["cat"], tty=False) == 0
    finally:
        os.dup2(saved, 0)
        os.close(saved)
    assert not any("stdin=true" in each for each in stub.requests)


@pytest.mark.parametrize(("code", "script"), [(0, "true"), (255, "exit 255"), (137, "kill -9 $$")])
def test_exit_codes(running: str, scheduler: Scheduler, tmp_path: Path, code: int, script: str) -> None:
    assert enter(scheduler, running, "sh", "-c", script, tmp_path=tmp_path)[0] == code


def test_a_server_that_keeps_the_connection_open(
    running: str, stub: Stub, scheduler: Scheduler, tmp_path: Path
) -> None:
    """Some do after the command has ended: the client closes it, and waits for nobody."""
    stub.exec_lingers.set()
    before = set(threading.enumerate())
    assert enter(scheduler, running, "sh", "-c", "exit 4", tmp_path=tmp_path)[0] == 4
    left = [each for each in set(threading.enumerate()) - before if not each.daemon]
    for each in left:
        each.join(10)
    assert not any(each.is_alive() for each in left), "the interpreter would wait for it"


def test_on_a_terminal(running: str, stub: Stub, tmp_path: Path) -> None:
    """A terminal there, of the size that this one has and gets, keys as they are typed, and the exit code."""
    script = 'tty; read line; echo "got $line"; until [ "$(stty size)" = "33 101" ]; do sleep 0.05; done'
    words = ["exec", f"kubernetes://test/{running}", "trainer/0", "--", "sh", "-c", f"{script}; exit 6"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    shown = Terminal([sys.executable, "-m", "shunter", *words], tmp_path, environ)
    try:
        shown.wait_for(b"/dev/pts/")
        shown.type(b"hello\r")
        shown.wait_for(b"got hello\r\n")
        termios.tcsetwinsize(shown._fd, (33, 101))
        assert shown.finish() == 6
    finally:
        shown.kill()


def test_much_output_of_a_command(running: str, scheduler: Scheduler, tmp_path: Path) -> None:
    code, out, _ = enter(scheduler, running, "sh", "-c", "head -c 3000000 /dev/zero", tmp_path=tmp_path)
    assert (code, len(out)) == (0, 3_000_000)


def test_programs_that_are_not_there(running: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no program 'no-such-program'"):
        enter(scheduler, running, "no-such-program", tmp_path=tmp_path)


def test_entering_without_the_permission(
    running: str, scheduler: Scheduler, stub: Stub, tmp_path: Path
) -> None:
    refusal = (403, failure(403, "Forbidden", "cannot create resource pods/exec"), {})
    stub.faults = lambda method, path, params: refusal if path.endswith("/exec") else None
    with pytest.raises(AccessError, match="pods/exec") as caught:
        enter(scheduler, running, "true", tmp_path=tmp_path)
    assert "get and create on pods/exec" in caught.value.hint


def test_replicas_that_cannot_be_entered(stub: Stub, scheduler: Scheduler) -> None:
    stub.runs_pods = False
    app_id = scheduler.submit(app(), {})
    with pytest.raises(ConfigError, match="is not running, so nothing can be started in it: it is PENDING"):
        scheduler.execute(app_id, "trainer", 0, ["true"], tty=False)
    with pytest.raises(UnknownAppException):
        scheduler.execute("default:nothing", "trainer", 0, ["true"], tty=False)

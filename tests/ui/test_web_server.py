"""The command `shunter ui`, and what its process costs."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from shunter.runner import get_runner

COMMAND = [sys.executable, "-m", "shunter", "ui", "--no-browser"]
MIB = 1 << 20


class Visitor:
    """A browser that was let in."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        parts = urlsplit(self.url)
        self.host, self.port = parts.hostname, parts.port
        assert self.host == "127.0.0.1"
        self.cookie = ""
        self._connections: list[http.client.HTTPConnection] = []
        answer = self.get(f"/?{parts.query}")
        self.cookie = str(answer.getheader("set-cookie")).partition(";")[0]

    def get(self, path: str, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.host or "", self.port, timeout=60)
        self._connections.append(connection)
        connection.request("GET", path, headers={"cookie": self.cookie, **headers})
        return connection.getresponse()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def memory(self) -> int:
        """Return the most memory that the server has ever had, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


@pytest.fixture
def visitor(home: Path) -> Iterator[Visitor]:
    process = subprocess.Popen(
        [*COMMAND, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    visitor = Visitor(process)
    yield visitor
    visitor.close()
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def started(script: str) -> str:
    with get_runner() as runner:
        return runner.run_component("utils.sh", ["sh", "-c", script], "local_cwd")


def tail_path(handle: str, **more: str) -> str:
    extra = "".join(f"&{name}={value}" for name, value in more.items())
    return f"/job/log/tail?handle={quote(handle, safe='')}&role=sh&replica=0{extra}"


def test_ctrl_c_ends_it_although_a_log_is_followed(visitor: Visitor) -> None:
    handle = started("echo said; exec sleep 600")
    stream = visitor.get(tail_path(handle))
    while b"said" not in stream.readline():
        pass
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "origin": "http://evil.example"}
    assert visitor.get("/", **upgrade).status == 403  # and no word of it below
    visitor.process.send_signal(signal.SIGINT)
    out, errors = visitor.process.communicate(timeout=60)
    assert visitor.process.returncode == 0
    assert errors == "serving; Ctrl-C ends the page, not the jobs\n"
    assert out == ""
    with get_runner() as runner:
        status = runner.status(handle)
        assert status is not None
        assert status.state.name == "RUNNING"
        runner.cancel(handle)
        runner.wait(handle)


def test_a_port_in_use_is_said(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run([*COMMAND, "--port", port], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr
    assert done.stdout == ""


def test_without_its_packages_it_says_how_to_get_them(home: Path, tmp_path: Path) -> None:
    (tmp_path / "starlette.py").write_text("raise ModuleNotFoundError('no', name='starlette')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "pip install 'shunter[ui]'" in done.stderr


def test_end_event_comes_and_lines_are_in_order(visitor: Visitor) -> None:
    handle = started("for i in $(seq 2000); do echo line $i; done")
    said = visitor.get(tail_path(handle)).read().decode()
    assert [int(number) for number in re.findall(r"line (\d+)<", said)] == list(range(1, 2001))
    assert said.endswith("event: ended\ndata: the job has ended\n\n")
    # a connection that was lost goes on behind the last event
    position = re.findall(r"^id: (\S+)", said, re.MULTILINE)[-1]
    again = visitor.get(tail_path(handle, start=position)).read().decode()
    assert "line" not in again


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_following_a_gigabyte_costs_no_memory(visitor: Visitor) -> None:
    script = "yes {} | head -c {}"
    line = "step 1 loss 0.5 " + "x" * 80
    small = started(script.format(f"'{line}'", 4 * MIB))
    visitor.get(tail_path(small)).read()
    visitor.get("/").read()
    before = visitor.memory()
    big = started(script.format(f"'{line}'", 1024 * MIB))
    for _ in range(5):
        visitor.get(tail_path(big))  # and reads nothing of it
    said, shown = visitor.get(tail_path(big)), 0
    while data := said.read(MIB):
        shown += len(data)
    metrics = f"/metrics.json?handle={quote(big, safe='')}"
    while json.loads(visitor.get(metrics).read())["busy"]:
        continue
    path = f"handle={quote(big, safe='')}&role=sh&replica=0"
    for place in ("", "&at=0", f"&at={512 * MIB}"):
        page = visitor.get(f"/job/log?{path}{place}").read()
        assert len(page) < MIB
        assert b"loss 0.5" in page
    searched = visitor.get(f"/job/log/search?{path}&q=nowhere").read()
    assert b"Searching: " in searched or b"No more lines match" in searched
    with get_runner() as runner:
        assert runner.wait(big).state.name == "SUCCEEDED"  # type: ignore[union-attr]
    assert shown > 0
    assert visitor.memory() - before < 24 * MIB
    with get_runner() as runner:
        runner.delete(big)


def test_a_download_that_cannot_be_completed_breaks_off(visitor: Visitor, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nopen(os.environ['SM_MODEL_DIR'] + '/big', 'wb').truncate(1 << 30)\n")
    with get_runner() as runner:
        handle = runner.run_component("train.script", ["--script", str(script)], "local_cwd")
        status = runner.wait(handle)
        ((role, k),) = runner.replicas(handle)
    assert status is not None
    place = f"handle={quote(handle, safe='')}&place={quote(f'{role}/{k}', safe='')}"
    answers = [visitor.get(f"/job/file?{place}&file=model/big"), visitor.get(f"/job/files.tar?{place}")]
    for answer in answers:
        assert answer.read(MIB)
    os.truncate(Path(str(status.results)) / "model/big", 2 * MIB)
    for answer in answers:
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()
    assert visitor.memory() < 150 * MIB
    assert visitor.get("/").status == 200

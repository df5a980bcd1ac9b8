"""The programs that builtins start, each as a process or with real files and sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shunter._toolkit.apps import urls
from shunter._toolkit.apps.booth import booth
from shunter._toolkit.errors import ConfigError, StoreError
from shunter.apps.serve import serve
from shunter.apps.utils import booth_main, copy_main, process_monitor


def command(module: str, *args: str) -> list[str]:
    return [sys.executable, "-m", f"shunter.apps.{module}", *args]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def start(module: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(module, *args), env=environment(), capture_output=True, text=True, check=False
    )


# ---- copy


def test_copy(workplace: Path) -> None:
    content = os.urandom(200_000)
    (workplace / "a").write_bytes(content)
    assert copy_main.main(["--src", "a", "--dst", "new/deep/b"]) == 0
    assert (workplace / "new/deep/b").read_bytes() == content
    url = (workplace / "with space").as_uri()
    assert copy_main.main(["--src", (workplace / "a").as_uri(), "--dst", url]) == 0
    assert (workplace / "with space").read_bytes() == content
    assert sorted(os.listdir(workplace / "new/deep")) == ["b"]


def test_copy_to_what_is_no_regular_file(workplace: Path) -> None:
    (workplace / "a").write_text("hello")
    done = start("utils.copy_main", "--src", "a", "--dst", "/dev/stdout")
    assert (done.returncode, done.stdout) == (0, "hello")


def test_a_copy_that_fails_leaves_nothing(workplace: Path) -> None:
    (workplace / "b").write_text("before")
    done = start("utils.copy_main", "--src", "nothing", "--dst", "b")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "nothing" in done.stderr
    assert (workplace / "b").read_text() == "before"
    with urls.open_to_write("b") as file:
        file.write(b"half")
        file.flush()
        assert (workplace / "b").read_text() == "before"
        assert len(os.listdir(workplace)) == 2
    (workplace / "b").write_text("before")

    def fail() -> None:
        with urls.open_to_write("b") as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert os.listdir(workplace) == ["b"]
    assert (workplace / "b").read_text() == "before"


def test_directories_are_not_copied(workplace: Path) -> None:
    done = start("utils.copy_main", "--src", str(workplace), "--dst", "x")
    assert (done.returncode, "is a directory" in done.stderr) == (1, True)


def test_other_stores_need_fsspec_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    for call in (lambda: urls.open_to_read("s3://b/a").__enter__(), lambda: urls.exists("s3://b/a")):
        with pytest.raises(ConfigError, match="s3://") as caught:
            call()
        assert "fsspec[s3]" in str(caught.value)


def test_other_stores_go_through_fsspec(workplace: Path) -> None:
    pytest.importorskip("fsspec")
    (workplace / "a").write_text("hello")
    assert copy_main.main(["--src", "a", "--dst", "memory://deep/b"]) == 0
    assert urls.exists("memory://deep/b")
    assert copy_main.main(["--src", "memory://deep/b", "--dst", "c"]) == 0
    assert (workplace / "c").read_text() == "hello"
    with pytest.raises(ConfigError, match="nostore://"):
        urls.exists("nostore://x")


# ---- booth


def test_booth(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--x1", "1", "--x2", "3", "--trial_idx", "2", "--tracker_base", str(workplace)]
    assert booth_main.main(args) == 0
    assert "booth_eval=0.0 trial=2" in capsys.readouterr().out
    assert (workplace / "2").read_text() == '{\n  "booth_eval": 0.0\n}'  # as TorchX writes it
    assert booth(0, 0) == 74.0


# ---- process_monitor

FOREVER = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_monitor_ends_as_its_command_does(code: str, expected: int) -> None:
    assert (
        start("utils.process_monitor", "--timeout", "50", "--", sys.executable, "-c", code).returncode
        == expected
    )


def test_monitor_ends_its_command_when_the_file_appears(workplace: Path) -> None:
    args = ["--poll_rate", "0.01", "--exit_on_file", "done", "--", *FOREVER]
    process = subprocess.Popen(
        command("utils.process_monitor", *args), env=environment(), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        (workplace / "done").touch()
        assert process.wait() == 0
        assert process.stdout.read() == ""  # and the command is gone: its end of the pipe is closed


def test_monitor_ends_its_command_when_the_time_is_over() -> None:
    assert (
        start("utils.process_monitor", "--timeout", "0.01", "--poll_rate", "0.01", "--", *FOREVER).returncode
        == 0
    )


def test_monitor_passes_signals_on() -> None:
    with subprocess.Popen(
        command("utils.process_monitor", *FOREVER), env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143


def test_monitor_waits_for_its_file(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (workplace / "start").touch()
    args = ["--poll_rate", "0.01", "--", "echo", "ran"]
    assert start("utils.process_monitor", "--start_on_file", "start", *args).stdout == "ran\n"
    assert process_monitor.main(["--start_on_file", "never", "--timeout", "0.02", *args]) == 34
    assert "never did not appear" in capfd.readouterr().err


def test_monitor_without_a_program() -> None:
    assert start("utils.process_monitor", "--").returncode == 2
    done = start("utils.process_monitor", "no-such-program")
    assert (done.returncode, "cannot start no-such-program" in done.stderr) == (127, True)


# ---- serve


class Management:
    """A management API that fetches the model that it is told of, as TorchServe does."""

    def __init__(self) -> None:
        self.queries: list[dict[str, str]] = []
        self.models: list[bytes] = []
        self.refuse = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(self.path).query))
                outer.queries.append(query)
                if not outer.refuse:
                    with urllib.request.urlopen(query["url"]) as response:
                        outer.models.append(response.read())
                self.send_response(409 if outer.refuse else 200)
                self.end_headers()
                self.wfile.write(b'{"status": "done"}')

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("localhost", 0), Handler)
        self.url = f"http://localhost:{self.server.server_port}/"


@pytest.fixture
def management() -> Iterator[Management]:
    api = Management()
    thread = threading.Thread(target=api.server.serve_forever)
    thread.start()
    yield api
    api.server.shutdown()
    thread.join()
    api.server.server_close()


def serve_args(api: str, model: str, *more: str) -> list[str]:
    return ["--management_api", api, "--model_path", model, "--port", "0", "--host", "localhost", *more]


def test_serve(workplace: Path, management: Management, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "my model.mar").write_bytes(b"model")
    assert (
        serve.main(serve_args(management.url, "my model.mar", "--model_name", "a b", "--batch_size=2")) == 0
    )
    assert management.models == [b"model"]
    (query,) = management.queries
    assert (query["model_name"], query["batch_size"]) == ("a b", "2")
    assert "done" in capsys.readouterr().out


def test_serve_passes_urls_on(management: Management, workplace: Path) -> None:
    (workplace / "m.mar").write_bytes(b"x")
    url = (workplace / "m.mar").as_uri().replace("file://", "http://localhost:1")
    management.refuse = True
    with pytest.raises(StoreError, match="409"):
        serve.main(serve_args(management.url, url))
    assert management.queries[0]["url"] == url


def test_serve_dry(management: Management, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(serve_args(management.url, "m.mar", "--dryrun", "--model_name", "x")) == 0
    assert management.queries == []
    assert "model_name=x" in capsys.readouterr().err


def test_serve_mistakes(workplace: Path) -> None:
    with pytest.raises(ConfigError, match=r"model m\.mar does not exist"):
        serve.main(serve_args("http://localhost:1", "m.mar"))
    (workplace / "m.mar").touch()
    with pytest.raises(StoreError, match="cannot reach TorchServe at http://localhost:1"):
        serve.main(serve_args("http://localhost:1", "m.mar"))
    with pytest.raises(ConfigError, match="x y z"):
        serve.main(serve_args("http://localhost:1", "m.mar", "x", "y", "z"))

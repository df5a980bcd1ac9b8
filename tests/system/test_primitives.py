"""The primitives of Linux, and what is used elsewhere, by way of `shunter.system`."""

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shunter
from shunter import system
from shunter.system import file_events, files, kernel_calls, process_table
from shunter.system.identity import Process, home, identify, myself, user_name

SOURCE = Path(shunter.__file__).parent
#: Names of modules `os`, `select`, `signal`, `socket` and `fcntl`, and texts, that other systems do not have.
LINUX_NAMES = re.compile(
    r"pidfd|inotify|^prctl|^O_TMPFILE$|^O_PATH$|^epoll$|^posix_fallocate$|^SO_PEERCRED$|^F_SETLEASE$|^memfd|"
    r"^renameat2$|^copy_file_range$|^sendfile$|^SEEK_DATA$|^SEEK_HOLE$|^sched_|^unshare$|^setns$|^eventfd|"
    r"^pipe2$|^accept4$|^waitid$|^splice$|^getrandom$|xattr$|^FICLONE$|^posix_fadvise$|^setresuid$"
)
MODULES = {"os", "select", "signal", "socket", "fcntl"}
LINUX_TEXTS = re.compile(r"^/proc/|^/sys/|^/dev/shm|^/dev/kmsg|^\0shunter")
#: What is written for pods, or runs where the job runs.
EXCEPTIONS = {"dev_session.py", "out_of_memory.py", "pods.py", "ray_driver.py", "replica_actor.py"}


def test_other_packages_use_nothing_that_only_linux_has() -> None:
    found = []
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "system" or "_toolkit" in path.parts or path.name in EXCEPTIONS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(attr=name, value=ast.Name(id=module)):
                    is_linux = module in MODULES and LINUX_NAMES.search(name)
                case ast.Import(names=[ast.alias(name=name)]):
                    is_linux = name == "ctypes"
                case ast.Constant(value=str(text)):
                    is_linux = LINUX_TEXTS.search(text)
                case _:
                    continue
            if is_linux:
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


@pytest.fixture(params=[True, False], ids=["linux", "elsewhere"])
def on_linux(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    for module in (process_table, kernel_calls, file_events, files):
        monkeypatch.setattr(module, "IS_LINUX", request.param)
    return bool(request.param)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "MARK": "of this test"}) as process:
        yield process
        process.kill()


def test_facts_about_a_process(on_linux: bool, sleeper: subprocess.Popen[bytes]) -> None:
    facts = system.process_facts(sleeper.pid)
    assert facts[:4] == (sleeper.pid, os.getpid(), os.getpgid(0), os.getsid(0))
    assert facts.start == system.start_of(sleeper.pid) > system.start_of(1)
    assert facts.status == ""
    assert facts in system.all_processes()
    assert facts in system.children_of(os.getpid())
    assert system.has_mark([sleeper.pid, os.getpid()], "MARK=of this test", "/nowhere") == {sleeper.pid}
    assert system.has_mark([sleeper.pid], "MARK=of this te", "/nowhere") == set()
    usage = system.process_usage([os.getpid(), 2**22 + 1])
    assert list(usage) == [os.getpid()]
    assert usage[os.getpid()].memory > 1_000_000
    assert usage[os.getpid()].cpu_seconds > 0
    sleeper.send_signal(19)
    until(lambda: system.process_facts(sleeper.pid).status == "stopped")
    sleeper.kill()
    until(lambda: system.process_facts(sleeper.pid) is None)  # a zombie
    sleeper.wait()
    assert system.start_of(sleeper.pid) is None


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_files(on_linux: bool, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w+b") as file:
        system.reserve_space(file.fileno(), 3_000_000)
        assert os.stat(path).st_size == 3_000_000
        assert os.stat(path).st_blocks * 512 >= 3_000_000
        assert system.has_writer(str(path)) is on_linux
    assert not system.has_writer(str(path))
    events = system.open_file_events()
    assert (events is not None) is on_linux
    if events is not None:
        events.add(str(path))
        path.write_bytes(b"x")
        assert events.read().watches
        events.close()


def test_a_process_is_itself_alone() -> None:
    me = myself()
    assert Process.parse(str(me)) == Process.from_json([*me]) == identify(os.getpid()) == me
    assert me.is_alive()
    assert not me._replace(start=me.start + 1).is_alive()
    assert not me._replace(boot="another").is_alive()
    assert me._replace(start=0).is_alive()  # of a system that did not say when it started
    assert Process.parse("1:2") is None or Process.parse("1:2").boot == ""
    assert Process.from_json(None) is None


def test_who_runs_this(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    import pwd

    assert user_name() == user_name(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name
    assert user_name(4_000_000_000) == "4000000000"
    monkeypatch.setenv("USER", "me")
    assert user_name() == "me"
    assert home({"HOME": "/there"}) == "/there"


def run_tests(*arguments: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    environ = {**os.environ, system.SWITCH: "1"}
    for name in list(environ):
        if name.startswith("PYTEST_"):
            del environ[name]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_local_jobs_run_without_the_primitives_of_linux() -> None:
    run_tests("tests/schedulers/local", "-m", "not slow", "-n", "2")

"""Work in a project whose files name programs, addresses and plug-ins: nothing happens unasked.

Whatever runs leaves a canary, and whatever connects does so to a listener of the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import DEADLINE, Cli

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users:
- name: u
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: sh
      args: ["-c", "echo kubeconfig >> {canary}"]
      interactiveMode: Never
"""
TOML = """
[run]
component = "theirs.py:job"

[cli.list]
scheduler = "{scheduler}"

[scheduler.kubernetes]
kubeconfig = "kubeconfig"

[scheduler.ray]
dashboard_address = "http://127.0.0.1:{port}"

[scheduler.slurm]
host = "-oProxyCommand=echo>>{canary}"
prologue = ["echo prologue >> {canary}"]

[scheduler.local_cwd]
notify = ["echo notify >> {canary}", "http://127.0.0.1:{port}"]
log_dir = "{outside}"
prepend_cwd = true

[component."utils.echo"]
mounts = "type=bind,src=/,dst=/host"

[tracker."os:system"]
config = "echo tracker >> {canary}"
"""
INI = """
[cli:run]
component = theirs.py:job

[cli:list]
scheduler = {scheduler}

[kubernetes]
kubeconfig = kubeconfig

[ray]
dashboard_address = http://127.0.0.1:{port}

[slurm]
host = -oProxyCommand=echo>>{canary}

[local_cwd]
notify = echo notify >> {canary};http://127.0.0.1:{port}
log_dir = {outside}
prepend_cwd = True

[component:utils.echo]
mounts = type=bind,src=/,dst=/host

[torchx:tracker]
os:system =

[tracker:os:system]
config = echo tracker >> {canary}
"""
FILES = {"shunter.toml": TOML, ".torchxconfig": INI}
CODE = """
import os
with open({canary!r}, "a") as file:
    file.write(f"{{__file__}} was run\\n")
from shunter.specs import AppDef
def job(value: str = "x") -> AppDef:
    "A job."
"""
#: What could be imported from the current directory, or found there as a program.
MODULES = (
    "json",
    "shunter",
    "shunter_toolkit",
    "sitecustomize",
    "yaml",
    "botocore",
    "conftest",
    "theirs",
)
PROGRAMS = ("sh", "git", "ssh", "squeue", "docker", "python")


class Hostile(Cli):
    """A command line in a hostile project."""

    def __init__(self, directory: Path, config: str) -> None:
        super().__init__(directory)
        self.config = config
        self.canary = directory.parent / "canary"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.environ |= {"RAY_JOB_HEADERS": '{"Authorization": "mine"}', "KUBECONFIG": os.devnull}
        self.write("local_cwd")
        for name in MODULES:
            (directory / f"{name}.py").write_text(CODE.format(canary=str(self.canary)))
        for name in PROGRAMS:
            (directory / name).write_text(f"#!/bin/sh\necho program {name} >> {self.canary}\n")
            (directory / name).chmod(stat.S_IRWXU)

    def command(self, *args: str) -> list[str]:
        """As the installed program does it, which looks for no modules in the current directory."""
        return [sys.executable, "-P", "-m", "shunter", *args]

    def write(self, scheduler: str) -> None:
        port = self.listener.getsockname()[1]
        outside = self.directory.parent / "logs"
        names: dict[str, Any] = {"port": port, "canary": self.canary, "outside": outside}
        text = FILES[self.config].format(scheduler=scheduler, **names)
        (self.directory / self.config).write_text(text)
        (self.directory / "kubeconfig").write_text(KUBECONFIG.format(**names))

    def check(self) -> None:
        """Check that nothing ran, and that nobody connected."""
        assert not self.canary.exists(), self.canary.read_text()
        with pytest.raises(BlockingIOError):
            self.listener.accept()
        assert not (self.directory.parent / "logs").exists()

    def complete(self, line: str) -> str:
        answer = self.directory.parent / "answer"
        variables = {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
        answer.write_text("")
        subprocess.run(
            self.command(),
            cwd=self.directory,
            env={**self.environ, **variables},
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=DEADLINE,
        )
        return answer.read_text()


@pytest.fixture(params=sorted(FILES))
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hostile]:
    directory = tmp_path / "project"
    directory.mkdir()
    made = Hostile(directory, request.param)
    yield made
    made.listener.close()


def warnings_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if "you have not trusted" in line]


@pytest.mark.parametrize("scheduler", ["kubernetes", "ray", "slurm"])
def test_a_list_contacts_nobody_whom_the_project_names(hostile: Hostile, scheduler: str) -> None:
    hostile.write(scheduler)
    variables = {"RAY_ADDRESS": "http://127.0.0.1:1"}
    listed = hostile("list", code=None, **variables)
    hostile.check()
    (warning,) = warnings_in(listed.err)
    assert str(hostile.directory / hostile.config) in warning
    assert "`shunter trust`" in warning
    assert "scheduler.kubernetes.kubeconfig" in warning
    assert "tracker.os" in warning
    for words in (["list", "-s", scheduler], ["doctor", "-s", scheduler], ["status", f"{scheduler}://a/b"]):
        hostile(*words, code=None, **variables)
        hostile.check()


@pytest.mark.slow
def test_reading_runs_nothing_of_the_project(hostile: Hostile, tmp_path: Path) -> None:
    """The job is of another directory; it is looked at from the hostile one."""
    elsewhere = Cli(tmp_path / "elsewhere")
    elsewhere.directory.mkdir()
    handle = elsewhere("run", "--wait", "utils.echo").out.strip()
    for words in (
        *(["list"], ["status", "-"], ["log", handle], ["why", handle], ["describe", handle]),
        *(["metrics", handle], ["wait", handle], ["diff", handle, handle], ["components"], ["schedulers"]),
        *(["runopts", "kubernetes"], ["workspace"], ["gc", "--dry-run"], ["config", "show"]),
        *(["components", "lint", "theirs.py"], ["doctor", "-s", "local_cwd"]),
    ):
        read = hostile(*words, code=None)
        hostile.check()
        assert len(warnings_in(read.err)) <= 1
    assert not warnings_in(hostile("list").err)
    assert not warnings_in(hostile("status", handle).err)
    assert warnings_in(hostile("tracker", "list", "jobs", code=3).err)
    hostile.check()


@pytest.mark.slow
def test_completion_runs_nothing_of_the_project(hostile: Hostile) -> None:
    assert "theirs.py" in hostile.complete("shunter run the")
    assert "job" in hostile.complete("shunter run theirs.py:")
    assert "--value" in hostile.complete("shunter run theirs.py:job --v")
    hostile.complete("shunter run -s kubernetes -cfg kube")
    hostile.complete("shunter status ")
    hostile.complete("shunter components theirs:")
    hostile.check()


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([], "run.component names a program to run"),
        (["-s", "kubernetes", "utils.touch", "--file", "x"], "scheduler.kubernetes.kubeconfig names cred"),
        (["-s", "ray", "utils.touch", "--file", "x"], "scheduler.ray.dashboard_address names an address"),
        (["-s", "slurm", "utils.touch", "--file", "x"], "scheduler.slurm.host names an address"),
        (["-s", "local_cwd", "utils.touch", "--file", "x"], "scheduler.local_cwd.notify names a program"),
        (["-s", "local_cwd", "utils.echo"], "component.utils.echo.mounts names access"),
    ],
)
def test_what_submits_refuses(hostile: Hostile, words: list[str], key: str) -> None:
    for command in (["run"], ["plan"], ["run", "--dryrun"]):
        refused = hostile(*command, *words, code=3)
        assert key in refused.err
        assert "`shunter trust`" in refused.err
        hostile.check()
    if words:
        hostile("sweep", *words, code=None)
    hostile.check()
    assert hostile("list", "--json").json == []


def test_a_tracker_of_the_project_is_in_no_job(hostile: Hostile) -> None:
    options = f"notify=None,log_dir={hostile.directory}/logs,prepend_cwd=False"
    refused = hostile("run", "-s", "local_cwd", "-cfg", options, "utils.touch", "--file", "x", code=3)
    assert re.search(r"tracker.os\S* names a plug-in", refused.err)
    hostile.check()


def test_a_page_runs_nothing_of_the_project(hostile: Hostile) -> None:
    pytest.importorskip("starlette")
    from urllib.request import urlopen

    hostile.write("ray")
    process = hostile.start("ui", "--no-browser", "--port", "0")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().split()[-1]
        with urlopen(url, timeout=DEADLINE) as answer:
            assert answer.status == 200
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE)
    hostile.check()


def test_the_pages_own_commands_import_nothing_of_the_project(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette")
    from shunter.ui.job_actions import run_shunter

    monkeypatch.chdir(hostile.directory)
    code, version, _ = asyncio.run(run_shunter("--version"))
    assert (code, version.startswith("shunter ")) == (0, True)
    hostile.check()


@pytest.mark.slow
def test_the_command_of_torchx_refuses_too(hostile: Hostile) -> None:
    words = [sys.executable, "-P", "-c", "from shunter.compat.torchx_command import main; exit(main())"]
    for command in (["run"], ["list"], ["run", "-s", "kubernetes", "utils.touch", "--", "--file", "x"]):
        subprocess.run(
            [*words, *command], cwd=hostile.directory, env=hostile.environ, timeout=DEADLINE, check=False
        )
        hostile.check()


# ---- trust


def test_trust_shows_asks_and_ends_with_a_change(cli: Cli) -> None:
    file = cli.directory / "shunter.toml"
    file.write_text(
        '[scheduler.local_cwd]\nnotify = ["true"]\ngrace_period = 1\n[tracker.fsspec]\nconfig = "x"\n'
    )
    shown = cli("trust", code=2)
    assert shown.out.splitlines() == [
        str(file),
        '  scheduler.local_cwd.notify = ["true"]',
        "      a program to run",
        '  tracker.fsspec = "x"',
        "      a plug-in",
    ]
    assert "--yes" in shown.err
    assert cli("trust", "--list").out == ""
    terminal = cli.on_terminal("trust")
    terminal.wait_for(b"[y/N]")
    terminal.type(b"n\n")
    assert terminal.finish() == 3
    cli("plan", "utils.touch", "--file", "x", code=3)
    terminal = cli.on_terminal("trust")
    terminal.wait_for(b"[y/N]")
    terminal.type(b"y\n")
    assert terminal.finish() == 0
    assert cli("trust", "--list").out == f"{file}\n"
    assert "is trusted already" in cli("trust").err
    cli("plan", "utils.touch", "--file", "x")
    with file.open("a") as opened:
        opened.write("# a comment changes nothing\n")
    cli("plan", "utils.touch", "--file", "x")
    file.write_text(file.read_text().replace("true", "false"))
    assert cli("trust", "--list", "--json").json == [{"path": str(file), "trusted": False}]
    cli("plan", "utils.touch", "--file", "x", code=3)
    cli("trust", "--yes")
    cli("plan", "utils.touch", "--file", "x")
    assert "trusted no more" in cli("trust", "--revoke").err
    cli("plan", "utils.touch", "--file", "x", code=3)


def test_trust_is_of_a_path_and_private(cli: Cli, home: Path) -> None:
    (cli.directory / "shunter.toml").write_text('[tracker.fsspec]\nconfig = "x"\n')
    copy = cli.directory.parent / "copy"
    copy.mkdir()
    (copy / "shunter.toml").write_text('[tracker.fsspec]\nconfig = "x"\n')
    cli("trust", "--yes")
    record = home / "state" / "trusted.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    assert list(json.loads(record.read_text())) == [str(cli.directory / "shunter.toml")]
    cli("plan", "utils.echo")
    cli.directory = copy
    cli("plan", "utils.echo", code=3)
    # a file that is added is another one
    (copy / ".torchxconfig").write_text("[cli:run]\ncomponent = x.py:job\n")
    cli("trust", str(copy), "--yes")
    cli("plan", "utils.echo")
    record.write_text("{")
    cli.directory = copy.parent / "work"
    cli("plan", "utils.echo", code=3)


def test_what_sets_only_defaults_needs_no_trust(cli: Cli) -> None:
    (cli.directory / "shunter.toml").write_text(
        '[run]\nimage = "python:3.12"\ncomponent = "utils.echo"\nworkspace = "."\nscheduler = "local_cwd"\n'
        '[component."utils.echo"]\nmsg = "hi"\n[cli.list]\nlimit = 3\n'
        '[scheduler.local_cwd]\ntimeout = 9\nlog_dir = "logs"\nprepend_cwd = false\n'
        '[scheduler.kubernetes]\nlocal_queue = "a"\n'
    )
    assert "needs no trust" in cli("trust").err
    assert cli("plan").err == ""
    assert cli("list").err == "no jobs yet\n"
    assert cli("trust", "--list").out == ""


def test_mistakes(cli: Cli) -> None:
    assert "no project's configuration file" in cli("trust", code=3).err
    assert "there is no directory nowhere" in cli("trust", "nowhere", code=3).err
    assert "--list goes with" in cli("trust", "--list", "--revoke", code=2).err
    assert "nothing in" in cli("trust", "--revoke").err

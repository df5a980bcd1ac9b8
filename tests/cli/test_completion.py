"""Completion as the shells themselves do it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends import need
from tests.cli.conftest import DEADLINE, Cli, Terminal


@pytest.fixture
def shell_cli(cli: Cli, tmp_path: Path) -> Cli:
    """A command line whose program is called ``shunter``, as shells need it."""
    program = tmp_path / "bin" / "shunter"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m shunter "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    cli.environ["PATH"] = f"{program.parent}{os.pathsep}{cli.environ['PATH']}"
    return cli


def run_shell(cli: Cli, *command: str) -> str:
    done = subprocess.run(
        command, env=cli.environ, cwd=cli.directory, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done
    return done.stdout


BASH = """
eval "$(shunter completion bash)"
line=$1
COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9
read -ra COMP_WORDS <<< "$line"
[[ $line == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
spec=$(complete -p shunter)
function=${spec#*-F }
${function%% *} shunter
printf '%s\\n' "${COMPREPLY[@]}"
"""


def bash(cli: Cli, line: str) -> list[str]:
    return [word.strip() for word in run_shell(cli, "bash", "-c", BASH, "bash", line).split()]


@pytest.mark.slow
def test_bash_completes_commands_options_and_choices(shell_cli: Cli) -> None:
    assert bash(shell_cli, "shunter sta") == ["status"]
    assert "rerun" in bash(shell_cli, "shunter ")
    assert bash(shell_cli, "shunter status --wa") == ["--watch"]
    assert bash(shell_cli, "shunter log --streams st") == ["stdout", "stderr"]
    assert bash(shell_cli, "shunter completion z") == ["zsh"]
    assert bash(shell_cli, "shunter nothing x") == []


@pytest.mark.slow
def test_bash_completes_jobs(shell_cli: Cli) -> None:
    handle = shell_cli("run", "--wait", "utils.echo").out.strip()
    app_id = handle.rpartition("/")[2]
    for command in ("status", "log", "cancel", "rerun", "describe", "wait", "delete"):
        assert bash(shell_cli, f"shunter {command} ec") == [app_id]
    # bash takes a colon for the end of a word
    assert bash(shell_cli, "shunter status local_cwd://sh") == [handle.partition(":")[2]]


@pytest.mark.slow
def test_bash_completes_components_schedulers_and_their_options(shell_cli: Cli) -> None:
    shell_cli.plugins()
    assert bash(shell_cli, "shunter run utils.ec") == ["utils.echo"]
    assert bash(shell_cli, "shunter components utils.ec") == ["utils.echo"]
    assert bash(shell_cli, "shunter run utils.echo --ms") == ["--msg"]
    assert bash(shell_cli, "shunter run -s remote utils.echo --num") == ["--num-replicas"]
    assert bash(shell_cli, "shunter run utils.echo --wai") == []
    assert bash(shell_cli, "shunter run -s rem") == ["remote"]
    assert bash(shell_cli, "shunter runopts rem") == ["remote"]
    assert bash(shell_cli, "shunter run -s remote -cfg q") == ["queue="]
    assert bash(shell_cli, "shunter greet --he") == ["--help"]
    (shell_cli.directory / "train.py").write_text("")
    assert bash(shell_cli, "shunter run ./tr") == ["./train.py"]


@pytest.mark.slow
def test_code_that_is_completed_is_not_run(shell_cli: Cli) -> None:
    (shell_cli.directory / "comp.py").write_text(
        """
from typing import Annotated, Literal
open("ran", "w").close()
from shunter.specs import AppDef
def job(name: str, *, memMB: int = 1, dry: bool | None = None, how: Literal["fast", "slow"] = "fast",
        config: Annotated[str, "-cn", "its name"] = "") -> AppDef: ...
def helper(x: int) -> int: ...
def other(x: int) -> "specs.AppDef": ...
"""
    )
    (shell_cli.directory / "broken.py").write_text("def (")
    for place in ("comp.py", "./comp.py"):
        assert bash(shell_cli, f"shunter run {place}:") == ["job", "other"]  # bash: behind the colon
        options = {"--config", "--dry", "--how", "--mem-mb", "--name"}
        assert options <= set(bash(shell_cli, f"shunter run {place}:job --"))
    assert bash(shell_cli, "shunter run broken.py:") == bash(shell_cli, "shunter run no.py:") == []
    assert not (shell_cli.directory / "ran").exists()


def test_completion_writes_nothing(shell_cli: Cli, home: Path) -> None:
    bash(shell_cli, "shunter status ")
    assert not home.exists()


@pytest.mark.slow
def test_fish(shell_cli: Cli) -> None:
    need("fish")
    handle = shell_cli("run", "--wait", "utils.echo").out.strip()

    def complete(line: str) -> list[str]:
        script = f"shunter completion fish | source; complete -C '{line}'"
        return [entry.split("\t")[0] for entry in run_shell(shell_cli, "fish", "-c", script).splitlines()]

    assert complete("shunter sta") == ["status"]
    assert complete("shunter status ec") == [handle.rpartition("/")[2]]
    assert complete("shunter run utils.echo --ms") == ["--msg"]


def test_zsh(shell_cli: Cli) -> None:
    need("zsh")
    handle = shell_cli("run", "--wait", "utils.echo").out.strip()
    (shell_cli.directory / ".zshrc").write_text(
        "PS1='ready> '\nautoload -U compinit\ncompinit -u -D\neval \"$(shunter completion zsh)\"\n"
    )
    zsh = str(shutil.which("zsh"))
    shown = Terminal(
        [zsh, "-i"], shell_cli.directory, {**shell_cli.environ, "ZDOTDIR": str(shell_cli.directory)}
    )
    try:
        shown.wait_for(b"ready> ")
        shown.type(b"shunter sta\t")
        shown.wait_for(b"shunter status")
        shown.type(b"ec\t")
        shown.wait_for(handle.rpartition("/")[2].encode())
    finally:
        shown.kill()

"""What the fast paths import is counted, not timed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import DEADLINE, Cli

SLOW = frozenset(
    [
        "asyncio",
        "dataclasses",
        "importlib.metadata",
        "inspect",
        "logging",
        "pathlib",
        "sqlite3",
        "subprocess",
        "tomllib",
        "argcomplete",
        "boto3",
        "docker",
        "docstring_parser",
        "rich",
        "yaml",
        "shunter.components",
        "shunter.specs.app",
    ]
)
#: Modules of ours: each costs a dry run 0.1 ms, however small it is.
DRY_RUN_MODULES = 75
COUNT = """
import sys
from shunter.cli import main
code = main(sys.argv[1:])
modules = sorted(sys.modules)
import json  # not counted
print(json.dumps([code, modules]), file=sys.stderr)
"""


def modules_of(cli: Cli, *args: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", COUNT, *args],
        env=cli.environ,
        cwd=cli.directory,
        capture_output=True,
        timeout=DEADLINE,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done
    return set(modules)


def commands_in(modules: set[str]) -> set[str]:
    prefix = "shunter.cli.commands."
    return {name.removeprefix(prefix) for name in modules if name.startswith(prefix)}


@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_what_needs_no_command_imports_none(cli: Cli, words: list[str]) -> None:
    modules = modules_of(cli, *words)
    assert not commands_in(modules)
    assert not modules & (SLOW | {"argparse", "json", "shunter.runner", "shunter.schedulers"})


def test_a_dry_run_does_without_the_slow_modules_of_the_standard_library(cli: Cli) -> None:
    modules = modules_of(cli, "run", "--dryrun", "-s", "local_cwd", "utils.echo", "--msg", "hello")
    assert not modules & (SLOW - {"shunter.components", "shunter.specs.app"})
    assert not modules & {
        *("argparse", "contextlib", "copy", "gettext", "json", "math", "select", "shlex", "signal"),
        *("string", "struct", "threading", "typing", "weakref", "shunter.system.linux"),
    }
    assert len([name for name in modules if name.startswith("shunter")]) <= DRY_RUN_MODULES


def test_a_dry_run_for_slurm_imports_nothing_that_reaches_it(cli: Cli) -> None:
    modules = modules_of(cli, "run", "--dryrun", "-s", "slurm", "--workspace", "", "utils.echo")
    assert not modules & (SLOW - {"shunter.components", "shunter.specs.app"})
    assert not modules & {
        *("argparse", "hashlib", "importlib.resources", "shutil", "socket", "tarfile", "tempfile"),
        *(f"shunter.schedulers.hpc.{name}" for name in ("commands", "logs", "ssh", "storage")),
    }
    assert len([name for name in modules if name.startswith("shunter")]) <= DRY_RUN_MODULES + 15


def test_a_run_does_without_argparse_and_json(cli: Cli) -> None:
    modules = modules_of(cli, "run", "--wait", "-s", "local_cwd", "utils.echo")
    assert not modules & {"argparse", "copy", "gettext", "json", "shlex", "string"}


def test_status_of_a_local_handle(cli: Cli) -> None:
    handle = cli("run", "--wait", "utils.echo").out.strip()
    modules = modules_of(cli, "status", handle)
    assert commands_in(modules) == {"status"}
    assert not modules & (
        SLOW | {"contextlib", "ctypes", "shutil", "socket", "textwrap", "threading", "typing"}
    )


def test_log_of_a_local_handle(cli: Cli) -> None:
    handle = cli("run", "--wait", "utils.echo").out.strip()
    modules = modules_of(cli, "log", handle)
    assert commands_in(modules) == {"log"}
    assert not modules & SLOW


def test_list(cli: Cli) -> None:
    cli("run", "--wait", "utils.echo")
    modules = modules_of(cli, "list")
    assert commands_in(modules) == {"list"}
    assert not modules & (SLOW - {"sqlite3"})


def test_run_does_not_import_what_other_commands_need(cli: Cli) -> None:
    modules = modules_of(cli, "run", "--wait", "utils.echo")
    assert commands_in(modules) == {"run"}
    assert not modules & {
        "asyncio",
        "importlib.metadata",
        "argcomplete",
        "rich",
        "yaml",
    }

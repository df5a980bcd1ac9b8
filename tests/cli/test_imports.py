"""Commands that only read do not import the heavy third-party packages of backends and of the page."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import DEADLINE, Cli

HEAVY = {"asyncio", "boto3", "lightkube", "psutil", "rich", "starlette"}
#: What only submissions need.
FOR_SUBMISSIONS = {
    "shunter.runner.preparation",
    "shunter.schedulers.toolkit_start",
    "shunter.workspace.environment",
}
PROGRAM = """
import json, sys
from shunter.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["status", "list"])
def test_reading_a_local_job_imports_no_heavy_module(cli: Cli, command: str) -> None:
    handle = cli("run", "--wait", "utils.echo").out.strip()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, command, *([handle] if command == "status" else [])],
        env=cli.environ,
        cwd=cli.directory,
        capture_output=True,
        timeout=DEADLINE,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done
    assert not HEAVY & set(modules)
    if command == "list":
        assert not FOR_SUBMISSIONS & set(modules)

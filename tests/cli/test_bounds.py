"""Numbers that are out of all proportion are refused where they are read, with the limit."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.conftest import Cli

HUGE = ("99999999999", "9" * 30, "9" * 5000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "--limit", "N"], "1,000,000,000"),
        (["log", "-", "--tail", "N"], "1,000,000,000"),
        (["log", "-/save/0-N"], "10,000"),
        (["log", "-", "save/N"], "10,000"),
        (["wait", "-", "--timeout", "N"], "36,525 d"),
        (["gc", "--older-than", "Nd"], "36,525 d"),
        (["list", "--since", "Nd"], "is not a time"),
        (["drill", "spot", "-", "--absence", "N"], "36,525 d"),
        (["sagemaker-local", "serve", "--port", "N"], "65,535"),
        (["run", "utils.echo", "--num_replicas", "N"], "10,000|not an integer"),
        (["run", "--dryrun", "utils.sh", "--max_retries", "N", "true"], "1,000,000|not an integer"),
        (["run", "--dryrun", "utils.sh", "--memMB", "N", "true"], "1,000,000,000|not an integer"),
        (["run", "--dryrun", "utils.sh", "--cpu", "N", "true"], "100,000|not an integer"),
        (["run", "--dryrun", "dist.ddp", "--script", "a.py", "-j", "Nx1"], "10,000"),
        (["run", "--dryrun", "dist.ddp", "--script", "a.py", "-j", "1xN"], "10,000"),
        (["run", "--dryrun", "-cfg", "timeout=N", "utils.echo"], "at most 3155760000|a number of seconds"),
        (["run", "--dryrun", "-cfg", "grace_period=N", "utils.echo"], "at most 3155760000|number of seconds"),
    ],
)
def test_a_number_out_of_all_proportion_is_refused(cli: Cli, words: list[str], said: str) -> None:
    program = """
import resource, sys
from shunter.cli.command_line import run_command_line
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
for number in sys.argv[1].split(","):
    print(run_command_line([word.replace("N", number) for word in sys.argv[2:]]), file=sys.stderr)
"""
    command = [sys.executable, "-c", program, ",".join(HUGE), *words]
    result = subprocess.run(
        command, cwd=cli.directory, env=cli.environ, capture_output=True, text=True, timeout=30, check=True
    )
    said_by_each = result.stderr.split("error: ")[1:]
    assert len(said_by_each) == len(HUGE), result.stderr
    for text in said_by_each:
        assert any(part in text for part in said.split("|")), text
        assert text.splitlines()[-1] in ("2", "3"), text
        assert max(map(len, text.splitlines())) < 300, text

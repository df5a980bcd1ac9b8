"""No secret of a command line is stored or shown, and a job that had one can be repeated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

SECRET = "hunter2hunter2"
WAYS = [
    f"python t.py --password {SECRET}",
    f"MY_PASS='{SECRET}' python t.py | curl -u me:{SECRET} -H 'X-Api-Key: {SECRET}' https://me:{SECRET}@h/",
]
OPTIONS = {
    "local_cwd": "",
    "local_docker": "",
    "aws_batch": "queue=q,region=us-east-1",
    "aws_sagemaker": "role=arn:aws:iam::123456789012:role/x,instance_type=ml.m5.large,region=us-east-1",
    "sagemaker_local": "role=arn:aws:iam::123456789012:role/x,instance_type=ml.m5.large,region=us-east-1",
}


def holders(*places: Path) -> list[Path]:
    """Return the files below some directories that hold the secret."""
    files = [Path(top) / name for place in places for top, _, names in os.walk(place) for name in names]
    return [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", OPTIONS)
def test_no_dry_run_shows_it(cli: Cli, scheduler: str) -> None:
    options = ["-s", scheduler, *(["-cfg", OPTIONS[scheduler]] if OPTIONS[scheduler] else [])]
    words = ["run", *options, "--dryrun", "--workspace", "", "utils.sh", "--image", "i:1", "--"]
    for command in ([WAYS[0]], ["sh", "-c", WAYS[1]]):
        shown = cli(*words, *command)
        assert SECRET not in shown.out + shown.err


@pytest.mark.slow
def test_nothing_that_is_kept_or_shown_of_a_job_holds_it(cli: Cli, tmp_path: Path) -> None:
    handle = cli(
        "run", "--wait", "utils.sh", "--", "sh", "-c", f"echo --password {SECRET} | wc -c"
    ).out.strip()
    assert holders(Path(os.environ["TRAINYARD_HOME"]), cli.directory) == []
    for words in (
        ["describe"],
        ["describe", "--json"],
        ["status"],
        ["list", "--json"],
        ["rerun", "--dryrun"],
    ):
        shown = cli(*words, *([handle] if words != ["list", "--json"] else []), code=None)
        assert SECRET not in shown.out + shown.err
    told = cli("rerun", "--wait", handle, code=3).err
    assert "export TRAINYARD_SECRET_PASSWORD=..." in told
    again = cli("rerun", "--wait", handle, TRAINYARD_SECRET_PASSWORD=SECRET).out.strip()
    assert cli("log", "--no-prefix", again).out == cli("log", "--no-prefix", handle).out
    known = cli(
        "run", "--wait", "utils.sh", "--", "sh", "-c", f"echo --password {SECRET} | wc -c", DB_PASSWORD=SECRET
    )
    cli("rerun", "--wait", known.out.strip(), DB_PASSWORD=SECRET)
    assert "DB_PASSWORD is not set" in cli("rerun", known.out.strip(), code=3).err
    changed = cli("diff", handle, again, code=None)
    assert SECRET not in changed.out + changed.err
    assert holders(Path(os.environ["TRAINYARD_HOME"]), cli.directory) == []

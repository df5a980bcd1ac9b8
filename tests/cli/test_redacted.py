"""No secret of a command line is stored or shown, and a job that had one can be repeated."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.secret_tries import HARMLESS, PLACES

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


def tries() -> dict[str, list[str]]:
    """Return the arguments of all places, each by the secret that is in it, which no other has."""
    return {
        f"s3cr3t{number:03}x": [word.replace("{}", f"s3cr3t{number:03}x") for word in words]
        for number, words in enumerate(PLACES.values())
    }


@pytest.fixture
def component(cli: Cli) -> str:
    """A component whose arguments are those of its program."""
    (cli.directory / "own.py").write_text(
        "import shunter.specs as specs\n\n\n"
        "def program(*args: str) -> specs.AppDef:\n"
        "    return specs.AppDef('own', [specs.Role('own', '', entrypoint='false', args=list(args))])\n"
    )
    return "own.py:program"


@pytest.mark.slow
@pytest.mark.parametrize("shell", [True, False], ids=["one line of a shell", "arguments"])
def test_no_secret_of_any_place_is_kept_or_shown(cli: Cli, component: str, shell: bool) -> None:
    """In the history, the job's directory, plans, dry runs, lists, statuses and messages."""
    words = [word for given in tries().values() for word in [*given, "next"]]
    command = ["utils.sh", "--", "false", *words] if shell else [component, "--", *words]
    outputs = [("run", "-s", "slurm", "--dryrun"), ("run", "-s", "local_cwd", "--dryrun"), ("plan",)]
    shown = [cli(*each, *as_json, *command, code=None) for each in outputs for as_json in ([], ["--json"])]
    handle = cli("run", "--wait", *command, code=1).out.strip()
    for reading in (["status", handle], ["describe", handle], ["list"], ["why", handle]):
        shown += [cli(*reading, *as_json, code=None) for as_json in ([], ["--json"])]
    shown.append(cli("run", "-s", "local_cwd", "-cfg", "nonsense=1", *command, code=None))
    shown.append(cli("run", "utils.nonsense", *command[1:], code=None))
    text = "".join(each.out + each.err for each in shown)
    folder = Path(os.environ["SHUNTER_HOME"])
    kept = b"".join(Path(top, name).read_bytes() for top, _, names in os.walk(folder) for name in names)
    assert "next" in text
    assert b"next" in kept
    assert [words for secret, words in tries().items() if secret in text] == []
    assert [words for secret, words in tries().items() if secret.encode() in kept] == []


@pytest.mark.slow
def test_what_is_no_secret_is_kept(cli: Cli, component: str) -> None:
    words = [word for given in HARMLESS for word in [*given, "next"]]
    handle = cli("run", "--wait", component, "--", *words, code=1).out.strip()
    again = cli("rerun", "--wait", handle, code=1).out.strip()
    for job in (handle, again):
        assert json.loads(cli("describe", "--json", job).out)["app"]["roles"][0]["args"] == words


@pytest.mark.slow
def test_nothing_that_is_kept_or_shown_of_a_job_holds_it(cli: Cli, tmp_path: Path) -> None:
    handle = cli(
        "run", "--wait", "utils.sh", "--", "sh", "-c", f"echo --password {SECRET} | wc -c"
    ).out.strip()
    assert holders(Path(os.environ["SHUNTER_HOME"]), cli.directory) == []
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
    assert "export SHUNTER_SECRET_PASSWORD=..." in told
    again = cli("rerun", "--wait", handle, SHUNTER_SECRET_PASSWORD=SECRET).out.strip()
    assert cli("log", "--no-prefix", again).out == cli("log", "--no-prefix", handle).out
    known = cli(
        "run", "--wait", "utils.sh", "--", "sh", "-c", f"echo --password {SECRET} | wc -c", DB_PASSWORD=SECRET
    )
    cli("rerun", "--wait", known.out.strip(), DB_PASSWORD=SECRET)
    assert "DB_PASSWORD is not set" in cli("rerun", known.out.strip(), code=3).err
    changed = cli("diff", handle, again, code=None)
    assert SECRET not in changed.out + changed.err
    assert holders(Path(os.environ["SHUNTER_HOME"]), cli.directory) == []

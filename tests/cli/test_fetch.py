"""`shunter fetch`, with jobs of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shunter.runner.fetched_results import _part_path
from shunter.schedulers.kept_results import ResultFile
from tests.cli.conftest import Cli
from tests.result_jobs import SCRIPT, WEIGHTS

ODD = r"""
import os
model = os.environ["SM_MODEL_DIR"]
for name in (b"esc\x1b[2J", b"two\nlines", b"caf\xe9", "späß".encode()):
    open(os.path.join(os.fsencode(model), name), "w").write("odd")
"""
#: Goes on when there is a file ``go`` beside it.
GROWS = """
import os, time
with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/log", "w") as file:
    file.write("one\\n")
    file.flush()
    while not os.path.exists("go"):
        time.sleep(0.02)
    file.write("two\\n")
"""


def job(cli: Cli, script: str, *words: str) -> str:
    (cli.directory / "train.py").write_text(script)
    return cli("run", "--wait", "train.script", "--script", "train.py", *words).out.split()[0]


def files_of(folder: Path) -> dict[str, bytes]:
    found = [Path(where) / name for where, _, names in os.walk(folder) for name in names]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_results_come_to_a_directory_and_only_what_is_missing_comes_again(cli: Cli) -> None:
    handle = job(cli, SCRIPT)
    shown = cli("fetch", "--list", handle)
    assert "model/sub/weights" in shown.out
    assert "2.9 MiB" in shown.out
    assert "left out: output/data/passwd is a link" in shown.err
    here = cli.directory / handle.rpartition("/")[2]
    first = cli("fetch", handle)
    assert "fetched 4 files (5.9 MiB) to" in first.out
    assert files_of(here) == {
        "model/latest": WEIGHTS,
        "model/sub/weights": WEIGHTS,
        "output/data/x.csv": b"1,2\n",
        "output/success": b"",
    }
    assert not any(path.is_symlink() for path in here.rglob("*"))
    (here / "output/data/x.csv").unlink()
    again = cli("fetch")
    assert "fetched 1 file (4 B)" in again.out
    assert "3 files were there already" in again.out
    (here / "output/data/x.csv").write_text("mine")
    refused = cli("fetch", "-", "output", code=3)
    assert "x.csv exists and differs" in refused.err
    assert (here / "output/data/x.csv").read_text() == "mine"
    found = cli("fetch", "-", "*.csv", "--force", "--json").json["files"]
    assert [(file["path"], file["state"]) for file in found] == [("output/data/x.csv", "fetched")]
    assert (here / "output/data/x.csv").read_text() == "1,2\n"
    assert "no result matches 'y'" in cli("fetch", "-", "y", code=3).err


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_fetch_goes_on_where_it_was_killed(cli: Cli, is_damaged: bool) -> None:
    handle = job(cli, SCRIPT)
    # what a killed fetch leaves: the beginning, under a name that tells which version of the file it is of
    listing = cli("fetch", "--list", "--json", handle, "model/sub").json
    cli("fetch", handle, "model/sub", "--to", "here")
    (cli.directory / "here/model/sub/weights").unlink()
    file = ResultFile(*(listing[0][key] for key in ("path", "size", "modified")))
    path = str(cli.directory / "here/model/sub/weights")
    # its beginning shows that it is used; its end is compared, and was lost if the machine went down
    part = b"0123456789" + WEIGHTS[10:100_000] + (bytes(512) if is_damaged else WEIGHTS[100_000:100_512])
    Path(_part_path(path, file)).write_bytes(part)
    stale = Path(_part_path(path, ResultFile(file.path, 7, 1.0)))
    stale.write_bytes(b"of another version")
    other = Path(_part_path(f"{path}.gz", file))
    other.write_bytes(b"of another file")
    cli("fetch", handle, "model/sub", "--to", "here")
    assert other.read_bytes() == b"of another file"
    other.unlink()
    expected = WEIGHTS if is_damaged else b"0123456789" + WEIGHTS[10:]
    assert files_of(cli.directory / "here") == {"model/sub/weights": expected}


def test_names_that_a_job_chose_are_not_trusted(cli: Cli) -> None:
    handle = job(cli, ODD)
    result = cli("fetch", handle, "--to", "here", code=3)
    assert "\x1b[2J" not in result.err
    assert result.err.count("refused to fetch") == 2
    names = {os.fsencode(name) for name in os.listdir(cli.directory / "here/model")}
    assert names == {b"caf\xe9", "späß".encode()}
    outside = cli.directory / "outside"
    outside.mkdir()
    (cli.directory / "linked").mkdir()
    (cli.directory / "linked/model").symlink_to(outside)
    assert "a link leads out" in cli("fetch", handle, "model/sp*", "--to", "linked", code=3).err
    assert os.listdir(outside) == []


def test_a_job_that_runs_has_what_is_there_so_far(cli: Cli) -> None:
    (cli.directory / "train.py").write_text(GROWS)
    handle = cli("run", "--detach", "train.script", "--script", "train.py").out.split()[0]
    while "output/data/log" not in cli("fetch", "--list", handle, code=None).out:
        pass  # its test has a limit
    cli("fetch", handle, "--to", "here")
    assert files_of(cli.directory / "here") == {"output/data/log": b"one\n"}
    (cli.directory / "go").touch()
    cli("wait", handle)
    assert "log exists and differs" in cli("fetch", handle, "--to", "here", code=3).err
    cli("fetch", handle, "--to", "here", "--force")
    assert files_of(cli.directory / "here")["output/data/log"] == b"one\ntwo\n"


def test_several_replicas_have_a_directory_each(cli: Cli) -> None:
    script = "import os; open(os.environ['SM_MODEL_DIR'] + '/m', 'w').write(os.environ['TORCHX_REPLICA_IDX'])"
    handle = job(cli, script, "--num_replicas", "2")
    cli("fetch", handle, "model", "--to", "all")
    assert files_of(cli.directory / "all") == {"train/0/model/m": b"0", "train/1/model/m": b"1"}
    cli("fetch", f"{handle}/train/1", "model", "--to", "one")
    assert files_of(cli.directory / "one") == {"model/m": b"1"}


def test_where_there_are_no_results_an_error_says_what_to_do(cli: Cli) -> None:
    cli("run", "--wait", "utils.echo")
    result = cli("fetch", code=3)
    assert "without the toolkit" in result.err
    assert "train.script" in result.err
    assert "does not know the job" in cli("fetch", "local_cwd://x/none", code=5).err

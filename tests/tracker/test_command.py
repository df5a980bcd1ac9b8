"""`shunter tracker`, jobs that note something, and where their trackers are configured."""

from __future__ import annotations

from pathlib import Path

import pytest

from shunter.tracker.backend.fsspec import create
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]

JOB = """
from shunter.tracker import app_run_from_env
run = app_run_from_env()
run.add_metadata(loss=0.25)
run.add_artifact("model", "/models/1", {"epoch": 3})
print("noted", run.id)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.mark.parametrize("kind", ["shunter.toml", ".torchxconfig"])
def test_a_job_notes_and_the_command_shows(cli: Cli, runs: Path, kind: str) -> None:
    text = {
        "shunter.toml": f'[tracker.fsspec]\nconfig = "{runs.as_uri()}"\n',
        ".torchxconfig": "[torchx:tracker]\nfsspec =\n\n[tracker:fsspec]\nconfig = tracker.conf\n",
    }
    (cli.directory / kind).write_text(text[kind])
    (cli.directory / "tracker.conf").write_text(f"protocol=file\nroot_path={runs}\n")
    (cli.directory / "job.py").write_text(JOB)
    cli("trust", "--yes")
    words = ["-s", "local_cwd", "--parent-run-id", "sweep-1", "utils.python", "--script", "job.py"]
    assert "noted" in cli("run", "--wait", "--log", *words).err
    (handle,) = cli("tracker", "list", "jobs", "--json").json
    assert handle.startswith("local_cwd://")
    assert cli("tracker", "list", "jobs", "--parent-run-id", "sweep-1").out == f"JOB ID\n{handle}\n"
    assert cli("tracker", "list", "metadata", "-").out.split() == ["ID", "VALUE", "loss", "0.25"]
    assert cli("tracker", "list", "artifacts", handle, "--json").json == [
        {"name": "model", "path": "/models/1", "metadata": {"epoch": 3}}
    ]
    lineage = cli("tracker", "list", "lineage", "sweep-1", "--json").json
    assert lineage == {"sources": [], "descendants": [handle]}


def test_what_is_shown(cli: Cli, runs: Path) -> None:
    tracker = create(runs.as_uri())
    tracker.add_source("b", "a", "model")
    tracker.add_source("b", "x")
    tracker.add_source("c", "b", "data")
    tracker.add_artifact("b", "one", "/1")
    tracker.add_artifact("b", "two", "/2")
    (cli.directory / "shunter.toml").write_text(f'[tracker.fsspec]\nconfig = "{runs.as_uri()}"\n')
    cli("trust", "--yes")
    shown = cli("tracker", "list", "lineage", "b").out.splitlines()
    assert [line.split() for line in shown] == [
        ["RELATION", "JOB", "ID", "ARTIFACT"],
        ["source", "a", "model"],
        ["source", "x"],
        ["descendant", "c"],
    ]
    of_artifact = cli("tracker", "list", "lineage", "b", "--artifact", "data", "--json")
    assert of_artifact.json == {"sources": [], "descendants": ["c"]}
    shown = cli("tracker", "list", "artifacts", "--artifact", "two", "b").out.splitlines()
    assert [line.split() for line in shown] == [["ARTIFACT", "PATH", "METADATA"], ["two", "/2"]]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["list", "jbos"], 2, "invalid choice"),
        (["show"], 2, "invalid choice"),
        (["list", "metadata"], 2, "needs a job"),
        (["list", "jobs", "x"], 2, "--parent-run-id"),
        (["list", "jobs"], 3, "no tracker is configured"),
    ],
)
def test_mistakes(cli: Cli, words: list[str], code: int, message: str) -> None:
    assert message in cli("tracker", *words, code=code).err


@pytest.mark.parametrize(
    ("config", "words", "message"),
    [
        ("[tracker.fsspec]\nconfig = '/not/there'\n", [], "Cannot read the configuration"),
        ("[tracker.nothing]\nconfig = ''\n", [], "there is no tracker 'nothing'"),
        ("[tracker.fsspec]\nconfig = '/'\n", ["--tracker", "fsspce"], "Did you mean"),
    ],
)
def test_configurations_that_are_wrong(cli: Cli, config: str, words: list[str], message: str) -> None:
    (cli.directory / "shunter.toml").write_text(config)
    cli("trust", "--yes")
    assert message in cli("tracker", "list", "jobs", *words, code=3).err


OF_TORCHX = """
from torchx.tracker.api import TrackerBase
class Tracker(TrackerBase):
    def __init__(self, config): self.config = config
    def add_artifact(self, run_id, name, path, metadata=None): pass
    def artifacts(self, run_id): return {}
    def add_metadata(self, run_id, **kwargs): print("noted", run_id, kwargs)
    def metadata(self, run_id): return {"config": self.config}
    def add_source(self, run_id, source_id, artifact_name=None): pass
    def sources(self, run_id, artifact_name=None): return []
    def lineage(self, run_id): raise NotImplementedError
    def run_ids(self, **kwargs): return ["one"]
"""


@pytest.mark.slow
def test_a_tracker_that_was_written_for_torchx(cli: Cli) -> None:
    site = cli.directory.parent / "site"
    info = site / "theirs-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torchx.tracker]\ntheirs = theirs_tracker:Tracker\n")
    (site / "theirs_tracker.py").write_text(OF_TORCHX)
    cli.environ["PYTHONPATH"] += f":{site}"
    (cli.directory / ".torchxconfig").write_text(
        "[torchx:tracker]\ntheirs =\n\n[tracker:theirs]\nconfig = here\n"
    )
    (cli.directory / "job.py").write_text(JOB)
    cli("trust", "--yes")
    assert cli("tracker", "list", "jobs", "--json").json == ["one"]
    assert cli("tracker", "list", "metadata", "one").out.split() == ["ID", "VALUE", "config", "here"]
    shown = cli("run", "--log", "-s", "local_cwd", "utils.python", "--script", "job.py").err
    assert "{'loss': 0.25}" in shown

"""`.torchxconfig` in its places and with its sections, and workspaces as TorchX writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shunter.cli import main
from shunter.errors import UsageError, WorkspaceError
from shunter.runner.config import load_config
from shunter.specs.workspace import Workspace
from shunter.workspace.fetching import fetched
from shunter.workspace.snapshot import snapshot
from tests.trusting import trust_project

pytestmark = pytest.mark.filterwarnings("default::RuntimeWarning")

EVERYTHING = """
[cli:run]
scheduler = local_cwd
component = utils.echo
workspace = file://.
size = large

[cli:list]
scheduler = local_cwd
colour = green

[local_cwd]
log_dir = {log_dir}
prepend_cwd = True
prepend_path = x

[component:utils.echo]
msg = from the file
mesage = x

[torchx:tracker]
plain =
fsspec =

[tracker:fsspec]
config = tracker.conf
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (tmp_path / "home").mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TORCHXCONFIG", raising=False)
    (folder / "code.py").write_text("3")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("place", ["project", "home", "named"])
def test_every_section_counts_wherever_the_file_is(
    place: str,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / ("named.ini" if place == "named" else f"{place}/.torchxconfig")
    path.write_text(EVERYTHING.format(log_dir=tmp_path / "logs"))
    if place == "named":
        monkeypatch.setenv("TORCHXCONFIG", str(path))
    if place == "project":
        trust_project()
    assert main(["run", "--dryrun", "--json"]) == 0
    shown = capfd.readouterr()
    plan = json.loads(shown.out)
    assert plan["scheduler"] == "local_cwd"
    assert (plan["cfg"]["log_dir"], plan["cfg"]["prepend_cwd"]) == (str(tmp_path / "logs"), True)
    role = plan["app"]["roles"][0]
    assert role["args"] == ["from the file"]
    assert role["env"]["TORCHX_TRACKERS"] == "plain,fsspec"
    assert role["env"]["TORCHX_TRACKER_FSSPEC_CONFIG"] == "tracker.conf"
    # what is too much has no effect, and is named with its file
    assert f"{path}: local_cwd has no option 'prepend_path'" in shown.err
    assert f"{path}: [cli.run] has no key 'size'" in shown.err
    assert f"{path}: utils.echo has no parameter 'mesage'" in shown.err
    assert main(["plan", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["app"]["roles"][0]["args"] == ["from the file"]
    assert main(["list"]) == 0
    assert f"{path}: [cli.list] has no key 'colour'" in capfd.readouterr().err


def test_the_empty_variable_switches_all_files_off(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("home", "project"):
        (tmp_path / place / ".torchxconfig").write_text("[cli:run]\ncomponent = utils.echo\n")
    assert load_config().command("run")
    monkeypatch.setenv("TORCHXCONFIG", "")
    assert not load_config().command("run")


@pytest.mark.parametrize(
    "text",
    ["[component:utils.echo]\nmesage = x\n", '[component."utils.echo"]\nmesage = "x"\n'],
    ids=["torchx", "shunter"],
)
def test_what_is_too_much_in_a_file_of_shunter_is_still_refused(
    project: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ours = '"' in text
    (project / ("shunter.toml" if ours else ".torchxconfig")).write_text(text)
    assert (main(["run", "--dryrun", "-s", "local_cwd", "utils.echo"]) == 0) is not ours
    assert ("unknown default 'mesage'" in capfd.readouterr().err) is ours


# ---- workspaces


@pytest.mark.parametrize(
    ("text", "projects"),
    [
        ("file://.", {".": ""}),
        ("file:///work/it", {"/work/it": ""}),
        ("file://sub", {"sub": ""}),
        ("memory://torchx-workspace/", {"memory://torchx-workspace/": ""}),
        ("app: .", {"app": ""}),
        ("app: sub", {"app": "sub"}),
        ("app: .\n../lib: vendor/lib", {"app": "", "../lib": "vendor/lib"}),
        ("app:", {"app": ""}),
        ("{file://app: sub, s3://bucket/x: data}", {"app": "sub", "s3://bucket/x": "data"}),
        ("{app: sub, '../other lib': x}", {"app": "sub", "../other lib": "x"}),
    ],
)
def test_workspaces_as_torchx_writes_them(text: str, projects: dict[str, str]) -> None:
    assert Workspace.from_str(text).projects == projects


def test_a_directory_whose_name_looks_like_yaml_is_meant(project: Path) -> None:
    (project / "a: b").mkdir()
    assert Workspace.from_str("a: b").projects == {"a: b": ""}
    with pytest.raises(UsageError):
        Workspace.from_str("a: b\na: c")


def test_a_workspace_in_memory_is_fetched(project: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    files.pipe({"/shunter-test/main.py": b"1", "/shunter-test/sub/x.txt": b"2"})
    try:
        workspace = fetched(Workspace.from_str("memory://shunter-test=.,.=lib"))
        entries = {entry.path for entry in snapshot(workspace).manifest.entries if entry.kind == "file"}
        assert entries == {"main.py", "sub/x.txt", "lib/code.py"}
        assert fetched(Workspace.from_str(".")).projects == {".": ""}
        with pytest.raises(WorkspaceError, match="no files at the workspace memory://shunter-nothing"):
            fetched(Workspace.from_str("memory://shunter-nothing"))
    finally:
        files.rm("/shunter-test", recursive=True)
    (copied,) = (source for source in workspace.projects if source != ".")
    assert not os.path.relpath(copied, project).startswith("project")

"""Which image runs a role without an image, and what then starts the programs of builtins."""

from __future__ import annotations

from pathlib import Path

import pytest

from shunter import plugins
from shunter.components.utils import booth, echo
from shunter.runner.preparation import TORCHX_IMAGE, name_images
from shunter.specs import AppDef, Role
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]


def images(cli: Cli, *words: str, **environ: str) -> tuple[list[str], bool]:
    """Return the images of a job, and whether there was a warning that no image is given."""
    shown = cli("run", "--dryrun", "--json", "--workspace", "", *words, **environ)
    return [role["image"] for role in shown.json["app"]["roles"]], "no image is given" in shown.err


@pytest.mark.slow
def test_where_it_comes_from(cli: Cli, tmp_path: Path) -> None:
    words = ["-s", "local_docker", "utils.echo"]
    assert images(cli, *words) == ([TORCHX_IMAGE], True)
    (tmp_path / "site" / "p.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "p.dist-info" / "entry_points.txt").write_text(
        "[torchx.version]\nget_torchx_image = own_image:get\n"
    )
    (tmp_path / "site" / "own_image.py").write_text("def get(version):\n    return 'own:' + version\n")
    cli.environ["PYTHONPATH"] += f":{tmp_path / 'site'}"
    assert images(cli, *words)[0] == ["own:0.7.0"]
    (cli.directory / "shunter.toml").write_text('[run]\nimage = "ours:1"\n')
    assert images(cli, *words) == (["ours:1"], False)
    assert images(cli, *words, SHUNTER_IMAGE="here:2") == (["here:2"], False)
    assert images(cli, *words, "--image", "given:3", SHUNTER_IMAGE="here:2") == (["given:3"], False)
    assert images(cli, "-s", "local_cwd", "utils.echo") == (["<NONE>"], False)


def test_scripts_need_an_image_that_somebody_chose(cli: Cli) -> None:
    (cli.directory / "train.py").write_text("")
    done = cli("run", "--dryrun", "-s", "local_docker", "train.py", code=3)
    assert "image" in done.err
    (cli.directory / "shunter.toml").write_text('[run]\nimage = "ours:1"\n')
    shown = cli("run", "--dryrun", "--json", "-s", "local_docker", "train.py").json
    assert "ours:1" in str(shown)


def test_images_that_are_named_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda kind: [])
    app = AppDef("a", [Role("named", "img"), Role("empty", ""), *echo().roles])
    assert len(list(name_images(app, None))) == 1
    assert [role.image for role in app.roles] == ["img", "", TORCHX_IMAGE]


def test_processes_get_the_programs_with_the_job(cli: Cli, tmp_path: Path) -> None:
    """A Python on the PATH that has nothing but its standard library."""
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python").write_text('#!/bin/sh\nunset PYTHONPATH\nexec /usr/bin/python3 -I "$@"\n')
    (bare / "python").chmod(0o755)
    trials = tmp_path / "trials"
    words = ["utils.booth", "--x1", "1", "--x2", "2", "--tracker-base", str(trials)]
    done = cli("run", "--wait", "--log", "-s", "local_cwd", *words, PATH=f"{bare}:{cli.environ['PATH']}")
    assert "booth_eval=5.0" in done.err
    assert (trials / "0").read_text() == '{\n  "booth_eval": 5.0\n}'


def test_the_definition_says_which_program_it_is() -> None:
    (role,) = booth(1, 2).roles
    assert role.metadata == {"program": "booth"}

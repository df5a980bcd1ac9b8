"""`import torchx` without TorchX, beside it and instead of it. Each case runs in a separate Python."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from shunter.compat import alias_table

ROOT = Path(__file__).resolve().parents[2]
START = (
    ROOT / "src" / "shunter_torchx.pth"
).read_text()  # as the installed file is run at the start of Python


def run(code: str, *path: Path, **environ: str) -> list[str]:
    """Run a program with these folders on the path; returns what it prints, or the last line of its error."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.splitlines() if done.returncode == 0 else done.stderr.splitlines()[-1:]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with another `torchx`, as if TorchX were installed."""
    (tmp_path / "torchx").mkdir()
    (tmp_path / "torchx" / "__init__.py").write_text("WHICH = 'theirs'\n")
    return tmp_path


@pytest.mark.parametrize("module", sorted({*alias_table._ELSEWHERE, *alias_table._OTHER_NAMES}))
def test_exceptions_have_their_place(module: str) -> None:
    places = alias_table.places_of(module)
    assert places is not None
    for name, place in places.items():
        new_module, _, attribute = place.partition(":")
        assert not attribute or hasattr(import_module(new_module), attribute), (module, name)


def test_a_module_without_an_exception_has_our_path() -> None:
    assert alias_table.places_of("schedulers.devices") == {"*": "shunter.schedulers.devices"}
    assert alias_table.places_of("util.strings") == {"*": "shunter.compat.util.strings"}
    both = alias_table.places_of("components.dist")
    assert both == {"*": "shunter.compat.components.dist shunter.components.dist"}
    assert alias_table.places_of("schedulers.no_such") is None
    assert alias_table.places_of("no_such.module") is None


def test_a_bare_import_reaches_the_submodules() -> None:
    code = (
        "import shunter.compat.torchx, torchx\n"
        "print(torchx.specs.api.AppDef is torchx.specs.AppDef, torchx.schedulers.local_scheduler.__name__)\n"
        "from torchx.specs import *\n"
        "print(AppDef.__module__, Role.__name__, parse_app_handle('a://b/c')[2])\n"
        "import shunter.compat.torchx.specs as ours\n"
        "print(ours.AppDef is AppDef, 'AppDef' in dir(torchx.specs), hasattr(torchx.specs, 'no_such_name'))\n"
    )
    assert run(code) == [
        "True torchx.schedulers.local_scheduler",
        "shunter.specs.app Role c",
        "True True False",
    ]


def test_the_variable_serves_it_from_the_start() -> None:
    code = f"{START}\nimport torchx.specs; print(torchx.specs.Role.__module__)"
    assert run(code, SHUNTER_TORCHX="1") == ["shunter.specs.app"]
    for off in ("", "0"):
        assert run(code, SHUNTER_TORCHX=off) == ["ModuleNotFoundError: No module named 'torchx'"]


def test_an_installed_torchx_is_not_shadowed(installed: Path) -> None:
    code = f"{START}\nimport torchx; print(torchx.WHICH); import torchx.specs"
    assert run(code, installed, SHUNTER_TORCHX="1") == ["ModuleNotFoundError: No module named 'torchx.specs'"]
    code = f"{START}\nimport torchx, shunter.compat.torchx.specs as s; print(torchx.WHICH, s.Role.__name__)"
    assert run(code, installed, SHUNTER_TORCHX="1") == ["theirs Role"]


def test_shunter_in_the_place_of_an_installed_torchx(installed: Path) -> None:
    code = f"{START}\nimport torchx.specs; print(torchx.specs.Role.__module__)"
    assert run(code, installed, SHUNTER_TORCHX="instead") == ["shunter.specs.app"]


def test_a_folder_of_that_name_is_no_installed_torchx(tmp_path: Path) -> None:
    (tmp_path / "torchx").mkdir()
    code = "import shunter.compat.torchx, torchx.specs; print(torchx.specs.Role.__module__)"
    assert run(code, tmp_path) == ["shunter.specs.app"]


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = (
        "import sys, shunter.compat.torchx\n"
        "print([name for name in sys.modules if name.startswith(('shunter.', 'torchx'))])\n"
        "import torchx, torchx.schedulers.kubernetes_scheduler\n"
        "print('shunter.schedulers.kubernetes_scheduler' in sys.modules)\n"
    )
    assert run(code) == [
        "['shunter.compat', 'shunter.torchx_alias', 'shunter.compat.torchx']",
        "False",
    ]


@pytest.mark.parametrize("place", ["", "installed"])
def test_doctor_says_which_is_found(place: str, installed: Path) -> None:
    code = "import sys; from shunter.cli import main; sys.exit(main(['doctor', '-s', 'local_cwd']))"
    folders = [installed] if place else []
    (line,) = [line for line in run(code, *folders) if "import torchx" in line]
    found = f"the TorchX in {installed / 'torchx'}" if place else "shunter"
    assert line == f"-    torchx: `import torchx` finds {found}"
    if place:
        (line,) = [line for line in run(code, installed, SHUNTER_TORCHX="instead") if "import torchx" in line]
        assert line.endswith("finds shunter")


def test_a_component_that_imports_torchx_runs(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        "import torchx.specs as specs\n"
        "from torchx.components import utils\n\n"
        "def job(n: int = 1) -> specs.AppDef:\n"
        '    """Count."""\n'
        "    return utils.echo(msg=str(n))\n"
    )
    code = (
        "from shunter.runner import get_runner\n"
        f"with get_runner() as runner:\n"
        f"    info = runner.dryrun_component({str(tmp_path / 'jobs.py:job')!r}, ['--n', '3'], 'local_cwd')\n"
        "    print(info.app.roles[0].args)\n"
    )
    assert run(code) == ["['3']"]

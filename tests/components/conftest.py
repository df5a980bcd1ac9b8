from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shunter import plugins
from shunter.components import user_code

HEADER = "from __future__ import annotations\nfrom shunter.specs import AppDef, Role\n"


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; what a test imports from it is forgotten afterwards."""
    monkeypatch.setenv("SHUNTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOGLEVEL", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    modules, path = dict(sys.modules), list(sys.path)
    plugins._entry_points_of_group.cache_clear()
    yield directory
    for name in set(sys.modules) - set(modules):
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)) or not file:
            del sys.modules[name]
    sys.path[:] = path
    user_code._loaded.clear()
    plugins._entry_points_of_group.cache_clear()


@pytest.fixture
def write(workplace: Path) -> Callable[..., Path]:
    """Write a file below the current directory; component files get the imports that they all need."""

    def write_file(name: str, text: str, *, header: str = HEADER) -> Path:
        path = workplace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(header + textwrap.dedent(text))
        return path

    return write_file


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put a distribution with these files and entry points on the path."""

    def install_distribution(
        files: dict[str, str], entry_points: dict[str, str], group: str = "shunter.components"
    ) -> Path:
        site = tmp_path / "site"
        for name, text in files.items():
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(HEADER + textwrap.dedent(text))
        info = site / f"plugin_{len(list(site.glob('*.dist-info')))}-1.dist-info"
        info.mkdir()
        lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entry_points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        monkeypatch.syspath_prepend(str(site))
        plugins._entry_points_of_group.cache_clear()
        return site

    return install_distribution

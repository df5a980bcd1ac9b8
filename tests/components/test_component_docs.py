"""The documentation of components says what is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from shunter.components.component import Component
from shunter.components.finder import BUILTINS, get_component
from shunter.specs import AppDef

DOC = (Path(__file__).parents[2] / "docs" / "components.md").read_text()


def test_its_example_runs(workplace: Path) -> None:
    (workplace / "jobs.py").write_text(re.findall(r"```python\n(# jobs\.py.*?)```", DOC, re.DOTALL)[0])
    (workplace / "train.py").touch()
    commands = [
        shlex.split(line) for line in re.findall(r"shunter run ([^-`\n][^`\n]+)", DOC) if "--help" not in line
    ]
    assert len(commands) >= 4
    for name, *args in commands:
        assert isinstance(get_component(name).parse(args), AppDef), name


def test_its_python_runs(workplace: Path) -> None:
    code = re.findall(r"```python\n(from shunter.components.*?)```", DOC, re.DOTALL)[0]
    names: dict[str, object] = {}
    exec(code, names)
    assert isinstance(names["component"], Component)
    assert isinstance(names["app"], AppDef)
    assert names["app"].roles[0].num_replicas == 2


def test_it_names_every_builtin() -> None:
    for module, functions in BUILTINS.items():
        for fn in functions:
            assert f"`{module}.{fn}`" in DOC

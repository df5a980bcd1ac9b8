"""The folders and modules of the launcher: who imports whom, and what they are called."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from types import ModuleType

import pytest

from tests.docs.documents import LAUNCHER, ROOT, TOOLKIT, name_of, readmes

#: From top to bottom. A folder imports from those below it, and from no other.
LEVELS = [
    ["compat"],
    ["notebook"],
    ["cli.commands"],
    ["cli"],
    ["ui"],
    ["functions", "lab"],
    ["metrics", "sweeps", "why"],
    ["aws_endpoint"],
    ["runner"],
    ["components", "testing"],
    ["schedulers.sagemaker_local_scheduler"],
    ["schedulers.sagemaker_local_scheduler.hosts"],
    ["schedulers.ray_scheduler.shipped"],
    [
        "schedulers.aws_batch_scheduler",
        "schedulers.aws_sagemaker_scheduler",
        "schedulers.docker_scheduler",
        "schedulers.local_scheduler",
        "schedulers.kubernetes_scheduler",
        "schedulers.ray_scheduler",
    ],
    ["schedulers.lsf_scheduler", "schedulers.sge_scheduler", "schedulers.slurm_scheduler"],
    ["schedulers.hpc"],
    ["schedulers.aws", "schedulers.supervisor"],
    ["schedulers"],
    ["workspace.docker_workspace"],
    ["workspace.images"],
    ["image_registry", "workspace"],
    ["diagnosis", "docker"],
    ["specs"],
    ["system"],
    ["apps.serve", "apps.utils", "tracker.backend"],
    ["apps", "tracker"],
    [""],
]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "tools" / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()
paths = tool.modules()


@pytest.fixture(scope="module")
def graph():
    return tool.import_graph(paths)


@pytest.fixture(scope="module")
def folders(graph):
    return tool.folder_graph(graph, paths)


def test_no_circles_late_imports_included(graph, folders):
    assert tool.circle_lines(graph, folders, paths) == []


def test_no_import_climbs(graph, folders):
    level_of = {f"shunter.{name}".rstrip("."): number for number, row in enumerate(LEVELS) for name in row}
    assert sorted(folders) == sorted(level_of)
    climbs = [
        f"{name} -> {target}"
        for name, targets in graph.items()
        for target in sorted(targets)
        if (here := tool.folder_of(name, paths)) != (there := tool.folder_of(target, paths))
        and level_of[here] >= level_of[there]
    ]
    assert climbs == []


@pytest.mark.slow
def test_a_name_means_one_thing():
    assert tool.repeated_names(paths) == {}
    assert tool.repeated_classes(paths) == {}


def test_architecture_is_read_in_a_sitting():
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= 15_000


@pytest.mark.parametrize("readme", readmes(), ids=name_of)
def test_each_room_has_a_readme_of_one_page(readme):
    assert readme.exists()
    assert len(readme.read_text().splitlines()) <= 60


DESCRIPTIONS = [ROOT / "ARCHITECTURE.md", *(path for path in readmes() if path.exists())]


@pytest.mark.parametrize("document", DESCRIPTIONS, ids=name_of)
def test_files_and_functions_that_it_names_exist(document):
    """`file.py`, `folder/` and `function()`; files are beside it, in the launcher, or in tests."""
    named = re.findall(
        r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", document.read_text(), flags=re.S | re.M)
    )
    names = [name for text in named for name in text.split(", ")]
    files = [name for name in names if re.fullmatch(r"[\w./-]+(\.(py|sh|md|js|css|tsv|jsonl)|/)", name)]
    functions = [match[1] for name in names if (match := re.fullmatch(r"(?:\w+\.)?(\w+)\(\)", name))]
    tests = [ROOT / name for name in files if name.startswith("tests/")]
    places = [document.parent, LAUNCHER, LAUNCHER / "schedulers", ROOT, *tests]
    assert [name for name in files if not any((place / name).exists() for place in places)] == []
    assert [name for name in functions if name not in defined_functions()] == []


@cache
def defined_functions() -> set[str]:
    files = [*LAUNCHER.rglob("*.py"), *LAUNCHER.rglob("*.sh"), *TOOLKIT.rglob("*.py")]
    definition = re.compile(r"^\s*(?:async )?(?:def (\w+)|(\w+)\(\) \{)", re.M)
    return {name for file in files for names in definition.findall(file.read_text()) for name in names}


def test_a_circle_through_a_late_import_is_found(tmp_path, monkeypatch):
    package = tmp_path / "shunter"
    for name, text in {
        "a/__init__.py": "",
        "a/one.py": "def f():\n    from shunter.b import two\n",
        "b/__init__.py": "",
        "b/two.py": "if TYPE_CHECKING:\n    from shunter.b import one\nfrom shunter.a.one import f\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setattr(tool, "SOURCES", tmp_path)
    found = tool.modules()
    imports = tool.import_graph(found)
    assert imports["shunter.b.two"] == {"shunter.a.one"}
    assert tool.circles(imports) == [["shunter.a.one", "shunter.b.two"]]
    assert tool.circles(tool.folder_graph(imports, found)) == [["shunter.a", "shunter.b"]]

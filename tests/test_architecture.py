"""The folders and modules of the launcher: who imports whom, and what they are called."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from tests.docs.documents import ROOT

#: From top to bottom. A folder imports from those below it, and from no other.
LEVELS = [
    ["compat"],
    ["notebook"],
    ["cli.commands"],
    ["cli"],
    ["ui"],
    ["metrics", "sweeps"],
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
    ["schedulers.aws", "schedulers.exec.container", "schedulers.exec.process"],
    ["schedulers.exec"],
    ["schedulers"],
    ["workspace.docker_workspace"],
    ["workspace.images"],
    ["image_registry", "workspace"],
    ["diagnosis", "docker"],
    ["http", "specs"],
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
graph = tool.import_graph(paths)
folders = tool.folder_graph(graph, paths)


def test_no_circles_late_imports_included():
    assert tool.circle_lines(graph, folders, paths) == []


def test_no_import_climbs():
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


def test_a_name_means_one_thing():
    assert tool.repeated_names(paths) == {}
    assert tool.repeated_classes(paths) == {}


def test_the_index_is_up_to_date():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert tool.with_index(text, paths) == text, "run `make docs`"


def test_rows_name_files_that_exist():
    """Paths of "to change X, open Y" are below the launcher, or beside one that the row names before."""
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("## To change X")[2].partition("## Glossary")[0]
    places = [ROOT, ROOT / "src/shunter", ROOT / "src/shunter/schedulers"]
    missing = []
    for row in re.findall(r"^\| .*$", table, re.MULTILINE):
        beside: list[Path] = []
        for name in re.findall(r"`([\w./]+(?:\.(?:py|sh|css|js)|/))`", row):
            found = [path for place in [*places, *beside] if (path := place / name).exists()]
            beside += [path if path.is_dir() else path.parent for path in found]
            missing += [] if found or Path(name).stem in tool.ROLES else [name]
    assert missing == []


def test_rows_name_functions_that_exist():
    """`file.py` (`NAME`, `other`): that file defines these names."""
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("## To change X")[2].partition("## Glossary")[0]
    pattern = r"`([\w/]+\.(?:py|sh))` \((`[\w., `]+`)[:)]"
    named = [(path, re.findall(r"\w+", names)) for path, names in re.findall(pattern, table)]
    assert len(named) > 20

    def text_of(path: str) -> str:
        return next(
            file.read_text()
            for place in ("", "src/shunter", "src/shunter/schedulers")
            if (file := ROOT / place / path).exists()
        )

    def is_defined(name: str, text: str) -> bool:
        return bool(re.search(rf"^\s*((def|class) {name}\b|{name}(\(\)|[:=,]| [:=]))", text, re.MULTILINE))

    missing = {
        f"{path}: {name}" for path, names in named for name in names if not is_defined(name, text_of(path))
    }
    assert missing == set()


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

"""Show how the launcher's folders and modules import each other, and which of that breaks the rules.

    python tools/architecture.py            folders from top to bottom, and what each imports
    python tools/architecture.py circles    circles between folders and between modules
    python tools/architecture.py names      base names and class names with two meanings
    python tools/architecture.py modules    all modules, the toolkit's too, and what they are about

Late imports, within functions, count. Imports under TYPE_CHECKING do not, since they are gone when the
program runs; nor do tables of modules that are imported by name: those of the schedulers and the commands.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"
PACKAGE = "shunter"
TOOLKIT = ROOT / "toolkit" / "src" / "shunter_toolkit"
#: Part of the wheel that is another distribution, and the program that starts the command line.
_LEFT_OUT = ("shunter._toolkit", "shunter.__main__")
#: Names that each backend's folder may have: the same role there.
ROLES = frozenset(
    {
        *("details", "doctor", "housekeeping", "logs", "names", "observe", "options"),
        *("reasons", "request", "rules", "scheduler", "states", "submission"),
    }
)

#: Rooms whose interface is in `api.py`, as in TorchX.
API_ROOMS = ("runner", "schedulers", "specs", "tracker", "workspace")
#: Modules whose names are those of TorchX: jobs ask for them, and programs whose `torchx` became `shunter`.
GIVEN = frozenset({f"{PACKAGE}.apps.serve.serve", *(f"{PACKAGE}.{room}.api" for room in API_ROOMS)})
#: The room whose modules and classes have TorchX's names.
MIRROR = f"{PACKAGE}.compat"

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Return the launcher's modules by their dotted names."""
    found = {}
    for path in sorted((SOURCES / PACKAGE).rglob("*.py")):
        words = path.relative_to(SOURCES).with_suffix("").parts
        name = ".".join(words[:-1] if words[-1] == "__init__" else words)
        if not name.startswith(_LEFT_OUT):
            found[name] = path
    return found


def folder_of(module: str, paths: dict[str, Path]) -> str:
    """Return the folder in which a module lies, as a dotted name. Those that mirror TorchX's are one."""
    if module.startswith(f"{MIRROR}."):
        return MIRROR
    return module if paths[module].name == "__init__.py" else module.rpartition(".")[0]


def import_graph(paths: dict[str, Path]) -> Graph:
    """Return which modules each module imports when it runs, be it at once or late."""
    return {
        name: {
            target
            for imported in _imports(ast.parse(path.read_text(encoding="utf-8")))
            if (target := _module_of(imported, paths)) not in (None, name)
        }
        for name, path in paths.items()
    }


def _imports(tree: ast.AST) -> list[str]:
    found = []
    for node in _running_nodes(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def _running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree, but not below ``if TYPE_CHECKING``."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for other in child.orelse:
                yield from _running_nodes(other)
        else:
            yield from _running_nodes(child)


def _module_of(imported: str, paths: dict[str, Path]) -> str | None:
    while imported:
        if imported in paths:
            return imported
        imported = imported.rpartition(".")[0]
    return None


def folder_graph(graph: Graph, paths: dict[str, Path]) -> Graph:
    """Return which folders each folder imports from."""
    folders: Graph = {folder_of(name, paths): set() for name in graph}
    for name, targets in graph.items():
        here = folder_of(name, paths)
        folders[here] |= {folder_of(target, paths) for target in targets} - {here}
    return folders


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes that reach each other (strongly connected components of two or more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def circle_lines(graph: Graph, folders: Graph, paths: dict[str, Path]) -> list[str]:
    """Return the circles between folders, then between modules, with the imports that close them."""
    lines = []
    for group in circles(folders):
        lines.append(f"folders: {', '.join(group)}")
        for name, targets in sorted(graph.items()):
            here = folder_of(name, paths)
            there = [t for t in sorted(targets) if folder_of(t, paths) in set(group) - {here}]
            if here in group and there:
                lines.append(f"    {name} -> {', '.join(there)}")
    for group in circles(graph):
        lines.append(f"modules: {', '.join(group)}")
        lines += [f"    {name} -> {', '.join(sorted(graph[name] & set(group)))}" for name in group]
    return lines


def layers(graph: Graph) -> list[list[str]]:
    """Return the nodes of a graph without circles from top to bottom: each imports only from below."""
    level: dict[str, int] = {}

    def depth(node: str) -> int:
        if node not in level:
            level[node] = 1 + max((depth(target) for target in graph[node]), default=-1)
        return level[node]

    rows = defaultdict(list)
    for node in sorted(graph):
        rows[depth(node)].append(node)
    return [rows[number] for number in sorted(rows, reverse=True)]


def repeated_names(paths: dict[str, Path]) -> dict[str, list[str]]:
    """Return the base names that modules share without playing the same role."""
    by_name = defaultdict(list)
    for name, path in paths.items():
        if path.name != "__init__.py" and name not in GIVEN and not name.startswith(MIRROR):
            by_name[path.stem].append(name)
    return {
        base: names
        for base, names in by_name.items()
        if base not in ROLES
        and len([name for name in names if not name.startswith(f"{PACKAGE}.cli.commands.")]) > 1
    }


def repeated_classes(paths: dict[str, Path]) -> dict[str, list[str]]:
    """Return the class names that are defined in several modules."""
    found = defaultdict(list)
    for name, path in paths.items():
        if name.startswith(MIRROR):
            continue
        for node in _running_nodes(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name)
    return {cls: names for cls, names in found.items() if len(names) > 1}


def module_lines(paths: dict[str, Path]) -> list[str]:
    """Return a line for each module and folder, the toolkit's too: its name and what it is about."""
    lines: list[str] = []
    for path in sorted(
        [*paths.values(), *TOOLKIT.rglob("*.py")], key=lambda path: (str(path.parent), path.name)
    ):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        summary = docstring.split("\n\n")[0].replace("\n", " ")
        if path.name == "__init__.py":
            lines += ["", f"{path.parent.relative_to(ROOT).as_posix()}/  {summary}"]
        elif path.name != "__main__.py":
            lines.append(f"    {path.name:<28} {summary}")
    return lines[1:]


def main(words: list[str]) -> int:
    """Print what is asked for; returns 1 if a rule is broken."""
    paths = modules()
    graph = import_graph(paths)
    folders = folder_graph(graph, paths)
    what = words[0] if words else "folders"
    broken = False
    if what == "modules":
        print("\n".join(module_lines(paths)))
    elif what == "names":
        for kind, repeated in (("module", repeated_names(paths)), ("class", repeated_classes(paths))):
            for name, places in sorted(repeated.items()):
                print(f"{kind} {name}: {', '.join(places)}")
                broken = True
    elif what == "circles":
        for text in circle_lines(graph, folders, paths):
            print(text)
            broken = True
    elif circles(folders):
        print("there are circles; see `circles`")
        broken = True
    else:
        for row in layers(folders):
            for folder in row:
                print(f"{folder} -> {', '.join(sorted(folders[folder])) or 'nothing'}")
            print()
    return int(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

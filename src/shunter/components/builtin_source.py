"""Extracts a component's source from its module, with everything it needs to run on its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def standalone_source(module: str, name: str) -> str:
    """Return the source of a top-level function of a module's source, with its imports and definitions."""
    nodes = [node for node in ast.parse(module).body if not _is_docstring(node)]
    names = [set(_defined(node)) for node in nodes]
    wanted = [index for index, defined in enumerate(names) if name in defined]
    needed = set(wanted)
    while wanted:
        used = set(_used(nodes[wanted.pop()]))
        found = [index for index, defined in enumerate(names) if defined & used and index not in needed]
        needed.update(found)
        wanted += found
    lines = module.splitlines()
    imports, definitions = [], []
    for index, node in enumerate(nodes):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if index in needed or "annotations" in names[index]:
                imports.append(ast.unparse(_only(node, _all_used(nodes, needed))))
        elif index in needed:
            definitions.append("\n".join(lines[_first_line(node, lines) : node.end_lineno]))
    return "\n".join(imports) + "\n\n\n" + "\n\n\n".join(definitions) + "\n"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _defined(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a top-level statement defines."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    else:  # an assignment, or a block that holds some
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
            elif isinstance(part, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
                yield from _defined(part)


def _used(node: ast.stmt) -> Iterator[str]:
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def _all_used(nodes: list[ast.stmt], needed: set[int]) -> set[str]:
    return {name for index in needed for name in _used(nodes[index])} | {"annotations"}


def _only(node: ast.Import | ast.ImportFrom, used: set[str]) -> ast.stmt:
    """Return an import without the names that are not used."""
    names = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in used]
    if isinstance(node, ast.Import):
        return ast.Import(names)
    return ast.ImportFrom(node.module, names, node.level)


def _first_line(node: ast.stmt, lines: list[str]) -> int:
    """Return the index of a statement's first line, with its decorators and the comment above it."""
    decorators = getattr(node, "decorator_list", [])
    first: int = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
    while first > 0 and lines[first - 1].startswith("#"):
        first -= 1
    return first

"""Write the public API of the installed TorchX, or of what answers to its name, as JSON.

Run by the Python that has the TorchX to describe; needs nothing else. Used by `compat_report.py`.

    torchx_api.py                 all modules of the installed distribution
    torchx_api.py NAMES.json      the modules and names of a file that this program has written
"""

from __future__ import annotations

import abc
import ast
import contextlib
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import io
import json
import pathlib
import re
import sys

#: Folders whose modules are programs, examples and tests rather than an interface.
NOT_AN_INTERFACE = (
    "torchx.examples",
    "torchx.pipelines",
    "torchx.specs.test",
    "torchx.components.integration_tests",
)


def main() -> None:
    """Write the description to stdout."""
    wanted = json.loads(pathlib.Path(sys.argv[1]).read_text()) if sys.argv[1:] else installed_names()
    found = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for module, names in sorted(wanted.items()):
            found[module] = described_module(module, list(names))
    print(json.dumps(found, indent=1, sort_keys=True))


def installed_names() -> dict[str, list[str]]:
    """Return the public names that each module of the installed TorchX defines or, as a package, offers."""
    spec = importlib.util.find_spec("torchx")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("torchx is not installed for this Python")
    root = pathlib.Path(next(iter(spec.submodule_search_locations)))
    names = {}
    for path in sorted(root.rglob("*.py")):
        parts = ["torchx", *path.relative_to(root).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        if not module.startswith(NOT_AN_INTERFACE):
            names[module] = defined_names(path.read_text(encoding="utf-8"), is_package)
    return names


def defined_names(source: str, is_package: bool) -> list[str]:
    """Return the public names of a module: what it defines and lists, what a package takes from TorchX."""
    names: set[str] = set()
    for node in ast.walk(ast.Module(top_level(ast.parse(source).body), [])):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
    for node in top_level(ast.parse(source).body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if is_package and isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchx"):
            names |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            with contextlib.suppress(ValueError):
                names |= set(ast.literal_eval(node.value))
    return sorted(name for name in names if not name.startswith("_"))


def top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a module, those inside of `if` and `try` too; bodies of functions left out."""
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            found += [] if "TYPE_CHECKING" in ast.unparse(node.test) else top_level(node.body)
            found += top_level(node.orelse)
        elif isinstance(node, ast.Try):
            found += top_level(node.body) + [each for h in node.handlers for each in top_level(h.body)]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            empty = type(node)(**{**{f: getattr(node, f, None) for f in node._fields}, "body": []})
            found.append(empty)
        else:
            found.append(node)
    return found


def described_module(module: str, names: list[str]) -> dict[str, object]:
    """Describe the names of a module; why it cannot be imported, if it cannot."""
    try:
        loaded = importlib.import_module(module)
    except Exception as error:  # a package that it needs is not installed: then the names alone count
        why = f"{type(error).__name__}: {error}"
        return {"": {"kind": "broken", "why": why}, **{name: {"kind": "unknown"} for name in names}}
    found: dict[str, object] = {}
    for name in names:
        try:
            found[name] = described(getattr(loaded, name))
        except AttributeError:
            continue
        except Exception as error:
            found[name] = {"kind": "broken", "why": f"{type(error).__name__}: {error}"}
    return found


def described(value: object) -> dict[str, object]:
    """Describe an object of a module."""
    if inspect.ismodule(value):
        return {"kind": "module"}
    if isinstance(value, type):
        return described_class(value)
    if isinstance(value, dict):
        return {
            "kind": "value",
            "type": "dict",
            "value": {str(key): shown(item) for key, item in value.items()},
        }
    if isinstance(value, (set, frozenset)):
        return {"kind": "value", "type": "set", "value": sorted(map(str, value))}
    if callable(value) and type(value).__module__ != "typing":
        return {"kind": "function", "parameters": parameters(value)}
    return {"kind": "value", "type": type(value).__name__, "value": shown(value)}


def described_class(cls: type) -> dict[str, object]:
    """Describe a class: how it is made, and its public members."""
    found: dict[str, object] = {"kind": "class", "parameters": parameters(cls)}
    if issubclass(cls, enum.Enum):
        found["members"] = {name: shown(member.value) for name, member in cls.__members__.items()}
    if issubclass(cls, BaseException):
        found["catches"] = [base.__name__ for base in cls.__mro__[1:] if base.__module__ == "builtins"]
    found["dataclass"] = dataclasses.is_dataclass(cls)
    if dataclasses.is_dataclass(cls):
        found["fields"] = [item.name for item in dataclasses.fields(cls)]
    methods: dict[str, object] = {}
    for name in sorted(
        {name for base in cls.__mro__[:-1] if base.__module__ not in FOREIGN for name in vars(base)}
    ):
        if name.startswith("_") or (issubclass(cls, enum.Enum) and name in cls.__members__):
            continue
        member = inspect.getattr_static(cls, name)
        if isinstance(member, (staticmethod, classmethod)):
            methods[name] = parameters(getattr(cls, name))
        elif inspect.isfunction(member):
            methods[name] = parameters(member)
        else:
            methods[name] = None
    found["methods"] = methods
    return found


FOREIGN = {
    "abc",
    "builtins",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "typing",
    "unittest.case",
    "argparse",
    "ast",
    "tuple",
    "_io",
    "io",
}


def parameters(function: object) -> list[list[object]] | None:
    """Return the parameters of a callable as name, kind and default; None if it has no readable signature."""
    try:
        if _begins_with_init(function):
            items = list(inspect.signature(function.__init__).parameters.items())[1:]  # type: ignore[attr-defined]
        else:
            items = list(inspect.signature(function).parameters.items())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    found: list[list[object]] = []
    for name, item in items:
        default = None if item.default is inspect.Parameter.empty else shown(item.default)
        found.append([name, item.kind.name, default])
    return found


def _begins_with_init(function: object) -> bool:
    """Tell whether it is an ordinary class whose ``__init__`` is nearer than a ``__new__``.

    Python 3.11.4 and later show the parameters of the nearer one, older ones always those of ``__new__``.
    """
    if type(function) not in (type, abc.ABCMeta):
        return False
    for base in function.__mro__[:-1]:  # type: ignore[attr-defined]
        if "__new__" in vars(base):
            return False
        if "__init__" in vars(base):
            return True
    return False


def shown(value: object) -> str:
    """Return a value as text that is the same in every process."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if callable(value) or "factory" in repr(value):
        return "<made>" if "factory" in repr(value) else f"<{getattr(value, '__name__', 'callable')}>"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:200]


if __name__ == "__main__":
    main()

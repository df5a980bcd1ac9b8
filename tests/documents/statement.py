"""A statement of one of the predecessors' documents, and how it is checked."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from shunter.specs import AppState

GUIDE = Path(__file__).parents[2] / "docs" / "migrating-from-torchx.md"
#: The section of the guide with a line for each statement that does not hold on purpose.
SECTION = "## Where shunter differs from TorchX's documentation"


@dataclass(frozen=True)
class Statement:
    """What a document says.

    Args:
        text: the statement, in a few words; the id of the test.
        check: raises `AssertionError` if it does not hold.
        differs: words of the line in the guide that says why it does not hold; "" if it holds.
    """

    text: str
    check: Callable[[], object]
    differs: str = ""

    def verify(self) -> None:
        """Check that the statement holds, or does not hold and the guide says so."""
        if not self.differs:
            self.check()
            return
        section = GUIDE.read_text(encoding="utf-8").partition(SECTION)[2].partition("\n## ")[0]
        lines = [line for line in section.splitlines() if line.startswith("- ") and self.differs in line]
        assert len(lines) == 1, f"{GUIDE.name} has not one line with {self.differs!r}"
        with pytest.raises(AssertionError):
            self.check()


def find(path: str) -> Any:
    """Return the object of a dotted path, such as ``shunter.schedulers.api.DescribeAppResponse``."""
    place, *others = path.split(".")
    value: Any = import_module(place)
    for part in others:
        place = f"{place}.{part}"
        # what a package names comes first, as in programs: the class `shunter.specs.macros`, not the module
        value = getattr(value, part) if hasattr(value, part) else import_module(place)
    return value


def exists(path: str, differs: str = "") -> Statement:
    """State that a name exists."""

    def check() -> None:
        try:
            find(path)
        except (AttributeError, ModuleNotFoundError) as error:
            raise AssertionError(f"{path}: {error}") from error

    return Statement(f"{path} exists", check, differs)


def signature(path: str, documented: str, differs: str = "") -> Statement:
    """State that a callable has these parameters, in this order, with these types and defaults.

    Further parameters may follow if they need not be given. The documents' types are written as Python has
    them now: ``Optional[str]`` is ``str | None``.

    Args:
        path: where it is.
        documented: such as ``(app_id: str, k: int = 0) -> str``.
        differs: see `Statement`.
    """

    def check() -> None:
        ours = inspect.signature(find(path))
        parameters = [item for item in ours.parameters.values() if item.name != "self"]
        theirs = ast.parse(f"def f{documented}: ...").body[0]
        assert isinstance(theirs, ast.FunctionDef)
        named = theirs.args.args
        for argument, default, our in zip(named, _defaults(theirs.args), parameters, strict=False):
            assert (our.name, our.default) == (argument.arg, default)
            assert our.kind is our.POSITIONAL_OR_KEYWORD
            assert _type_text(our.annotation) == ast.unparse(argument.annotation or ast.Constant(None))
        assert len(parameters) >= len(named)
        for more in parameters[len(named) :]:
            assert more.default is not more.empty or more.kind is more.VAR_KEYWORD, more
        assert theirs.args.kwarg is None or parameters[-1].kind is parameters[-1].VAR_KEYWORD
        if theirs.returns is not None:
            assert _type_text(ours.return_annotation) == ast.unparse(theirs.returns)

    return Statement(f"{path}{documented}", check, differs)


def _defaults(arguments: ast.arguments) -> list[Any]:
    """Return the default of each argument; `inspect.Parameter.empty` for one without."""
    defaults = [eval(ast.unparse(node), {"AppState": AppState}) for node in arguments.defaults]
    return [inspect.Parameter.empty] * (len(arguments.args) - len(defaults)) + defaults


def _type_text(annotation: Any) -> str:
    """Return an annotation as the documents have it."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return ast.unparse(ast.parse(text.replace("builtins.list", "list"), mode="eval"))


def is_abstract(path: str, *, abstract: bool) -> Statement:
    """State that a method of an interface has to be implemented, or need not be."""

    def check() -> None:
        assert getattr(find(path), "__isabstractmethod__", False) is abstract

    return Statement(f"{path} is {'' if abstract else 'not '}abstract", check)


def derives(path: str, *bases: str) -> Statement:
    """State that a class derives from these."""

    def check() -> None:
        assert all(issubclass(find(path), find(base)) for base in bases)

    return Statement(f"{path} derives from {', '.join(bases)}", check)


def field_default(path: str, name: str, default: Any) -> Statement:
    """State that a field of a dataclass has a default; ``list`` for a new list."""

    def check() -> None:
        (item,) = [item for item in fields(find(path)) if item.name == name]
        assert (item.default_factory if item.default is MISSING else item.default) == default

    return Statement(f"{path}.{name} is {default!r} by default", check)


def fields_in_order(path: str, *names: str) -> Statement:
    """State that a dataclass begins with these fields."""

    def check() -> None:
        assert [item.name for item in fields(find(path))][: len(names)] == list(names)

    return Statement(f"{path} has the fields {', '.join(names)}", check)

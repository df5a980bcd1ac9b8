"""TorchX's base of dataclasses that declare the options of a scheduler: `StructuredOpts`."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from shunter.compat.util.types import decode_optional
from shunter.errors import InvalidRunConfigException
from shunter.specs.conversion import default_of, has_default
from shunter.specs.options import runopts


class StructuredOpts(Mapping[str, Any]):
    """Base of dataclasses that declare a scheduler's options; the text below a field is its help.

    A field with a default is optional. Values are taken by the names of the fields, by their camelCase, or by
    the ``cfg_key`` in a field's metadata. A field that is such a dataclass itself is a group: the options in
    it are called ``group.option``.
    """

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any]) -> Any:
        """Make the options from a mapping; what it does not have gets the field's default.

        Raises:
            TypeError: a field without a default is missing.
            InvalidRunConfigException: an option is given under two spellings, with different values.
        """
        given: dict[str, Any] = {}
        groups = _groups(cls)
        for item in fields(cls):  # type: ignore[arg-type]
            keys = _option_keys(item)
            if item.name in groups:
                inside = {
                    key.partition(".")[2]: value
                    for key, value in cfg.items()
                    if "." in key and key.partition(".")[0] in keys
                }
                if inside or not has_default(item):
                    given[item.name] = groups[item.name].from_cfg(inside)
                continue
            values = [cfg[key] for key in keys if key in cfg]
            if any(value != values[0] for value in values):
                raise InvalidRunConfigException(
                    f"option {keys[0]!r} is given in two spellings, with different values", keys[0], cfg
                )
            if values:
                given[item.name] = values[0]
        return cls(**given)

    @classmethod
    def as_runopts(cls) -> runopts:
        """Return the fields as options."""
        hints = typing.get_type_hints(cls)
        helps = cls.get_docstrings()
        groups = _groups(cls)
        options = runopts()
        for item in fields(cls):  # type: ignore[arg-type]
            own = _option_keys(item)[0]
            if item.name in groups:
                inside = {f"{own}.{key}": opt for key, opt in groups[item.name].as_runopts()}
                options.update(runopts(**inside))
                continue
            help_text = helps.get(item.name, "")
            options.add(
                own, decode_optional(hints[item.name]), help_text, default_of(item), not has_default(item)
            )
        return options

    @classmethod
    def get_docstrings(cls) -> dict[str, str]:
        """Return the texts below the fields, by name of the field."""
        found: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            if base in (object, StructuredOpts) or not issubclass(base, StructuredOpts):
                continue
            try:
                tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
            except (OSError, TypeError, SyntaxError):
                continue
            body = tree.body[0].body  # type: ignore[attr-defined]
            for node, below in itertools.pairwise(body):
                if (
                    isinstance(node, ast.AnnAssign)
                    and isinstance(node.target, ast.Name)
                    and isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                    and isinstance(below.value.value, str)
                ):
                    found[node.target.id] = inspect.cleandoc(below.value.value)
        for name, group in _groups(cls).items():
            found |= {f"{name}.{key}": text for key, text in group.get_docstrings().items()}
        return found

    def __getitem__(self, key: str) -> Any:
        head, dot, rest = key.partition(".")
        for item in fields(self):  # type: ignore[arg-type]
            if head in _option_keys(item):
                value = getattr(self, item.name)
                if not dot:
                    return value
                if isinstance(value, StructuredOpts):
                    return value[rest]
        raise KeyError(key)

    get = Mapping.get

    def __iter__(self) -> Iterator[str]:
        groups = _groups(type(self))
        for item in fields(self):  # type: ignore[arg-type]
            own, value = _option_keys(item)[0], getattr(self, item.name)
            if isinstance(value, StructuredOpts):
                yield from (f"{own}.{key}" for key in value)
            elif item.name not in groups:
                yield own

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}


def _groups(cls: type) -> dict[str, Any]:
    """Return the fields that are groups of options, with the classes of the groups."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a class defined in a function: its annotations are strings that cannot be resolved
        hints = {}
    kinds = {item.name: decode_optional(hints.get(item.name)) for item in fields(cls)}
    return {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, StructuredOpts)
    }


def _option_keys(item: Any) -> list[str]:
    """Return the names under which a field's value is given, its name as an option first."""
    own = item.metadata.get("cfg_key", item.name)
    return list(dict.fromkeys([own, item.name, _camel_case(item.name)]))


def _camel_case(name: str) -> str:
    """Turn ``job_queue`` into ``jobQueue``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)

"""Hyperparameters as command-line arguments and as environment variables.

The rules are exactly those of ``sagemaker-training`` 5.1.4; ``docs/contract.md`` has the table.
"""

from __future__ import annotations

import collections
import json
import re
from collections import abc
from collections.abc import Iterator, Mapping
from typing import Any


def to_json(value: Any) -> str:
    """Compact JSON with sorted keys and ASCII escapes, the form of every JSON variable."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=True, default=str)


def to_env_value(value: Any) -> str:
    """One value as the text of an environment variable.

    Text is unchanged, ``None`` is the empty text, bytes are decoded as latin-1, all else becomes JSON.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return to_json(value)


def to_env_vars(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Name entries ``SM_<UPPER NAME>``, decoding nothing: ``{"num_cpus": 2}`` -> ``{"SM_NUM_CPUS": "2"}``.

    An empty name stays empty.
    """
    return {f"SM_{str(name).upper()}" if name else "": to_env_value(v) for name, v in mapping.items()}


def with_legal_aliases(env: Mapping[str, str]) -> dict[str, str]:
    """Add an alias with ``_`` for each name that shells cannot use.

    ``SM_HP_BATCH-SIZE`` gets the alias ``SM_HP_BATCH_SIZE``. An alias never replaces an existing name. A name
    with ``=`` or NUL, which no environment can contain, is replaced by its alias.
    """
    aliases = {re.sub(r"[^A-Za-z0-9_]", "_", name): value for name, value in env.items()}
    exact = {name: value for name, value in env.items() if "=" not in name and "\0" not in name}
    return {**aliases, **exact}


def to_cmd_args(mapping: Mapping[str, Any]) -> list[str]:
    """Hyperparameters as script arguments, sorted by name.

    ``{"batch-size": 256, "d": {"a": 1}, "flag": True}`` ->
    ``["--batch-size", "256", "-d", "a=1", "--flag", "True"]``. Every name takes exactly one value;
    a name of one character gets a single dash; an empty name gives an empty argument.
    """
    args: list[str] = []
    for name in sorted(mapping):
        args += [_option(name), _argument(mapping[name])]
    return args


def _option(name: str) -> str:
    if not name:
        return ""
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _argument(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return ",".join(f"{key}={value[key]}" for key in sorted(value))
    return str(value)


#: What :func:`split_by_criteria` gives: ``included`` and ``excluded``, two dictionaries.
SplitResultSpec = collections.namedtuple("SplitResultSpec", ("included", "excluded"))


def split_by_criteria(
    dictionary: Mapping[str, Any], keys: Any = None, prefix: str | None = None
) -> SplitResultSpec:
    """Split a dictionary in two: entries named in ``keys`` or starting with ``prefix``, and the rest."""
    included: dict[str, Any] = {}
    excluded: dict[str, Any] = {}
    for name, value in dictionary.items():
        chosen = name in (keys or ()) or (prefix is not None and name.startswith(prefix))
        (included if chosen else excluded)[name] = value
    return SplitResultSpec(included, excluded)


class MappingMixin(abc.Mapping):  # type: ignore[type-arg]
    """Lets the properties of an object be read as a mapping: ``env["num_cpus"]``, ``dict(env)``."""

    def properties(self) -> list[str]:
        """The names of the properties of the object's class, sorted."""
        return [name for name in dir(type(self)) if isinstance(getattr(type(self), name), property)]

    def __getitem__(self, name: str) -> Any:
        if not isinstance(getattr(type(self), name), property):
            raise KeyError(f"Trying to access non property {name}")
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.properties())

    def __len__(self) -> int:
        return len(self.properties())

    def __str__(self) -> str:
        return str(dict(self))

"""The SDK's model of a service: checks requests offline, and knows which operations and members it has.

The SDK checks types, required and unknown members and minimum lengths before it sends a request. Its model
also holds enumerations, patterns, and maximum lengths and values, which only the service checks. Here all of
it is checked, without credentials, region or connection.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from shunter.schedulers.aws.aws_errors import missing_sdk

#: More than these texts to choose from are not all listed.
MOST_CHOICES = 20
_TOO_OLD = "; a newer boto3 may know it: pip install -U boto3"


def problems_of(service: str, operation: str, params: dict[str, Any]) -> list[str]:
    """Return the problems of a request, say to ``batch``, ``SubmitJob``; an empty list for a valid one."""
    if not has_operation(service, operation):
        return [f"the installed boto3 does not know {service}:{operation}{_TOO_OLD}"]
    from botocore.validate import ParamValidator

    shape = input_of(service, operation)
    report = ParamValidator().validate(params, shape)
    problems = report.generate_report().split("\n") if report.has_errors() else []
    problems = [text + _TOO_OLD if text.startswith("Unknown parameter") else text for text in problems]
    return problems + list(_strict(params, shape, ""))


def is_installed() -> bool:
    """Tell whether the SDK, and so its model, is installed."""
    return find_spec("botocore") is not None


def input_of(service: str, operation: str) -> Any:
    """Return the shape of an operation's input in the SDK's model of a service."""
    return _model(service).operation_model(operation).input_shape


def has_operation(service: str, operation: str) -> bool:
    """Tell whether the installed SDK knows an operation."""
    return operation in _model(service).operation_names


def shape_of(service: str, name: str) -> Any:
    """Return a shape of the SDK's model of a service, such as ``TrainingJob``."""
    return _model(service).shape_for(name)


@functools.cache
def _model(service: str) -> Any:
    try:
        from botocore.loaders import Loader
        from botocore.model import ServiceModel
    except ImportError as error:
        raise missing_sdk(error) from None
    loader = Loader()
    return ServiceModel(loader.load_service_model(service, "service-2"), service)


def _strict(value: Any, shape: Any, path: str) -> Iterator[str]:
    """Find the problems that the SDK does not check, in the parts of a request that it accepts."""
    kind, limits = shape.type_name, shape.metadata
    if kind == "structure" and isinstance(value, dict):
        for name, item in value.items():
            if name in shape.members:
                yield from _strict(item, shape.members[name], f"{path}.{name}" if path else name)
    elif kind == "list" and isinstance(value, (list, tuple)):
        yield from _too_many(len(value), limits, path, "items")
        for index, item in enumerate(value):
            yield from _strict(item, shape.member, f"{path}[{index}]")
    elif kind == "map" and isinstance(value, dict):
        if len(value) < limits.get("min", 0):
            yield f"{path}: {len(value)} entries, at least {limits['min']} are needed"
        yield from _too_many(len(value), limits, path, "entries")
        for key, item in value.items():
            yield from _strict(key, shape.key, f"{path}, the key {key!r}")
            yield from _strict(item, shape.value, f"{path}.{key}")
    elif kind == "string" and isinstance(value, str):
        yield from _wrong_text(value, shape, path)
    elif kind in ("integer", "long", "float", "double") and isinstance(value, (int, float)):
        most = limits.get("max", value)
        if value > most:
            yield f"{path}: {value} is more than {most}"


def _too_many(count: int, limits: dict[str, Any], path: str, what: str) -> Iterator[str]:
    if "max" in limits and count > limits["max"]:
        yield f"{path}: {count} {what}, at most {limits['max']} are allowed"


def _wrong_text(value: str, shape: Any, path: str) -> Iterator[str]:
    limits = shape.metadata
    allowed = getattr(shape, "enum", None)
    if allowed and value not in allowed:
        yield f"{path}: {_short(value)} must be one of {_choices(value, allowed)}"
    if "max" in limits and len(value) > limits["max"]:
        yield f"{path}: {len(value)} characters, at most {limits['max']} are allowed"
        return
    pattern = limits.get("pattern")
    if pattern and not matches(pattern, value):
        yield f"{path}: {_short(value)} does not match {pattern}"


def _choices(value: str, allowed: Sequence[str]) -> str:
    """Return the allowed texts; if there are many, only the nearest."""
    if len(allowed) <= MOST_CHOICES:
        return ", ".join(allowed)
    near = difflib.get_close_matches(value, allowed, n=3) or allowed[:3]
    return f"{len(allowed)}, such as {', '.join(near)}"


def matches(pattern: str, value: str) -> bool:
    """Tell whether a text matches a pattern of the model; True if the pattern's dialect is unknown."""
    try:
        return re.fullmatch(_translated(pattern), value, re.DOTALL) is not None
    except re.error:  # written in another dialect; the service will check it
        return True


@functools.cache
def _translated(pattern: str) -> str:
    """Translate a pattern of the model into Python's dialect: its character classes have other names."""
    pattern = pattern.replace(r"\p{Alnum}", "A-Za-z0-9")
    if r"\p{" not in pattern:
        return pattern
    simple = re.fullmatch(r"\^?\(?\[(?P<set>[^\]]*)\](?P<count>[*+])\)?\$?", pattern)
    if simple is None:
        raise re.error("not translated")
    others = re.sub(r"\\p\{[LNZ]\}", "", simple["set"])
    return rf"(?:[^\W_]|\s|[{others}]){simple['count']}"


def _short(value: str) -> str:
    return repr(value if len(value) <= 40 else value[:37] + "...")

"""Parameters checked against the service's model, with the errors and in the words of the service.

A value of another type than the model's is a SerializationException, the first that is found. What has the
right type and breaks a limit is a ValidationException that names all of it: ``1 validation error detected:
Value 'a_b' at 'trainingJobName' failed to satisfy constraint: Member must ...``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainyard.schedulers.aws.sagemaker_local.endpoint.errors import ApiError, invalid
from trainyard.schedulers.aws.service_model import matches

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_NULL = "Member must not be null"
_NUMBERS = ("integer", "long", "float", "double")
#: How many bits the service's whole numbers have.
_BITS = {"integer": 32, "long": 64}
#: What the service calls a type, with its article.
_NAMES = {
    "string": "a String",
    "integer": "an Integer",
    "long": "a Long",
    "float": "a Float",
    "double": "a Double",
    "boolean": "a Boolean",
    "timestamp": "a Date",
    "blob": "a Blob",
}


def without_nulls(value: Any) -> Any:
    """Return parameters without members that are null: for the service they are absent."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def check_types(value: Any, shape: Any, path: str = "") -> None:
    """Refuse a value that is not of its shape's type.

    Raises:
        ApiError: SerializationException.
    """
    kind = shape.type_name
    if value is None:  # within a list; a limit says what is wrong with it
        return
    if kind == "structure":
        _expect(isinstance(value, dict), value, "structure", path)
        for name, item in value.items():
            if name in shape.members:
                check_types(item, shape.members[name], _member(path, name))
    elif kind == "list":
        _expect(isinstance(value, (list, tuple)), value, "list", path)
        for number, item in enumerate(value, 1):
            check_types(item, shape.member, f"{path}.{number}.member")
    elif kind == "map":
        _expect(isinstance(value, dict), value, "map", path)
        for key, item in value.items():
            check_types(item, shape.value, f"{path}.{key}.member")
    elif not _is_of(value, kind):
        raise _unreadable(_mismatch(value, kind), path)


def _expect(is_right: bool, value: Any, kind: str, path: str) -> None:
    if is_right:
        return
    if isinstance(value, (dict, list)):
        raise _unreadable(_mismatch(value, kind), path)
    raise _unreadable(f"Expected {kind} or null", path)


def _is_of(value: Any, kind: str) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == "string":
        return isinstance(value, str)
    if kind in _BITS:
        most = 1 << (_BITS[kind] - 1)
        return isinstance(value, int) and -most <= value < most
    if kind in ("float", "double"):
        return isinstance(value, (int, float))
    if kind == "timestamp":
        return isinstance(value, (int, float)) or hasattr(value, "timestamp")
    return isinstance(value, (str, bytes))


def _mismatch(value: Any, kind: str) -> str:
    if isinstance(value, dict):
        return "Start of structure or map found where not expected."
    if isinstance(value, list):
        return "Start of list found where not expected"
    found = "NUMBER_VALUE"
    if isinstance(value, bool):
        found = f"{str(value).upper()}_VALUE"
    elif isinstance(value, float) and kind in _BITS:
        found = "DECIMAL_VALUE"
    elif isinstance(value, str):
        found = "STRING_VALUE"
    return f"{found} can not be converted to {_NAMES[kind]}"


def _unreadable(text: str, path: str) -> ApiError:
    return ApiError("SerializationException", f"{text} (at '{path}')" if path else text)


def check_limits(value: dict[str, Any], shape: Any, also_required: tuple[str, ...] = ()) -> None:
    """Refuse parameters that break a limit of the model.

    Args:
        value: the parameters, of the right types.
        shape: the operation's input.
        also_required: members that have to be there, although the model does not say so.

    Raises:
        ApiError: ValidationException, with all that is wrong.
    """
    missing = [_broken(None, _member("", name), NOT_NULL) for name in also_required if name not in value]
    problems = [*missing, *_limits(value, shape, "")]
    if problems:
        count = len(problems)
        raise invalid(f"{count} validation error{'s' if count > 1 else ''} detected: {'; '.join(problems)}")


def _limits(value: Any, shape: Any, path: str) -> Iterator[str]:
    kind = shape.type_name
    if value is None:
        yield _broken(None, path, NOT_NULL)
    elif kind == "structure":
        for name in shape.required_members:
            if name not in value:
                yield _broken(None, _member(path, name), NOT_NULL)
        for name, item in value.items():
            if name in shape.members:
                yield from _limits(item, shape.members[name], _member(path, name))
            else:
                yield f"{_member(path, name)} is not among the members: {', '.join(shape.members)}"
    elif kind == "list":
        yield from (_broken(value, path, rule) for rule in _lengths(len(value), shape))
        for number, item in enumerate(value, 1):
            yield from _limits(item, shape.member, f"{path}.{number}.member")
    elif kind == "map":
        yield from (_broken(value, path, rule) for rule in _lengths(len(value), shape))
        for what, part, items in (("keys", shape.key, value.keys()), ("value", shape.value, value.values())):
            rules = _rules(part)
            if any(item is None or list(_broken_by(item, part)) for item in items):
                yield _broken(value, path, f"Map {what} must satisfy constraint: [{', '.join(rules)}]")
    else:
        yield from (_broken(value, path, rule) for rule in _broken_by(value, shape))


def _broken(value: Any, path: str, rule: str) -> str:
    """Say which limit a value breaks. Of containers the value is left out: there may be secrets in it."""
    shown = (
        "Value null" if value is None else "Value" if isinstance(value, (dict, list)) else f"Value '{value}'"
    )
    return f"{shown} at '{path}' failed to satisfy constraint: {rule}"


def _broken_by(value: Any, shape: Any) -> Iterator[str]:
    """Yield the limits of a plain shape that a value breaks."""
    limits = shape.metadata
    if shape.type_name == "string":
        allowed = getattr(shape, "enum", None)
        if allowed and value not in allowed:
            yield f"Member must satisfy enum value set: [{', '.join(allowed)}]"
        yield from _lengths(len(value), shape)
        pattern = limits.get("pattern")
        # of what is too long the rest is not looked at: some patterns take for ever with it
        if pattern and not matches(pattern, value[: limits.get("max", len(value)) + 1]):
            yield f"Member must satisfy regular expression pattern: {pattern}"
    elif shape.type_name in _NUMBERS:
        if value < limits.get("min", value):
            yield f"Member must have value greater than or equal to {limits['min']}"
        if value > limits.get("max", value):
            yield f"Member must have value less than or equal to {limits['max']}"


def _lengths(length: int, shape: Any) -> Iterator[str]:
    limits = shape.metadata
    if length < limits.get("min", 0):
        yield f"Member must have length greater than or equal to {limits['min']}"
    if length > limits.get("max", length):
        yield f"Member must have length less than or equal to {limits['max']}"


def _rules(shape: Any) -> list[str]:
    """Return all limits of the keys or values of a map, which the service names together."""
    limits = shape.metadata
    rules = []
    if "max" in limits:
        rules.append(f"Member must have length less than or equal to {limits['max']}")
    if "min" in limits:
        rules.append(f"Member must have length greater than or equal to {limits['min']}")
    if "pattern" in limits:
        rules.append(f"Member must satisfy regular expression pattern: {limits['pattern']}")
    return rules or [NOT_NULL]


def _member(path: str, name: str) -> str:
    own = name[:1].lower() + name[1:]
    return f"{path}.{own}" if path else own

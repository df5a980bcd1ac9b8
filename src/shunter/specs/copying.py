"""Deep copies of specs, without `import copy`, which takes as long as copying a thousand of them."""

from __future__ import annotations

from enum import Enum

from shunter.lazy_dataclass import is_dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

_SHARED = (str, int, float, bool, bytes, type(None))


def deep_copy(value: T) -> T:
    """Return a copy that shares nothing that can be changed. Rarer types are left to ``copy.deepcopy``."""
    kind = type(value)
    if kind in _SHARED or isinstance(value, Enum):
        return value
    if kind in (list, tuple):
        return kind(deep_copy(item) for item in value)  # type: ignore[attr-defined,call-arg]
    if kind is dict:
        return {key: deep_copy(item) for key, item in value.items()}  # type: ignore[attr-defined,return-value]
    if is_dataclass(value) and _is_ordinary(kind):
        copied = object.__new__(kind)
        copied.__dict__.update({name: deep_copy(item) for name, item in vars(value).items()})
        return copied
    import copy

    return copy.deepcopy(value)


def _is_ordinary(kind: type) -> bool:
    """Tell whether objects of a class hold all that they have in a dict, and are copied as all are."""
    changed = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__deepcopy__", "__slots__")
    return not any(name in base.__dict__ for base in kind.__mro__[:-1] for name in changed)

"""Dataclasses that do without `import dataclasses` until their fields are asked for.

That import, with `inspect`, takes as long as all else that a command such as ``run --dryrun`` does. Classes
made here have the ``__init__``, ``__repr__`` and ``__eq__`` of ordinary dataclasses, and count as such:
``dataclasses.fields``, ``replace``, ``asdict`` and subclasses made by ``@dataclass`` work.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from typing import Any

MISSING: Any = object()
_OWN = "__lazy_fields__"


class LazyField:
    """One field, as `fields` gives it; the attributes are those of ``dataclasses.Field``."""

    def __init__(self, default: Any, default_factory: Any, metadata: dict[str, Any], init: bool) -> None:
        self.name = ""
        self.default = default
        self.default_factory = default_factory
        self.metadata = metadata
        self.init = init


if not TYPE_CHECKING:

    def field(*, default=MISSING, default_factory=MISSING, metadata=None):
        """Describe a field, as ``dataclasses.field`` does, for either kind of dataclass."""
        if "dataclasses" in sys.modules:  # the class may be an ordinary one, which wants its own kind
            given = {"default": default, "default_factory": default_factory, "metadata": metadata}
            given = {name: value for name, value in given.items() if value is not MISSING}
            return sys.modules["dataclasses"].field(**given)
        return LazyField(default, default_factory, metadata or {}, init=True)

    def dataclass(cls=None, *, frozen=False):
        """Make a dataclass. Of the options of ``dataclasses.dataclass`` there is ``frozen``.

        Raises:
            TypeError: a field without a default comes after one that has a default.
        """
        return _make(cls, frozen) if cls is not None else lambda cls: _make(cls, frozen)


def is_dataclass(value: object) -> bool:
    """Tell whether a class, or the class of an object, is a dataclass of either kind."""
    cls = value if isinstance(value, type) else type(value)
    return hasattr(cls, _OWN) or ("dataclasses" in sys.modules and hasattr(cls, "__dataclass_fields__"))


def fields(value: object) -> Iterable[Any]:
    """Return the fields of a dataclass of either kind, or of an instance of one."""
    cls: Any = value if isinstance(value, type) else type(value)
    for base in cls.__mro__:
        if _OWN in base.__dict__:
            return base.__dict__[_OWN].values()  # type: ignore[no-any-return]
        if "__dataclass_fields__" in base.__dict__:
            break
    return sys.modules["dataclasses"].fields(cls)  # type: ignore[no-any-return]


def has_default(field: Any) -> bool:
    """Tell whether a field, of either kind, has a default or makes one."""
    return field.default is not field.default_factory  # without either, both are the same sentinel


def default_of(field: Any) -> Any:
    """Return the default of a field of either kind; None if it has none."""
    if not has_default(field):
        return None
    nothing = MISSING if isinstance(field, LazyField) else sys.modules["dataclasses"].MISSING
    return field.default if field.default_factory is nothing else field.default_factory()


def _make(cls: Any, frozen: bool) -> Any:
    own: dict[str, LazyField] = {}
    for name in cls.__annotations__:
        given = cls.__dict__.get(name, MISSING)
        if type(given).__name__ == "Field":  # made while `dataclasses` was loaded
            nothing = sys.modules["dataclasses"].MISSING
            default, factory = (
                MISSING if x is nothing else x for x in (given.default, given.default_factory)
            )
            given = LazyField(default, factory, dict(given.metadata), given.init)
        elif not isinstance(given, LazyField):
            given = LazyField(given, MISSING, {}, init=True)
        given.name = name
        own[name] = given
        if given.default is not MISSING:
            setattr(cls, name, given.default)
        elif name in cls.__dict__:
            delattr(cls, name)
    inherited: dict[str, LazyField] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited |= base.__dict__.get(_OWN, {})
    every = inherited | own
    setattr(cls, _OWN, every)
    for name in ("__dataclass_fields__", "__dataclass_params__"):
        setattr(cls, name, _FromDataclasses(name, cls, own, frozen))
    defaults: dict[str, Any] = {
        "__init__": _LateInitializer(cls, every, frozen),
        "__repr__": _repr,
        "__eq__": _eq,
        "__replace__": _replace,
        "__match_args__": tuple(every),
    }
    if frozen:
        defaults |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete, "__hash__": _hash}
    else:
        defaults["__hash__"] = None
    for name, method in defaults.items():
        explicit = cls.__dict__.get(name, MISSING)
        if explicit is MISSING or (name == "__hash__" and explicit is None and "__eq__" not in cls.__dict__):
            setattr(cls, name, method)
    return cls


class _LateInitializer:
    """Compiles the ``__init__`` of a class when it is first needed: a command uses few of the classes."""

    def __init__(self, cls: Any, every: dict[str, LazyField], frozen: bool) -> None:
        self._arguments = (cls, every, frozen)
        optional = ""
        for name, item in every.items():
            if has_default(item):
                optional = name
            elif optional:
                raise TypeError(f"{cls.__name__}: {name!r} has no default, but {optional!r} before it has")

    def __get__(self, instance: object, owner: type) -> Any:
        made: Any = _initializer(*self._arguments)
        self._arguments[0].__init__ = made
        return made.__get__(instance, owner)


def _initializer(cls: Any, every: dict[str, LazyField], frozen: bool) -> Callable[..., None]:
    parameters, lines = [], []
    names: dict[str, Any] = {"_MISSING": MISSING, "_set": object.__setattr__}
    for name, item in every.items():
        value = name
        if item.default_factory is not MISSING:
            names[f"_factory_{name}"] = item.default_factory
            value = f"_factory_{name}() if {name} is _MISSING else {name}"
            parameters.append(f"{name}=_MISSING")
        elif item.default is not MISSING:
            names[f"_default_{name}"] = item.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        lines.append(f"    _set(self, {name!r}, {value})" if frozen else f"    self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    source = "\n".join([f"def __init__({', '.join(['self', *parameters])}):", *(lines or ["    pass"])])
    exec(source, names)
    made: Any = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    made.__annotations__ = {**{name: _annotation(cls, name) for name in every}, "return": None}
    return made  # type: ignore[no-any-return]


def _annotation(cls: Any, name: str) -> Any:
    return next(base.__annotations__[name] for base in cls.__mro__ if name in base.__annotations__)


class _FromDataclasses:
    """What `dataclasses` keeps on a class, made from an ordinary twin of it when it is first read."""

    def __init__(self, name: str, cls: Any, own: dict[str, LazyField], frozen: bool) -> None:
        self._name, self._cls, self._own, self._frozen = name, cls, own, frozen

    def __get__(self, instance: object, owner: type) -> Any:
        import dataclasses

        cls = self._cls
        namespace: dict[str, Any] = {
            "__annotations__": {name: cls.__annotations__[name] for name in self._own},
            "__module__": cls.__module__,
            "__doc__": cls.__doc__ or "",
        }
        for name, item in self._own.items():
            kept = {"default": item.default, "default_factory": item.default_factory}
            given = {key: value for key, value in kept.items() if value is not MISSING}
            namespace[name] = dataclasses.field(**given, metadata=item.metadata)
        twin: Any = dataclasses.dataclass(frozen=self._frozen)(type(cls.__name__, cls.__bases__, namespace))
        for name in ("__dataclass_fields__", "__dataclass_params__"):
            setattr(cls, name, twin.__dict__[name])
        return twin.__dict__[self._name]


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in getattr(self, _OWN))


def _repr(self: Any) -> str:
    inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in getattr(self, _OWN))
    return f"{type(self).__qualname__}({inside})"


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _replace(self: Any, /, **changes: Any) -> Any:
    import dataclasses

    return dataclasses.replace(self, **changes)


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    import dataclasses

    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    import dataclasses

    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

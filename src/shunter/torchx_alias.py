"""The import name `torchx`, answered by shunter where no TorchX is installed.

Components, plugins and scripts that were written for TorchX import it by name. `install` puts a finder ahead
of Python's own finders; it handles only names that begin with ``torchx``. Which of our objects each name
refers to is in the table `shunter.compat.alias_table`, which is read when something imports `torchx`.

`install` is called where foreign code is about to be loaded (components, plugins), by
``import shunter.compat.torchx``, and at the start of Python where the variable `VARIABLE` is set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

#: ``1`` serves `torchx` from the start of Python; ``0`` never; ``instead`` even where TorchX is installed.
VARIABLE = "SHUNTER_TORCHX"
INSTEAD = "instead"
NAME = "torchx"
#: The same modules under a name of ours, whatever `torchx` is.
OUR_NAME = "shunter.compat.torchx"
TABLE = "shunter.compat.alias_table"
_ABSENT = object()


def install() -> None:
    """Let `import torchx` find our objects from now on, unless TorchX is installed."""
    if not any(isinstance(finder, TorchxFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchxFinder())


class TorchxFinder:
    """Finds `torchx` and its modules in the table."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is made, for importlib; None if shunter does not serve it."""
        old = _old_name(fullname)
        if old is None or _places(old) is None:
            return None
        if fullname == NAME and not _is_ours_to_serve():
            return None
        if fullname.startswith(f"{NAME}.") and not isinstance(sys.modules.get(NAME), AliasModule):
            return None  # an installed TorchX may lack a module; ours would not fit its others
        return ModuleSpec(fullname, self, origin="shunter", is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the module, for importlib."""
        return AliasModule(spec.name, f"TorchX's `{_old_name(spec.name)}`, as shunter serves it.")

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are looked up when they are asked for."""


class AliasModule(ModuleType):
    """A module of TorchX whose names are looked up in the table.

    A name that is replaced, as ``unittest.mock.patch`` does, is replaced where our code reads it too.
    """

    def __getattr__(self, name: str) -> Any:
        return look_up(self.__name__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        place = None if name.startswith("__") or isinstance(value, AliasModule) else find(self.__name__, name)
        if place is not None:
            module, attribute = place
            before = vars(module).get(attribute, _ABSENT)
            self.__dict__.setdefault("_replaced", {}).setdefault(name, (module, attribute, before))
            setattr(module, attribute, value)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        module, attribute, before = self.__dict__.get("_replaced", {}).pop(name, (None, "", None))
        if before is _ABSENT:  # the module finds it out at each use
            delattr(module, attribute)
        elif module is not None:
            setattr(module, attribute, before)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *names_in(self.__name__)})


def look_up(module: str, name: str) -> Any:
    """Return what a name in a module refers to, which may be a module itself.

    Raises:
        AttributeError: shunter has no such name.
    """
    if name == "__all__":
        return [known for known in names_in(module) if not known.startswith("_")]
    place = find(module, name)
    if place is not None:
        return getattr(*place)
    if not name.startswith("__") and _places(f"{_old_name(module)}.{name}".lstrip(".")) is not None:
        return import_module(f"{module}.{name}")
    raise AttributeError(f"shunter serves no {name!r} in {module}")


def find(module: str, name: str) -> tuple[ModuleType, str] | None:
    """Return the module of ours in which a name of a module stands, and its name there; None without one."""
    places = _places(_old_name(module) or "") or {}
    if name in places:
        new_module, _, attribute = places[name].partition(":")
        return import_module(new_module), attribute
    for whole in map(import_module, places.get("*", "").split() if not name.startswith("__") else ()):
        if hasattr(whole, name) and not _is_module(whole, name):
            return whole, name
    return None


def names_in(module: str) -> list[str]:
    """Return the names that a module has, apart from modules in it."""
    places = _places(_old_name(module) or "") or {}
    names = set(places) - {"*"}
    for whole in map(import_module, places.get("*", "").split()):
        names |= {name for name in dir(whole) if not name.startswith("_") and not _is_module(whole, name)}
    return sorted(names)


def _is_module(whole: ModuleType, name: str) -> bool:
    return isinstance(vars(whole).get(name), ModuleType)


def installed_torchx() -> str | None:
    """Return the folder of a TorchX that is installed beside us, or None."""
    spec = PathFinder.find_spec(NAME)
    if spec is None or spec.origin is None:  # of a mere folder that happens to have the name
        return None
    return os.path.dirname(spec.origin)


def switched_off() -> bool:
    """Tell whether the user does not want `torchx` to be served."""
    return os.environ.get(VARIABLE) == "0"


def comes_first() -> bool:
    """Tell whether `torchx` is shunter even where TorchX is installed."""
    return os.environ.get(VARIABLE) == INSTEAD


def _is_ours_to_serve() -> bool:
    return not switched_off() and (comes_first() or installed_torchx() is None)


def _old_name(module: str) -> str | None:
    """Return a module of TorchX without the prefix that it is asked for under; None for other modules."""
    for prefix in (NAME, OUR_NAME):
        if module == prefix:
            return ""
        if module.startswith(f"{prefix}."):
            return module.removeprefix(f"{prefix}.")
    return None


def _places(old_name: str) -> dict[str, str] | None:
    places: dict[str, str] | None = import_module(TABLE).places_of(old_name)
    return places

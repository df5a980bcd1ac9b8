"""Serves this package under the predecessors' names, where they are not installed and it is asked for.

``TRAINYARD_ALIASES=1`` switches it on: a ``.pth`` file of the wheel then calls :func:`install` at the start
of each Python of that environment. The finder stands last in line: an installed original is always found
first. The zipapp has no ``.pth`` file; it carries stand-ins, in a folder of its own on the PYTHONPATH of the
script, that call :func:`stand_in`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# What the predecessors call a module, where it is not what we call it.
_PREFIXES = ("sagemaker_containers.beta.framework", "sagemaker_containers", "sagemaker_training")
_RENAMED = {
    "_" + name: name
    for name in ("errors", "files", "mapping", "runner", "entry_point_type", "intermediate_output")
}
_RENAMED.update(
    _env="environment", env="environment", _trainer="train", trainer="train", modules="entry_point"
)
_SERVING = ("encoders", "decoders", "transformer", "worker", "content_types", "server")


class Finder(importlib.abc.MetaPathFinder):
    """Finds ``sagemaker_training.X`` and ``sagemaker_containers.beta.framework.X`` here."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for a name of ours, or None."""
        if name in (*_PREFIXES, "sagemaker_containers.beta"):
            return importlib.machinery.ModuleSpec(name, _Package(), is_package=True)
        target_name = _target(name)
        if target_name is None or importlib.util.find_spec(target_name) is None:
            return None
        return importlib.machinery.ModuleSpec(name, _Alias(target_name))


def _target(name: str) -> str | None:
    for prefix in _PREFIXES:
        rest = name[len(prefix) + 1 :]
        if name.startswith(prefix + ".") and "." not in rest:
            ours = _RENAMED.get(rest, rest)
            return f"trainyard_toolkit.serving.{ours}" if ours in _SERVING else f"trainyard_toolkit.{ours}"
    return None


class _Package(importlib.abc.Loader):
    """A package without content of its own, whose modules are imported when they are first asked for."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        name = spec.name

        def lazily(attribute: str) -> object:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            try:
                return importlib.import_module(f"{name}.{attribute}")
            except ImportError as error:
                raise AttributeError(f"module {name!r} has no attribute {attribute!r}") from error

        module.__getattr__ = lazily  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is left to do."""


class _Alias(importlib.abc.Loader):
    """Gives the module of ours that a name stands for: the same object, not a copy."""

    def __init__(self, target: str) -> None:
        self.target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(self.target)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the module back its own spec, which the import system has just replaced."""
        module.__spec__ = self._own_spec


def stand_in(name: str, folder: str) -> None:
    """Become an alias package, or the original where there is one behind us on ``sys.path``.

    Args:
        name: the predecessor's package that is being imported.
        folder: the entry of ``sys.path`` that the stand-in was found in; it comes before installed packages.
    """
    del sys.modules[name]
    while folder in sys.path:
        sys.path.remove(folder)
    install()
    importlib.import_module(name)


def install() -> None:
    """Put the finder at the end of the import system's list, once."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())

"""Provides the predecessors' import names from this package if the predecessors are not installed.

In jobs it also provides the part of the launchers, ``torchx`` and ``shunter``, that scripts import:
trackers.

If the wheel is installed, a ``.pth`` file appends a finder to the import system's list whenever Python
starts, unless ``SHUNTER_ALIASES=0``; the finder imports this module when one of the names is requested.
Because the finder comes last, it never shadows an installed package, and never supplies modules that an
installed original lacks. The zipapp has no ``.pth`` file; it has stand-ins, in another folder on the
PYTHONPATH of the script, that call :func:`stand_in`.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec

OURS = "shunter_toolkit."
_CORE = ("entry_point", "environment", "errors", "files", "intermediate_output", "mapping", "runner")
_PREDECESSOR = (
    "functions",
    "logging_config",
    "modules",
    "params",
    "timeout",
    "trainer",
)
_RUNNERS = ("mpi", "process", "pytorch_xla", "smdataparallel", "torch_distributed")
# Name of the predecessors' module -> name of ours.
_MODULES = {name: OURS + name for name in _CORE}
_MODULES.update((name, f"{OURS}predecessor.{name}") for name in _PREDECESSOR)
_MODULES.update((name, f"{OURS}predecessor.{name}_runner") for name in _RUNNERS)
_MODULES.update(
    content_types=OURS + "serving.content_types",
    encoders=OURS + "predecessor.arrays",
    _entry_point_type=OURS + "predecessor.entry_point_type",
)
# The older predecessor prefixed its modules with an underscore, and published some under other names.
_ELDER = {**_MODULES, **{"_" + name: module for name, module in _MODULES.items()}}
_ELDER.update(
    _env=OURS + "environment",
    env=OURS + "environment",
    logging=OURS + "predecessor.logging_config",
    _logging=OURS + "predecessor.logging_config",
    _entry_point_type=OURS + "predecessor.entry_point_type",
    entry_point_type=OURS + "predecessor.entry_point_type",
)
_ELDER.update((name, f"{OURS}serving.{name}") for name in ("decoders", "server", "transformer", "worker"))
_PACKAGES: dict[str, Mapping[str, str]] = {
    "sagemaker_training": _MODULES,
    "sagemaker_training.cli": {"train": OURS + "predecessor.trainer"},
    "sagemaker_containers": _ELDER,
    "sagemaker_containers.beta": {},
    "sagemaker_containers.beta.framework": _ELDER,
}
_TRACKING = OURS + "tracking."
for _launcher in ("torchx", "shunter"):
    _PACKAGES[_launcher] = {}
    _PACKAGES[_launcher + ".tracker"] = {
        "api": _TRACKING + "runs",
        "mlflow": _TRACKING + "mlflow_tracker",
        "results": _TRACKING + "results",
    }
    _PACKAGES[_launcher + ".tracker.backend"] = {"fsspec": _TRACKING + "fsspec_tracker"}
# pickles of functions name these modules as the launcher has them
_PACKAGES["shunter._toolkit"] = {name: OURS + name for name in ("current", "function_call")}
_PACKAGES["torchx.runtime"] = {}
_PACKAGES["torchx.runtime.tracking"] = {"api": _TRACKING + "results"}
# The module with the names that a package itself has; of the other packages ``predecessor``.
_HOMES = {
    "torchx": "",
    "torchx.runtime": "",
    "torchx.runtime.tracking": _TRACKING + "results",
    "torchx.tracker": _TRACKING + "runs",
    "torchx.tracker.backend": "",
    "shunter": OURS + "current",
    "shunter._toolkit": "",
    "shunter.tracker": _TRACKING + "runs",
    "shunter.tracker.backend": "",
}
#: The launcher sets it in jobs. Outside of jobs, ``torchx`` can only be imported if it is installed.
JOB_VARIABLE = "TORCHX_JOB_ID"


class Finder:
    """Finds ``sagemaker_training.X``, ``sagemaker_containers.beta.framework.X``, ``torchx.tracker`` here."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for a name of ours, or None."""
        top = name.partition(".")[0]
        if top not in _PACKAGES or (top in _HOMES and not os.environ.get(JOB_VARIABLE)):
            return None
        parent, _, last = name.rpartition(".")
        if parent and not getattr(sys.modules.get(parent), "__shunter_alias__", False):
            return None
        from importlib.machinery import ModuleSpec

        if name in _PACKAGES:
            return ModuleSpec(name, _Package(), is_package=True)  # type: ignore[arg-type]
        module = _PACKAGES.get(parent, {}).get(last)
        return None if module is None else ModuleSpec(name, _Alias(module))  # type: ignore[arg-type]


class _Package:
    """Loads a package whose modules are imported on first use."""

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        import importlib

        module = type(sys)(spec.name)
        name = spec.name

        def lazily(attribute: str) -> object:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            try:
                return importlib.import_module(f"{name}.{attribute}")
            except ImportError as error:
                if error.name != f"{name}.{attribute}":
                    raise
            home = _HOMES.get(name, OURS + "predecessor")
            try:
                return getattr(importlib.import_module(home) if home else None, attribute)
            except AttributeError:
                raise AttributeError(f"module {name!r} has no attribute {attribute!r}") from None

        module.__getattr__ = lazily  # type: ignore[method-assign]
        module.__shunter_alias__ = True  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is left to do."""


class _Alias:
    """Loads the module of ours that a name stands for: the same object, not a copy."""

    def __init__(self, target: str) -> None:
        self.target = target

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        import importlib

        module = importlib.import_module(self.target)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the module back its own spec, which the import system has just replaced."""
        module.__spec__ = self._own_spec


def stand_in(name: str, folder: str) -> None:
    """Replace a stand-in by the alias package, or by the original if that comes later on ``sys.path``.

    Args:
        name: the predecessor's package that is being imported.
        folder: the entry of ``sys.path`` in which the stand-in was found, before installed packages.
    """
    import importlib

    del sys.modules[name]
    while folder in sys.path:
        sys.path.remove(folder)
    install()
    importlib.import_module(name)


def switched_on(environ: Mapping[str, str]) -> bool:
    """Whether the predecessors' names are provided: unless ``SHUNTER_ALIASES`` is 0 or empty."""
    return environ.get("SHUNTER_ALIASES", "1") not in ("", "0")


def install() -> None:
    """Put the finder at the end of the import system's list, once."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())

"""Lets ``import submitit`` find this package."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from typing import Any

from shunter.errors import UsageError

_OURS = "shunter.compat.submitit"
#: Modules of submitit that programs import names from.
_MODULES = (
    "auto",
    "auto.auto",
    "core",
    "core.core",
    "core.job_environment",
    "core.utils",
    "local",
    "local.debug",
    "local.local",
    "slurm",
    "slurm.slurm",
)


def is_installed() -> bool:
    """Tell whether ``submitit`` is this package."""
    return sys.modules.get("submitit") is sys.modules[_OURS]


def install() -> None:
    """Make ``import submitit`` find this package, in this process and in the jobs that it submits.

    A submitit that is installed is not imported then, also by libraries that depend on it.

    Raises:
        UsageError: the installed one was imported before.
    """
    if is_installed():
        return
    if "submitit" in sys.modules:
        raise UsageError(
            f"submitit was imported before from {sys.modules['submitit'].__file__}",
            hint="Call shunter.compat.submitit.install() first, at the beginning of the program.",
        )
    package = importlib.import_module(_OURS)
    sys.modules["submitit"] = package
    sys.modules["submitit.helpers"] = importlib.import_module(f"{_OURS}.helpers")
    for path in _MODULES:
        module: Any = types.ModuleType(f"submitit.{path}")
        module.__getattr__ = functools.partial(getattr, package)
        parent, _, name = module.__name__.rpartition(".")
        sys.modules[module.__name__] = module
        setattr(sys.modules[parent], name, module)

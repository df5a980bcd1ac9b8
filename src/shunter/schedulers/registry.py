"""Which schedulers there are, by name. A scheduler's module is imported when it is first used."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Protocol

from shunter.errors import ConfigError, UnknownSchedulerException, did_you_mean
from shunter.plugins import EntryPoint, entry_points, installed
from shunter.schedulers.api import Scheduler
from shunter.schedulers.short_names import SHORT_NAMES


class SchedulerFactory(Protocol):
    """Makes a scheduler for a session."""

    def __call__(self, session_name: str, **kwargs: object) -> Scheduler[Any]:
        """Make the scheduler."""
        ...


# The first is the default.
DEFAULT_SCHEDULER_MODULES: dict[str, str] = {
    "local_cwd": "shunter.schedulers.local_scheduler",
    "local_docker": "shunter.schedulers.docker_scheduler",
    "lsf": "shunter.schedulers.lsf_scheduler",
    "sge": "shunter.schedulers.sge_scheduler",
    "aws_batch": "shunter.schedulers.aws_batch_scheduler",
    "aws_sagemaker": "shunter.schedulers.aws_sagemaker_scheduler",
    "sagemaker_local": "shunter.schedulers.sagemaker_local_scheduler",
    "kubernetes": "shunter.schedulers.kubernetes_scheduler",
    "slurm": "shunter.schedulers.slurm_scheduler",
    "ray": "shunter.schedulers.ray_scheduler",
}

#: Where the factories are that this distribution offers to an installed TorchX.
OFFERED = "shunter.compat."

#: Where TorchX's built-in schedulers are. Plugins register them again, since a plugin hides them in TorchX.
THE_SAME = "torchx.schedulers."

#: The first part of handles of sweeps whose points are jobs.
SWEEPS = "sweep"
#: What answers for handles that no backend gave.
_WITHOUT_BACKEND = {SWEEPS: "shunter.sweeps.point_jobs"}

_EXTRA_OF_MODULE = {"boto3": "aws", "botocore": "aws", "lightkube": "kubernetes"}

#: Schedulers of TorchX that shunter does not have: when TorchX removed them, and what to use instead.
_REMOVED = {
    "gcp_batch": ("2025", "On Google Cloud, kubernetes (GKE) and slurm work."),
    "kubernetes_mcad": ("2026", "Use kubernetes: with Kueue it queues jobs as MCAD did."),
}


def get_scheduler_factories() -> dict[str, SchedulerFactory]:
    """Return the factory of each scheduler, by name: the built-in ones, then those of plugins.

    A plugin adds names. It cannot replace a built-in scheduler; if it tries to, there is a warning. The
    factories that this distribution offers to TorchX are left out.
    """
    points = entry_points("schedulers")
    _warn_of_unused([*installed("schedulers"), *points])
    factories: dict[str, SchedulerFactory] = {
        name: _builtin_factory(name) for name in DEFAULT_SCHEDULER_MODULES
    }
    for point in points:
        if not point.value.startswith(OFFERED):
            factories.setdefault(point.name, _plugin_factory(point))
    return factories


def get_scheduler_factory(name: str) -> SchedulerFactory:
    """Return the factory of the scheduler of this name; plugins are not searched if it is built in.

    Raises:
        UnknownSchedulerException: there is no such scheduler.
    """
    if name in DEFAULT_SCHEDULER_MODULES or name in _WITHOUT_BACKEND:
        return _builtin_factory(name)
    factories = get_scheduler_factories()
    if name not in factories:
        raise unknown_scheduler(name, factories)
    return factories[name]


def _warn_of_unused(points: Iterable[EntryPoint]) -> None:
    """Warn of plugins that have the name of a built-in scheduler, unless TorchX's is registered again."""
    unused = {
        (point.name, point.value)
        for point in points
        if point.name in DEFAULT_SCHEDULER_MODULES and not point.value.startswith((OFFERED, THE_SAME))
    }
    for name, value in sorted(unused):
        warnings.warn(
            f"the scheduler {name!r} is shunter's ({DEFAULT_SCHEDULER_MODULES[name]}), so the plugin "
            f"{value} of that name is not used; it has to be registered under another name",
            RuntimeWarning,
            stacklevel=3,
        )


def unknown_scheduler(name: object, known: Iterable[str]) -> UnknownSchedulerException:
    """Return the error that says that there is no such scheduler, and what to use instead."""
    if not isinstance(name, str):
        return UnknownSchedulerException(
            f"{name!r} names no scheduler: a name is a text", hint=did_you_mean("", known)
        )
    if name in _REMOVED:
        when, hint = _REMOVED[name]
        return UnknownSchedulerException(
            f"there is no scheduler {name!r}: TorchX removed it in {when}, and shunter has none", hint=hint
        )
    return UnknownSchedulerException(
        f"there is no scheduler {name!r}", hint=did_you_mean(name, [*known, *SHORT_NAMES])
    )


def as_scheduler(made: Any, name: str, session_name: str) -> Scheduler[Any]:
    """Return what a factory made as a scheduler of ours; a plugin's may have TorchX's interface.

    Raises:
        ConfigError: it is not a scheduler.
    """
    if isinstance(made, Scheduler):
        return made
    if not callable(getattr(made, "schedule", None)):
        raise ConfigError(
            f"the plugin of the scheduler {name!r} made {type(made).__name__!r}, which is not a scheduler",
            hint="Repair or uninstall the distribution that provides it.",
        )
    from shunter.schedulers.torchx_scheduler import TorchXScheduler  # few have such a plugin

    return TorchXScheduler(made, name, session_name)


def get_default_scheduler_name() -> str:
    """Return the name of the scheduler that is used when none is named."""
    return next(iter(DEFAULT_SCHEDULER_MODULES))


def _builtin_factory(name: str) -> SchedulerFactory:
    def create(session_name: str, **kwargs: object) -> Scheduler[Any]:
        try:
            module = DEFAULT_SCHEDULER_MODULES.get(name) or _WITHOUT_BACKEND[name]
            factory: SchedulerFactory = import_module(module).create_scheduler
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            extra = _EXTRA_OF_MODULE.get(missing)
            if extra is None:
                raise
            raise ConfigError(
                f"the scheduler {name!r} needs the package {missing!r}, which is not installed",
                hint=f"Install it: pip install 'shunter[{extra}]'",
            ) from None
        return factory(session_name, **kwargs)

    return create


def _plugin_factory(point: EntryPoint) -> SchedulerFactory:
    """Return the factory of a plugin's scheduler.

    As in TorchX, a factory written for it gets each variable ``TORCHX_NAME`` as the parameter ``name``, if it
    has such a parameter or takes any.
    """
    if not point.group.startswith("torchx."):
        return point.call

    def create(session_name: str, **kwargs: object) -> Scheduler[Any]:
        factory: SchedulerFactory = point.load()
        given: dict[str, object] = {
            name[7:].lower(): value for name, value in os.environ.items() if name.startswith("TORCHX_")
        }
        given |= kwargs
        parameters = inspect.signature(factory).parameters
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
        known = {name: value for name, value in given.items() if takes_any or name in parameters}
        known.pop("session_name", None)
        made: Scheduler[Any] = point.call(session_name, **known)
        return made

    return create

"""Options of our schedulers as TorchX has them: made from a mapping or by name, and read as one.

``AWSBatchOpts(queue="gpu")``, ``AWSBatchOpts({"queue": "gpu"})`` and ``AWSBatchOpts.from_cfg(cfg)`` are the
same; ``opts["queue"]`` and ``opts.queue`` too. An option that is not given is None, or its default.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from importlib import import_module
from typing import Any

from shunter.compat.torchx_schedulers import StructuredOpts, option_keys
from shunter.specs.conversion import default_of
from shunter.specs.options import runopts

_PLACES = {
    "LocalOpts": "shunter.schedulers.local_scheduler.options",
    "DockerOpts": "shunter.schedulers.docker_scheduler.options",
    "SlurmOpts": "shunter.schedulers.slurm_scheduler.options",
    "LsfOpts": "shunter.schedulers.lsf_scheduler.options",
    "KubernetesOpts": "shunter.schedulers.kubernetes_scheduler.options",
    "AWSBatchOpts": "shunter.schedulers.aws_batch_scheduler.options",
    "AWSSageMakerOpts": "shunter.schedulers.aws_sagemaker_scheduler.options",
    "RayOpts": "shunter.schedulers.ray_scheduler.options",
}


class OptionsMixin(StructuredOpts):
    """Gives an options class of ours the behaviour above. Must precede that class among the bases."""

    __signature__: Any  # set for each class

    def __init__(self, cfg: Mapping[str, Any] | None = None, /, **given: Any) -> None:
        values = {**(cfg or {}), **given}
        known = _fields(type(self))
        for item in known:
            keys = [key for key in option_keys(item) if key in values]
            object.__setattr__(self, item.name, values.pop(keys[0]) if keys else default_of(item))
        if values:
            raise TypeError(f"{type(self).__name__} has no option {', '.join(map(repr, values))}")

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any]) -> Any:
        """Make the options from a mapping; what is not an option is left out."""
        known = {key for item in _fields(cls) for key in option_keys(item)}
        return cls({key: value for key, value in cfg.items() if key in known})

    @classmethod
    def as_runopts(cls) -> runopts:
        """Return the fields as options."""
        return runopts.from_dataclass(_ours(cls))

    @classmethod
    def get_docstrings(cls) -> dict[str, str]:
        """Return the help texts of the options, by name."""
        return {item.name: item.metadata.get("help", "") for item in _fields(cls)}


def _fields(cls: type) -> Sequence[Field[Any]]:
    return fields(_ours(cls))


def _ours(cls: type) -> type:
    return next(base for base in cls.__mro__ if base.__module__ in _PLACES.values())


@functools.cache
def _made(name: str) -> type:
    ours = getattr(import_module(_PLACES[name]), name)
    made: Any = type(name, (OptionsMixin, ours), {"__doc__": ours.__doc__, "__module__": __name__})
    made.__signature__ = inspect.signature(ours)
    return made  # type: ignore[no-any-return]


def __getattr__(name: str) -> type:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made(name)

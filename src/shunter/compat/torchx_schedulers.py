"""TorchX's interface to schedulers where it differs from ours: answers, factories, ids, device mounts."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import os
import random
import textwrap
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from shunter.compat.torchx_specs import cases, known_state, shown_as
from shunter.compat.torchx_util import decode_optional, load_group
from shunter.errors import InvalidRunConfigException
from shunter.schedulers import lines
from shunter.schedulers.ids import random_id as make_random_id
from shunter.schedulers.registry import DEFAULT_SCHEDULER_MODULES as OURS
from shunter.schedulers.registry import get_scheduler_factories as all_factories
from shunter.schedulers.responses import DescribeAppResponse, ListAppResponse
from shunter.specs.conversion import default_of, has_default
from shunter.specs.mounts import DeviceMount
from shunter.specs.options import runopts

T = TypeVar("T")
DAYS_IN_2_WEEKS = 14
TORCHX_RANK0_HOST = "TORCHX_RANK0_HOST"

#: TorchX's schedulers and the modules under which their names are served. The first is its default.
DEFAULT_SCHEDULER_MODULES: dict[str, str] = {
    "local_docker": "torchx.schedulers.docker_scheduler",
    "local_cwd": "torchx.schedulers.local_scheduler",
    "slurm": "torchx.schedulers.slurm_scheduler",
    "kubernetes": "torchx.schedulers.kubernetes_scheduler",
    "aws_batch": "torchx.schedulers.aws_batch_scheduler",
    "aws_sagemaker": "torchx.schedulers.aws_sagemaker_scheduler",
    "ray": "torchx.schedulers.ray_scheduler",
    "lsf": "torchx.schedulers.lsf_scheduler",
}


# ---- answers


@shown_as("DescribeAppResponse")
@dataclass
class TorchxDescribeAppResponse(DescribeAppResponse):
    """What a scheduler knows of a job."""


@shown_as("ListAppResponse")
@dataclass
class TorchxListAppResponse(ListAppResponse):
    """One row of a list of jobs. Rows of one job in one state are equal, and count once in a set."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ListAppResponse):
            return NotImplemented
        return (self.app_id, self.app_handle, self.state) == (other.app_id, other.app_handle, other.state)

    def __hash__(self) -> int:
        return hash((self.app_id, self.app_handle, self.state))


def as_torchx_rows(rows: Iterable[ListAppResponse]) -> list[ListAppResponse]:
    """Return rows of a list of jobs in TorchX's shape."""
    return [TorchxListAppResponse(**{**vars(row), "state": known_state(row.state)}) for row in rows]


# ---- factories


def get_scheduler_factories(group: str = "torchx.schedulers", skip_defaults: bool = False) -> dict[str, Any]:
    """Return the factory of each scheduler, by name: TorchX's first, then ours, then those of plugins.

    Args:
        group: the entry-point group to search.
        skip_defaults: only those of plugins.
    """
    found = all_factories() if group == "torchx.schedulers" else dict(load_group(group) or {})
    if skip_defaults:
        return {name: factory for name, factory in found.items() if name not in OURS}
    builtin = {name: found[name] for name in DEFAULT_SCHEDULER_MODULES if name in found}
    if not builtin:
        known = all_factories()
        builtin = {name: known[name] for name in DEFAULT_SCHEDULER_MODULES}
    return {**builtin, **found}


def get_default_scheduler_name() -> str:
    """Return the scheduler that TorchX uses when none is named."""
    return next(iter(get_scheduler_factories()))


# ---- options as a dataclass


class StructuredOpts(Mapping[str, Any]):
    """Base of dataclasses that declare a scheduler's options; the text below a field is its help.

    A field with a default is optional. Values are taken by the names of the fields, by their camelCase, or by
    the ``cfg_key`` in a field's metadata. A field that is such a dataclass itself is a group: the options in
    it are called ``group.option``.
    """

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any]) -> Any:
        """Make the options from a mapping; what it does not have gets the field's default.

        Raises:
            TypeError: a field without a default is missing.
            InvalidRunConfigException: an option is given under two spellings, with different values.
        """
        given: dict[str, Any] = {}
        groups = _groups(cls)
        for item in fields(cls):  # type: ignore[arg-type]
            keys = option_keys(item)
            if item.name in groups:
                inside = {
                    key.partition(".")[2]: value
                    for key, value in cfg.items()
                    if "." in key and key.partition(".")[0] in keys
                }
                if inside or not has_default(item):
                    given[item.name] = groups[item.name].from_cfg(inside)
                continue
            values = [cfg[key] for key in keys if key in cfg]
            if any(value != values[0] for value in values):
                raise InvalidRunConfigException(
                    f"option {keys[0]!r} is given in two spellings, with different values", keys[0], cfg
                )
            if values:
                given[item.name] = values[0]
        return cls(**given)

    @classmethod
    def as_runopts(cls) -> runopts:
        """Return the fields as options."""
        hints = typing.get_type_hints(cls)
        helps = cls.get_docstrings()
        groups = _groups(cls)
        options = runopts()
        for item in fields(cls):  # type: ignore[arg-type]
            own = option_keys(item)[0]
            if item.name in groups:
                inside = {f"{own}.{key}": opt for key, opt in groups[item.name].as_runopts()}
                options.update(runopts(**inside))
                continue
            help_text = helps.get(item.name, "")
            options.add(
                own, decode_optional(hints[item.name]), help_text, default_of(item), not has_default(item)
            )
        return options

    @classmethod
    def get_docstrings(cls) -> dict[str, str]:
        """Return the texts below the fields, by name of the field."""
        found: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            if base in (object, StructuredOpts) or not issubclass(base, StructuredOpts):
                continue
            try:
                tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
            except (OSError, TypeError, SyntaxError):
                continue
            body = tree.body[0].body  # type: ignore[attr-defined]
            for node, below in itertools.pairwise(body):
                if (
                    isinstance(node, ast.AnnAssign)
                    and isinstance(node.target, ast.Name)
                    and isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                    and isinstance(below.value.value, str)
                ):
                    found[node.target.id] = inspect.cleandoc(below.value.value)
        for name, group in _groups(cls).items():
            found |= {f"{name}.{key}": text for key, text in group.get_docstrings().items()}
        return found

    def __getitem__(self, key: str) -> Any:
        head, dot, rest = key.partition(".")
        for item in fields(self):  # type: ignore[arg-type]
            if head in option_keys(item):
                value = getattr(self, item.name)
                if not dot:
                    return value
                if isinstance(value, StructuredOpts):
                    return value[rest]
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of an option; the default if there is no such option."""
        try:
            return self[key]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        groups = _groups(type(self))
        for item in fields(self):  # type: ignore[arg-type]
            own, value = option_keys(item)[0], getattr(self, item.name)
            if isinstance(value, StructuredOpts):
                yield from (f"{own}.{key}" for key in value)
            elif item.name not in groups:
                yield own

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}


def _groups(cls: type) -> dict[str, Any]:
    """Return the fields that are groups of options, with the classes of the groups."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a class defined in a function: its annotations are strings that cannot be resolved
        hints = {}
    kinds = {item.name: decode_optional(hints.get(item.name)) for item in fields(cls)}
    return {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, StructuredOpts)
    }


def option_keys(item: Any) -> list[str]:
    """Return the names under which a field's value is given, its name as an option first."""
    own = item.metadata.get("cfg_key", item.name)
    return list(dict.fromkeys([own, item.name, cases.snake_to_camel(item.name)]))


# ---- ids

START_CANDIDATES = "bcdfghjklmnpqrstvwxz"
END_CANDIDATES = START_CANDIDATES + "012345679"


def random_uint64() -> int:
    """Return a random number of 64 bits."""
    return random.SystemRandom().getrandbits(64)


def random_id(max_length: int | None = None) -> str:
    """Return a random id that begins with a letter and holds no vowels, of this many characters at most."""
    return make_random_id(max_length or 13)


def get_len_random_id(string_length: int) -> str:
    """Return a random id of this many characters."""
    return make_random_id(string_length)


def make_unique(name: str, string_length: int = 0) -> str:
    """Return a name with a random id behind it."""
    return f"{name}-{random_id(string_length or None)}"


# ---- device mounts


def to_devicemounts(num_devices: int, device_type: str) -> list[DeviceMount]:
    """Return the mounts of the devices ``<device_type>0`` and following."""
    paths = [f"{device_type}{number}" for number in range(num_devices)]
    return [DeviceMount(src_path=path, dst_path=path) for path in paths]


efa_to_devicemounts = functools.partial(to_devicemounts, device_type="/dev/infiniband/uverbs")
neuron_to_devicemounts = functools.partial(to_devicemounts, device_type="/dev/neuron")
DEVICES = {
    "vpc.amazonaws.com/efa": efa_to_devicemounts,
    "aws.amazon.com/neurondevice": neuron_to_devicemounts,
}


def get_device_mounts(devices: Mapping[str, int]) -> list[DeviceMount]:
    """Return the mounts for a resource's devices; warns of those that are not known."""
    mounts: list[DeviceMount] = []
    for name, count in devices.items():
        if name in DEVICES:
            mounts += DEVICES[name](count)
        else:
            warnings.warn(f"no mounts are known for the device {name}", stacklevel=2)
    return mounts


# ---- lines


split_lines = lines.split_lines


def split_lines_iterator(chunks: Iterable[str]) -> Iterator[str]:
    r"""Split each chunk after each ``\n``; a line that goes on in the next chunk is not joined."""
    for chunk in chunks:
        yield from split_lines(chunk)


# ---- Ray


@dataclass
class RayActor:
    """One replica as TorchX's Ray scheduler describes it."""

    name: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    num_cpus: int = 1
    num_gpus: int = 0
    min_replicas: int | None = None


def has_ray() -> bool:
    """Tell whether jobs can be sent to Ray: always, since our scheduler needs no package of Ray for it."""
    return True


def serialize(actors: list[RayActor], dirpath: str, output_filename: str = "actors.json") -> None:
    """Write actors as JSON into a folder."""
    with open(os.path.join(dirpath, output_filename), "w", encoding="utf-8") as file:
        json.dump([asdict(actor) for actor in actors], file)

"""What a job is: an application of roles, each a number of equal replicas; and the macros in it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from string import Template
from threading import RLock
from typing import TYPE_CHECKING, Any, get_args, get_origin

from shunter.errors import ConfigError, refuse
from shunter.limits import (
    MOST_CPUS,
    MOST_GPUS,
    MOST_MEMORY_MB,
    MOST_PORT,
    MOST_REPLICAS,
    MOST_RETRIES,
)
from shunter.specs.conversion import is_union, types_of
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.mounts import Mount
from shunter.specs.resources import NULL_RESOURCE, Resource

MISSING = "<MISSING>"
#: The image of a role without one. Schedulers that run processes ignore it; those that run
#: containers refuse it. There is no image that suits every project, so none is guessed.
NO_IMAGE = "<NONE>"


class RetryPolicy(str, Enum):
    """What is restarted when a replica fails.

    ``REPLICA`` restarts that replica, ``ROLE`` all replicas of its role, ``APPLICATION`` everything.
    """

    REPLICA = "REPLICA"
    APPLICATION = "APPLICATION"
    ROLE = "ROLE"


@dataclass
class Role:
    """A number of equal replicas of one program.

    Args:
        name: name of the role, unique in its application.
        image: what the scheduler runs it in: a container image, or a directory.
        min_replicas: the fewest replicas that the job can run with, where the scheduler is elastic.
        base_image: not used; kept for callers of TorchX.
        entrypoint: the program.
        args: its arguments. Macros (`shunter.specs.macros`) are substituted.
        env: its environment variables. Macros are substituted in the values.
        num_replicas: how many to start.
        max_retries: how many times to restart after a failure.
        retry_policy: what to restart.
        resource: needs of one replica.
        port_map: ports by name.
        metadata: extra facts for schedulers, by scheduler name. JSON values only.
        mounts: host directories, volumes and devices that it can access.
        overrides: attribute name to a function (or coroutine) that gives its value when it is first read.
        workspace: the code that travels with it, as a `Workspace` or its text, if the job has none. Where the
            roles of a job have different ones, each gets a folder of the job's code.
    """

    name: str
    image: str
    min_replicas: int | None = None
    base_image: str | None = None
    entrypoint: str = MISSING
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    num_replicas: int = 1
    max_retries: int = 0
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION
    resource: Resource = field(default_factory=lambda: Resource.copy(NULL_RESOURCE))
    port_map: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    overrides: dict[str, Callable[[], Any] | Coroutine[Any, Any, Any]] = field(default_factory=dict)
    workspace: Any = None

    if not TYPE_CHECKING:  # a typed __getattribute__ would hide misspelt attributes from type checkers

        def __getattribute__(self, name: str) -> Any:
            state = object.__getattribute__(self, "__dict__")
            overrides = state.get("overrides")
            if overrides and name in overrides and name not in state.get("_overridden", ()):
                value = _override_value(overrides, name)
                state[name] = value
                state["_overridden"] = {*state.get("_overridden", ()), name}
            return object.__getattribute__(self, name)

    def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:
        """Change the request before it is sent; subclasses override this. Returns it unchanged."""
        return dryrun_info


_override_lock = RLock()


def _override_value(overrides: dict[str, Any], name: str) -> Any:
    """Return the value of an override, whose function is called (or coroutine awaited) once.

    The value replaces its source, since roles may share their overrides.
    """
    with _override_lock:
        source = overrides[name]
        value = source() if callable(source) else source
        if inspect.isawaitable(value):
            value = _awaited(value)
        overrides[name] = lambda: value
        return value


def _awaited(awaitable: Awaitable[Any]) -> Any:
    """Return the result of a coroutine. It gets a thread of its own, as this one may run an event loop."""
    import asyncio  # which is heavy

    async def wait() -> Any:
        return await awaitable

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


class macros:
    """The macros. Write ``macros.app_id`` (that is, ``${app_id}``) where its value belongs.

    They are substituted in a role's ``args``, the values of its ``env`` and the strings in its
    ``metadata``. Substitution turns ``$$`` into ``$`` and leaves unknown ``${names}`` alone.

    Attributes:
        img_root: directory at which the image's files are found.
        app_id: id of the job on its scheduler.
        replica_id: index of the replica in its role.
        rank0_env: *name* of the environment variable that holds the host of the first replica.
        base_img_root: always "DEPRECATED".
    """

    img_root = "${img_root}"
    base_img_root = "${base_img_root}"
    app_id = "${app_id}"
    replica_id = "${replica_id}"
    rank0_env = "${rank0_env}"

    @dataclass
    class Values:
        """What the macros stand for in one replica."""

        img_root: str
        app_id: str
        replica_id: str
        rank0_env: str
        base_img_root: str = "DEPRECATED"

        def apply(self, role: Role) -> Role:
            """Return a copy of the role with the macros substituted. Both share their overrides."""
            # overrides may be coroutines, which cannot be copied
            applied = deepcopy(role, {id(role.overrides): role.overrides} if role.overrides else {})
            for name in ("args", "env", "metadata"):
                setattr(applied, name, self._substitute_nested(getattr(role, name)))
            return applied

        def substitute(self, arg: str) -> str:
            """Return the text with the macros substituted."""
            return Template(arg).safe_substitute(vars(self))

        def to_dict(self) -> dict[str, str]:
            """Return the values by macro name."""
            return dict(vars(self))

        def _substitute_nested(self, value: Any) -> Any:
            if isinstance(value, str):
                return self.substitute(value)
            if isinstance(value, dict):
                return {key: self._substitute_nested(item) for key, item in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value)(self._substitute_nested(item) for item in value)
            return value


@dataclass
class AppDef:
    """A job: a name, its roles, and notes that go with it (as tags, where the scheduler has them)."""

    name: str
    roles: list[Role] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)


def validate_app(app: AppDef) -> None:
    """Check what holds on every scheduler, and report all that is wrong at once.

    Raises:
        ConfigError: no roles, equal names, a missing entrypoint or image, counts out of range.
    """
    if not isinstance(app, AppDef):
        raise ConfigError(f"the job is {_type_of(app)}; it must be an AppDef")
    types = {"name": str, "metadata": dict, "roles": list[Role]}
    problems = [text for name, tp in types.items() for text in _misfits(name, getattr(app, name), tp)]
    if not problems:
        problems = [f"role {role.name!r}: {text}" for role in app.roles for text in _role_misfits(role)]
    refuse(f"the job {app.name!r} is not complete", problems or _app_problems(app))


# ---- values of the wrong type: components are plain Python, so nothing else has checked them

_WORDS: dict[Any, str] = {
    str: "a text",
    str | None: "a text",
    int: "a whole number",
    int | None: "a whole number",
    float: "a number",
    Mount: "a mount (see parse_mounts)",
}


def _role_misfits(role: Role) -> Iterator[str]:
    for name, tp in types_of(Role).items():
        if name not in ("overrides", "workspace"):
            yield from _misfits(name, getattr(role, name), tp)
    if isinstance(role.resource, Resource):
        for name, tp in types_of(Resource).items():
            # there are parts of cpus and gpus
            yield from _misfits(name, getattr(role.resource, name), float if tp is int else tp)


def _misfits(name: str, value: Any, tp: Any) -> Iterator[str]:
    """Yield what in a value is not of a type: a class, a union of classes, ``list[...]``, ``dict[...]``."""
    parts = () if is_union(tp) else get_args(tp)
    cls = get_origin(tp) if parts else tp
    accepted: Any = {list: (list, tuple), float: (float, int)}.get(cls, cls)
    if cls in (Any, object):
        return
    if not isinstance(value, accepted) or (cls is int and isinstance(value, bool)):
        yield f"{name} is {_type_of(value)}; it must be {_WORDS.get(cls) or f'a {cls.__name__}'}"
    elif cls is list:
        for index, item in enumerate(value):
            yield from _misfits(f"{name}[{index}]", item, parts[0])
    elif parts:
        for key, item in value.items():
            yield from _misfits(f"the key {key!r} of {name}", key, parts[0])
            yield from _misfits(f"{name}[{key!r}]", item, parts[1])


def _type_of(value: object) -> str:
    """Name a value's type; the value itself may be a secret."""
    return "None" if value is None else f"of type {type(value).__name__}"


# ---- values of the right type that make no sense


def _app_problems(app: AppDef) -> list[str]:
    problems = [] if app.roles else ["it has no roles"]
    names = [role.name for role in app.roles]
    problems += [f"two roles are named {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
    return problems + [f"role {role.name!r}: {text}" for role in app.roles for text in _role_problems(role)]


def _role_problems(role: Role) -> Iterator[str]:
    if not role.name:
        yield "it has no name"
    if "/" in role.name:
        yield "its name contains a '/'"
    if not role.entrypoint or role.entrypoint == MISSING:
        yield "it has no entrypoint"
    if role.num_replicas < 1:
        yield f"num_replicas is {role.num_replicas}; it must be at least 1"
    if role.max_retries < 0:
        yield f"max_retries is {role.max_retries}; it must not be negative"
    if role.min_replicas is not None and not 1 <= role.min_replicas <= role.num_replicas:
        yield f"min_replicas {role.min_replicas} is not between 1 and num_replicas {role.num_replicas}"
    if any(not key or "=" in key or "\0" in key for key in role.env):
        yield "an environment variable's name is empty or contains '=' or NUL"
    if any("\0" in text for text in (role.entrypoint, *role.args, *role.env.values())):
        yield "an argument or environment value holds a NUL byte"
    # absurd numbers would take all memory or time, or do not fit into a backend's request
    numbers: dict[str, tuple[float, float]] = {
        "num_replicas": (role.num_replicas, MOST_REPLICAS),
        "max_retries": (role.max_retries, MOST_RETRIES),
        "cpu": (role.resource.cpu, MOST_CPUS),
        "gpu": (role.resource.gpu, MOST_GPUS),
        "memMB": (role.resource.memMB, MOST_MEMORY_MB),
        **{f"port {name!r}": (port, MOST_PORT) for name, port in role.port_map.items()},
    }
    for name, (number, most) in numbers.items():
        if number > most:
            yield f"{name} is {number}; it must be at most {most:,}"

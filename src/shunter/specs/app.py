"""What a job is: an application of roles, each a number of equal replicas."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from threading import RLock
from typing import TYPE_CHECKING, Any

from shunter.errors import ConfigError, refuse
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.limits import (
    MOST_CPUS,
    MOST_GPUS,
    MOST_MEMORY_MB,
    MOST_PORT,
    MOST_REPLICAS,
    MOST_RETRIES,
)
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


_override_locks_guard = RLock()
#: By the id of a role's overrides: the lock held while one of their values is computed, and its users.
_override_locks: dict[int, tuple[RLock, list[None]]] = {}


@dataclass
class Role:
    """A number of equal replicas of one program.

    Args:
        name: name of the role, unique in its application.
        image: what the scheduler runs it in: a container image, or a directory.
        min_replicas: the fewest replicas that the job can run with, where the scheduler is elastic.
        base_image: not used; kept for callers of TorchX.
        entrypoint: the program.
        args: its arguments. Macros (`shunter.specs.substitution`) are substituted.
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


class _Resolved:
    """The value of an override, stored in place of its source, since roles may share their overrides."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


def _override_value(overrides: dict[str, Any], name: str) -> Any:
    """Return the value of an override, which is found out once. Other roles' overrides do not wait for it."""
    source = overrides[name]
    if isinstance(source, _Resolved):
        return source.value
    key = id(overrides)
    with _override_locks_guard:
        lock, users = _override_locks.setdefault(key, (RLock(), []))
        users.append(None)
    try:
        with lock:
            source = overrides[name]
            if not isinstance(source, _Resolved):
                source = overrides[name] = _Resolved(_found_out(source))
    finally:
        with _override_locks_guard:
            users.pop()
            if not users:
                del _override_locks[key]
    return source.value


def _found_out(source: object) -> Any:
    """Return the result of a function, coroutine or future.

    Raises:
        RuntimeError: a future belongs to the event loop of this thread, which would wait for itself.
    """
    value: Any = source() if callable(source) else source
    if not inspect.isawaitable(value):
        return value
    import asyncio

    async def wait_for_value() -> Any:
        return await value

    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    owner = value.get_loop() if isinstance(value, asyncio.Future) else None
    if owner is not None and owner is running:
        raise RuntimeError(
            "an override is a future of the event loop currently running in this thread; await it first"
        )
    if owner is not None and owner.is_running():
        return asyncio.run_coroutine_threadsafe(wait_for_value(), owner).result()
    if running is None:
        return asyncio.run(wait_for_value())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait_for_value()).result()


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
        raise ConfigError(f"the job is {_a(app)}; it must be an AppDef")
    problems = _app_type_problems(app)
    for role in [] if problems else app.roles:
        problems += [f"role {role.name!r}: {problem}" for problem in _role_type_problems(role)]
    if not problems:
        problems = _app_problems(app)
    refuse(f"the job {app.name!r} is not complete", problems)


def _app_problems(app: AppDef) -> list[str]:
    problems = [] if app.roles else ["it has no roles"]
    names = [role.name for role in app.roles]
    problems += [f"two roles are named {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]
    for role in app.roles:
        problems += [f"role {role.name!r}: {problem}" for problem in _role_problems(role)]
    return problems


def _app_type_problems(app: AppDef) -> list[str]:
    roles: Any = app.roles
    if not isinstance(roles, (list, tuple)):
        return [f"roles is {_a(roles)}; it must be a list of Role"]
    problems = _wrong("name", app.name, str, "a text") + _wrong("metadata", app.metadata, dict, "a dict")
    for number, role in enumerate(roles):
        problems += _wrong(f"roles[{number}]", role, Role, "a Role")
    return problems


def _role_type_problems(role: Role) -> list[str]:
    """Find values of the wrong type: components are plain Python, so nothing else has looked at them."""
    problems = []
    for name in ("name", "image", "entrypoint"):
        problems += _wrong(name, getattr(role, name), str, "a text")
    for name in ("num_replicas", "max_retries"):
        problems += _wrong(name, getattr(role, name), int, "a whole number")
    if role.min_replicas is not None:
        problems += _wrong("min_replicas", role.min_replicas, int, "a whole number")
    problems += _wrong("retry_policy", role.retry_policy, RetryPolicy, "a RetryPolicy")
    problems += _wrong("resource", role.resource, Resource, "a Resource")
    if isinstance(role.resource, Resource):
        for name in ("cpu", "gpu", "memMB"):
            problems += _wrong(name, getattr(role.resource, name), (int, float), "a number")
        problems += _wrong("capabilities", role.resource.capabilities, dict, "a dict")
        problems += _wrong_items("devices", role.resource.devices, dict, int, "a whole number")
    problems += _wrong_items("args", role.args, list, str, "a text")
    problems += _wrong_items("env", role.env, dict, str, "a text")
    problems += _wrong_items("port_map", role.port_map, dict, int, "a whole number")
    problems += _wrong_items("mounts", role.mounts, list, Mount, "a mount (see parse_mounts)")
    return problems + _wrong("metadata", role.metadata, dict, "a dict")


def _wrong_items(name: str, items: Any, container: type, wanted: Any, what: str) -> list[str]:
    taken: Any = (list, tuple) if container is list else container
    if not isinstance(items, taken):
        return [f"{name} is {_a(items)}; it must be a {container.__name__}"]
    pairs: Any = items.items() if isinstance(items, dict) else enumerate(items)
    problems = []
    for key, item in pairs:
        if isinstance(items, dict):
            problems += _wrong(f"the key {key!r} of {name}", key, str, "a text")
        problems += _wrong(f"{name}[{key!r}]", item, wanted, what)
    return problems


def _wrong(name: str, value: object, wanted: Any, what: str) -> list[str]:
    fits = isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
    return [] if fits else [f"{name} is {_a(value)}; it must be {what}"]


def _a(value: object) -> str:
    """Name a value's type; the value itself may be a secret."""
    return "None" if value is None else f"of type {type(value).__name__}"


def _role_problems(role: Role) -> list[str]:
    checks: Mapping[str, bool] = {
        "it has no name": not role.name,
        "its name contains a '/'": "/" in role.name,
        "it has no entrypoint": not role.entrypoint or role.entrypoint == MISSING,
        f"num_replicas is {role.num_replicas}; it must be at least 1": role.num_replicas < 1,
        f"max_retries is {role.max_retries}; it must not be negative": role.max_retries < 0,
        f"min_replicas {role.min_replicas} is not between 1 and num_replicas {role.num_replicas}": (
            role.min_replicas is not None and not 1 <= role.min_replicas <= role.num_replicas
        ),
        "an environment variable's name is empty or contains '=' or NUL": any(
            not key or "=" in key or "\0" in key for key in role.env
        ),
        "an argument or environment value holds a NUL byte": any(
            "\0" in text for text in (role.entrypoint, *role.args, *role.env.values())
        ),
    }
    return [problem for problem, holds in checks.items() if holds] + _excesses(role)


def _excesses(role: Role) -> list[str]:
    """Find absurd numbers, which would take all memory or time, or that a backend cannot hold."""
    numbers: dict[str, tuple[Any, float]] = {
        "num_replicas": (role.num_replicas, MOST_REPLICAS),
        "max_retries": (role.max_retries, MOST_RETRIES),
        "cpu": (role.resource.cpu, MOST_CPUS),
        "gpu": (role.resource.gpu, MOST_GPUS),
        "memMB": (role.resource.memMB, MOST_MEMORY_MB),
        **{f"port {name!r}": (port, MOST_PORT) for name, port in role.port_map.items()},
    }
    return [
        f"{name} is {value}; it must be at most {most:,}"
        for name, (value, most) in numbers.items()
        if isinstance(value, (int, float)) and value > most
    ]

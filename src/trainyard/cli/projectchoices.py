"""What a project's own files choose for those who run something in it: what is sent, and where."""

from __future__ import annotations

import os

from trainyard.cli.console import note, without_secrets
from trainyard.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from trainyard.runner.config_files import Setting
    from trainyard.specs.options import runopts

#: Parameters of components that name data of this machine.
_DATA = frozenset({"channel"})
#: Those that open data of this machine to a container, which projects may share: they are announced.
_OPENED = frozenset({"mounts"})


def refuse_workspace_outside(setting: Setting) -> None:
    """Refuse a workspace outside of the project whose file names it.

    Raises:
        ConfigError: it is outside, or the code of an earlier job, which may be of another project.
    """
    from trainyard.specs.workspace import Workspace

    workspace = Workspace.from_str(setting.value)
    outside = [f"@{workspace.frozen}"] if workspace.frozen else _outside(workspace.projects, setting.project)
    if outside:
        raise ConfigError(
            f"{setting.origin}: the workspace {outside[0]} is not in the project {_top(setting.project)},"
            " and a project's file cannot send anything else",
            hint=f"To send it all the same, say so: --workspace {setting.value}",
        )


def refuse_strangers_component(setting: Setting) -> None:
    """Refuse a component in a file of somebody else that a project's file, not the command line, names.

    Raises:
        ConfigError: the file belongs to somebody else.
    """
    from trainyard.trust import why_not_trusted

    path = os.path.abspath(str(setting.value).rpartition(":")[0] or str(setting.value))
    reason = why_not_trusted(path, os.getcwd())
    if reason:
        raise ConfigError(
            f"{setting.origin}: the component {setting.value} is not used: {reason}",
            hint=f"To run it all the same, say so: trainyard run {setting.value}",
        )


def refuse_data_outside(
    options: Mapping[str, Setting], opts: runopts, defaults: Mapping[str, Setting]
) -> None:
    """Refuse data and code outside of the project that options and parameters of the project's files name.

    Raises:
        ConfigError: one of them names such a path.
    """
    named = [
        (key, setting, f"-cfg {key}=...") for key, setting in options.items() if _sends(opts, key) == "from"
    ]
    named += [(key, setting, f"--{key} ...") for key, setting in defaults.items() if key in _DATA]
    for key, setting, instead in named:
        outside = _outside(_paths(setting.value), setting.project) if setting.project else []
        if outside:
            raise ConfigError(
                f"{setting.origin}: {key} names {outside[0]}, which is not in the project"
                f" {_top(setting.project)}, and a project's file cannot send anything else",
                hint=f"To send it all the same, say so on the command line: {instead}",
            )


def announce(
    scheduler: tuple[str, Setting | None],
    options: Mapping[str, Setting],
    opts: runopts,
    defaults: Mapping[str, Setting],
) -> None:
    """Say on stderr where code and data go, as far as a project's file chose it.

    Args:
        scheduler: the scheduler's name, and where it was chosen if it runs jobs elsewhere.
        options: its options.
        opts: what they mean.
        defaults: the configured values of the component's parameters.
    """
    name, chosen = scheduler
    found = [(f"scheduler {name}", chosen)] if chosen is not None and chosen.project else []
    found += [
        (f"{key}={setting.value}", setting)
        for key, setting in options.items()
        if setting.project and setting.value and _is_destination(_sends(opts, key), setting.value)
    ]
    found += [
        (f"{key}={setting.value}", setting)
        for key, setting in defaults.items()
        if setting.project and (key in _OPENED or "://" in str(setting.value))
    ]
    if found:
        note(
            without_secrets(
                "The project's files choose where code and data go: "
                + ", ".join(f"{w} ({s.origin})" for w, s in found)
            )
        )


def _is_destination(sends: str, value: object) -> bool:
    """Tell whether an option says where something goes: it is declared so, or holds a URI of no source."""
    return sends == "to" or (not sends and "://" in str(value))


def _sends(opts: runopts, key: str) -> str:
    opt = opts.get(key)
    return "" if opt is None else opt.sends


def _paths(value: Any) -> list[str]:
    """Return the paths of this machine in a value: itself, its items, or what is after ``NAME=``."""
    if isinstance(value, dict):
        return [path for item in value.values() for path in _paths(item)]
    if isinstance(value, (list, tuple)):
        return [path for item in value for path in _paths(item)]
    if not isinstance(value, str) or "://" in value.removeprefix("file://"):
        return []
    parts = value.removeprefix("file://").split(",")
    return [after or before for before, _, after in (part.partition("=") for part in parts)]


def _outside(paths: Iterable[str], project: str) -> list[str]:
    """Return those of the paths that are neither in the project nor in the current directory."""
    inside = [_top(project), os.path.realpath(os.getcwd())]
    resolved = {path: os.path.realpath(os.path.expanduser(path)) for path in paths}
    return [
        path
        for path, real in resolved.items()
        if not any(real == place or real.startswith(place.rstrip("/") + "/") for place in inside)
    ]


def _top(project: str) -> str:
    """Return the top of the repository that a project's file is in, or its directory outside of any."""
    path = top = os.path.realpath(project)
    while os.path.dirname(path) != path:
        if os.path.lexists(os.path.join(path, ".git")):
            return path
        path = os.path.dirname(path)
    return top

"""Other arguments for a job that is repeated: ``shunter rerun JOB -- --lr 0.5``."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from shunter.errors import ConfigError, ShunterError, UsageError
from shunter.redaction import missing_secrets_error, restore
from shunter.runner.records import JobRecord
from shunter.specs.app import AppDef, Role
from shunter.specs.serialize import from_json, to_json
from shunter.specs.submission import Submission
from shunter.specs.sweep_points import points_of
from shunter.specs.training import CALL_KEY, METADATA_KEY, SWEEP_KEY, specification

if TYPE_CHECKING:
    from shunter.runner.api import Runner

_NUMBER = re.compile(r"-\.?\d.*")
_PAIR = re.compile(r"[+~]{0,2}([\w./@-]+)=.*", re.DOTALL)


def changed(old: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Return arguments with some replaced, and those appended that were not there.

    ``--lr 0.5`` replaces the value of ``--lr``, and ``lr=0.5`` that of ``lr``.

    Raises:
        UsageError: it cannot be known which words are meant.
    """
    new = list(old)
    for change in _grouped(changes):
        name = _name_of(change[0])
        places = [at for at, word in enumerate(new) if _name_of(word) == name]
        if len(places) > 1:
            raise UsageError(
                f"{name} is {len(places)} times among the arguments: {shlex.join(old)}",
                hint="Start a new job with all of its arguments.",
            )
        if not places:
            new += change
            continue
        if change == [name]:  # a flag, which is there
            continue
        at = places[0]
        end = at + 1
        while "=" not in new[at] and end < len(new) and not _begins(new[end]):
            end += 1
        if "=" in change[0]:  # it says that there is one value
            end = min(end, at + 2)
        elif end - at > len(change):
            raise UsageError(
                f"cannot tell which words of {shlex.join(new[at:end])} are to be replaced",
                hint=f"If it is one: -- {name}={change[1]}"
                if len(change) == 2
                else "Start a new job with all of its arguments.",
            )
        new[at:end] = change
    return new


def named_words(words: Sequence[str]) -> dict[str, str]:
    """Return the values of options and pairs by name: ``lr`` of ``--lr 0.5`` and of ``lr=0.5``.

    Words that follow neither are the value of ``arguments``.
    """
    found: dict[str, str] = {}
    name = rest = "arguments"
    for word in words:
        if _name_of(word) is not None:
            name, is_pair, value = word.lstrip("-+~").partition("=")
            found[name] = value
            name = rest if is_pair else name
        elif word == "--":
            name = rest
        else:
            found[name] = f"{found.get(name, '')} {word}".strip()
    return found


def _begins(word: str) -> bool:
    """Tell whether a word is an option or a pair, rather than the value of the option before it."""
    is_option = word.startswith("-") and word != "-" and not _NUMBER.fullmatch(word)
    return is_option or (not word.startswith("-") and _PAIR.fullmatch(word) is not None)


def _name_of(word: str) -> str | None:
    """Return the name that an option or a pair has; None for other words."""
    if not _begins(word) or word == "--":
        return None
    return word.partition("=")[0].lstrip("+~") if "=" in word else word


def _grouped(changes: Sequence[str]) -> list[list[str]]:
    groups: list[list[str]] = []
    for word in changes:
        if _begins(word):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
        else:
            raise UsageError(
                f"cannot tell which argument {word!r} is to replace",
                hint="Name options: -- --lr 0.5; or start a new job with all of its arguments.",
            )
    return groups


def recorded_words(old: Any, changes: Sequence[str]) -> Any:
    """Return a component's arguments, as the history holds them, with the changes."""
    if isinstance(old, Mapping):
        script_args = list(old.get("script_args") or ())
        return {**old, "script_args": changed(script_args, changes)} if script_args else dict(old)
    return changed(list(old), changes)


def change_arguments(runner: Runner, record: JobRecord, app: AppDef, changes: Sequence[str]) -> None:
    """Change the arguments of a recorded job's script, function or component, in place.

    Raises:
        UsageError: it cannot be known which words are meant.
        ConfigError: what made the job cannot make it again.
    """
    scripts = [role for role in app.roles if _has_arguments(role) and CALL_KEY not in role.metadata]
    if not scripts:
        _remake(runner, record, app, changes)
    for role in scripts:
        points = points_of(role.metadata)
        if not points:
            _set_arguments(role, changed(specification(role.metadata)["arguments"], changes))
            continue
        _check_not_swept(points, changes)
        role.metadata[SWEEP_KEY] = {"points": [_changed_point(point, changes) for point in points]}


def _has_arguments(role: Role) -> bool:
    return "arguments" in specification(role.metadata)


def _set_arguments(role: Role, new: list[str]) -> None:
    """Set the arguments of a script, which are the last words of its role's command too."""
    spec = specification(role.metadata)
    role.args[len(role.args) - len(spec["arguments"]) :] = new
    role.metadata[METADATA_KEY] = {**spec, "arguments": new}


def _check_not_swept(points: Sequence[Mapping[str, Any]], changes: Sequence[str]) -> None:
    names = {str(_name_of(group[0])).lstrip("-") for group in _grouped(changes)}
    swept = sorted(names & {name.lstrip("-") for name in points[0]["values"]})
    if swept and len(points) > 1:
        raise UsageError(
            f"{', '.join(swept)} is what the sweep varies, so all of its points would be the same",
            hint="Name one point: JOB/ROLE/K, as `shunter points` shows them.",
        )


def _changed_point(point: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    values = dict(point["values"])
    for first, *rest in _grouped(changes):
        name = str(_name_of(first)).lstrip("-")
        for key in values:
            if key.lstrip("-") == name:
                values[key] = first.partition("=")[2] if "=" in first else " ".join(rest)
    return {**point, "values": values, "args": changed(point["args"], changes)}


def _remake(runner: Runner, record: JobRecord, app: AppDef, changes: Sequence[str]) -> None:
    """Have the component make the job with the old and with the new arguments; take over what differs."""
    what = f"cannot change the arguments of {record.handle}"
    hint = "Start a new job with all of its arguments."
    missing: set[str] = set()
    words: Any = restore(record.component_args or [], os.environ, missing)
    restored = from_json(AppDef, restore(to_json(app), os.environ, missing))
    if missing:
        raise missing_secrets_error(f"the job {record.handle}", missing)
    app.roles = restored.roles
    if not record.component or isinstance(words, Mapping):
        raise ConfigError(f"{what}: no component with a command line made it", hint=hint)
    defaults = {key: setting.value for key, setting in runner.config.component(record.component).items()}
    try:
        before, after = (
            runner.app_of(Submission(component=record.component, arguments=arguments, defaults=defaults))
            for arguments in (words, changed(words, changes))
        )
    except UsageError:
        raise
    except ShunterError as error:
        raise ConfigError(f"{what}: {error.message}", hint=error.hint or hint) from error
    if len(before.roles) != len(app.roles) or len(after.roles) != len(app.roles):
        raise ConfigError(f"{what}: {record.component} makes another job now", hint=hint)
    for role, old, new in zip(app.roles, before.roles, after.roles, strict=True):
        _take_over(role, old, new, what, hint)


def _take_over(role: Role, old: Role, new: Role, what: str, hint: str) -> None:
    """Change a role as the new arguments of its component changed it.

    Raises:
        ConfigError: with the old arguments the component does not make the role that was recorded.
    """
    changed_meanwhile = ConfigError(
        f"{what}: its component or its settings have changed meanwhile", hint=hint
    )
    if all(map(_has_arguments, (role, old, new))):
        words = [list(specification(each.metadata)["arguments"]) for each in (role, old, new)]
        if words[0] != words[1]:
            raise changed_meanwhile
        _set_arguments(role, words[2])
        return
    recorded, unchanged, wanted = (to_json(each) for each in (role, old, new))
    for field in fields(Role):
        if wanted.get(field.name) == unchanged.get(field.name):
            continue
        if recorded.get(field.name) != unchanged.get(field.name):
            raise changed_meanwhile
        setattr(role, field.name, getattr(new, field.name))

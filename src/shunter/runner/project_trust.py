"""The trust in the configuration files of projects: which of their settings need it, and which files have it.

A file that came with a project may choose looks and defaults of a job. What names a program, credentials, an
address or a destination counts only once the user has trusted the file (`shunter trust`). That is recorded
by the file's path and content, so a file that changes needs trust again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import unquote

from shunter.errors import ShunterError, UnknownSchedulerException
from shunter.git import checkout_of
from shunter.paths import make_private_dir, state_dir, state_error
from shunter.runner.config_files import Setting, Source, convert, setting_name
from shunter.schedulers.registry import as_scheduler, get_scheduler_factory
from shunter.schedulers.supervisor.documents import read_json
from shunter.specs.conversion import ConversionError, snake_case
from shunter.specs.options import (
    ACCESS,
    ADDRESS,
    FILES_OUTSIDE,
    PLACE_OUTSIDE,
    PLUGIN,
    PROGRAM,
    UNDECLARED,
    runopts,
)
from shunter.specs.workspace import Workspace, is_url

#: A URL of files that are not on this machine; ``simplecache::file://`` and the like are.
_REMOTE = re.compile(
    r"(?<![\w.+:-])(?:s3a?|https?|gs|gcs|fsx|efs|hf|hdfs|az|adl|abfss?|wasbs?)://(?:(?!::)[^\s,;=\"'{}\[\]\\])*"
)
_MACRO = re.compile(r"\$\{(?:app_id|replica_id)\}")
#: What parameters of components name, by PARAMETER or COMPONENT.PARAMETER: so nothing has to be imported to
#: tell, and it holds for the components of plug-ins too.
SENSITIVE_PARAMETERS = {
    "c": PROGRAM,
    "channel": FILES_OUTSIDE,
    "checkpoints": PLACE_OUTSIDE,
    "config_dir": FILES_OUTSIDE,
    "dst": PLACE_OUTSIDE,
    "entrypoint": PROGRAM,
    "environment": FILES_OUTSIDE,
    "file": PLACE_OUTSIDE,
    "logdir": FILES_OUTSIDE,
    "management_api": ADDRESS,
    "model_path": FILES_OUTSIDE,
    "mounts": ACCESS,
    "mpi_options": PROGRAM,
    "output": PLACE_OUTSIDE,
    "script": FILES_OUTSIDE,
    "src": FILES_OUTSIDE,
    "tracker_base": PLACE_OUTSIDE,
    "utils.binary.args": PROGRAM,
    "utils.sh.args": PROGRAM,
}
_SEPARATORS = re.compile(r"[\s,;=:?\"'{}\[\]\\]+")


class SensitiveSetting(NamedTuple):
    """A setting of a project's file that needs trust.

    Attributes:
        name: its table and key, such as ``scheduler.kubernetes.kubeconfig``.
        setting: its value and place.
        kind: what it names, such as "a program to run".
    """

    name: str
    setting: Setting
    kind: str


# ---- what needs trust


def what_it_names(component: str, key: str) -> str:
    """Return what a parameter names, by its name as configurations write it; "" if nothing needs trust."""
    name = snake_case(key.lstrip("*")).replace("-", "_").lower()
    # "torchx.components.utils.sh" and "shunter.components.utils:sh" are the same component
    short = ".".join(component.replace(":", ".").split(".")[-2:])
    return SENSITIVE_PARAMETERS.get(f"{short}.{name}") or SENSITIVE_PARAMETERS.get(name, "")


class TrustRules:
    """Tells which settings of projects' files need trust.

    Attributes:
        options: the options of schedulers, by name; None for one that cannot be loaded. Filled on demand.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self._users_files = [source for source in sources if not source.project]
        self.options: dict[str, runopts | None] = {}

    def sensitive_settings(self, source: Source) -> list[SensitiveSetting]:
        """Return the settings of a file that need trust."""
        settings = []
        for table, name in source.tables:
            for key, setting in source.settings(table, name).items():
                if kind := self.what_it_names(table, name, key, setting):
                    label = setting_name(source.kind, table, name, key)
                    settings.append(SensitiveSetting(label, setting, kind))
        return settings

    def what_it_names(self, table: str, name: str, key: str, setting: Setting) -> str:
        """Return what a setting of ``[table.name]`` names that needs trust; "" if nothing."""
        users_keys = {key for source in self._users_files for key in source.settings(table, name)}
        if table == "scheduler" and ":" in name:  # a profile replaces what the user has set for its scheduler
            scheduler = name.partition(":")[0]
            users_keys |= {key for source in self._users_files for key in source.settings(table, scheduler)}
        if table == "scheduler":
            return self._kind_of_option(name, key, setting, users_keys)
        if table == "component":
            return checked(what_it_names(name, key), setting, replaces=key in users_keys)
        if table == "tracker":
            return PLUGIN
        return kind_of_run_key(key, setting) if table == "run" or (table, name) == ("cli", "run") else ""

    def _kind_of_option(self, scheduler: str, key: str, setting: Setting, users_keys: set[str]) -> str:
        opts = self._options_of(scheduler)
        if opts is None:
            return UNDECLARED
        opt = opts.get(key)
        if opt is None or not opt.needs_trust:
            return ""
        replaces = opts.name_of(key) in {opts.name_of(users_key) for users_key in users_keys}
        try:
            is_default = convert(opt, setting) == opt.default
        except ConversionError:
            return opt.needs_trust
        return "" if is_default and not replaces else checked(opt.needs_trust, setting, replaces=replaces)

    def _options_of(self, scheduler: str) -> runopts | None:
        scheduler = scheduler.partition(":")[0]  # what follows names a profile
        if scheduler not in self.options:
            try:
                created = get_scheduler_factory(scheduler)("trust")
                with closing(as_scheduler(created, scheduler, "trust")) as backend:
                    self.options[scheduler] = backend.run_opts()
            except UnknownSchedulerException:
                self.options[scheduler] = runopts()  # nothing reads the table
            except ShunterError:
                self.options[scheduler] = None
        return self.options[scheduler]


def checked(kind: str, setting: Setting, *, replaces: bool = False) -> str:
    """Return what a setting names that needs trust, ``kind`` or nothing (""), by its value.

    An empty value names nothing, unless it ``replaces`` a value of the user. Files and places need trust if
    they are outside of the project.
    """
    if not kind or (not replaces and setting.value in (None, "", "None", [], {})):
        return ""
    if kind not in (FILES_OUTSIDE, PLACE_OUTSIDE):
        return kind
    is_outside = kind == PLACE_OUTSIDE and any("://" in text for text in _texts(setting.value))
    return kind if is_outside or paths_outside(_paths(setting.value), setting.project) else ""


def kind_of_run_key(key: str, setting: Setting) -> str:
    """Return what a key of ``[run]`` names that needs trust; "" if nothing.

    A component may be named unasked if it is installed; a workspace, if it is a directory of the project.
    """
    value = setting.value if isinstance(setting.value, str) else ""
    if key == "component":
        is_code = ":" in value or os.sep in value or value.endswith((".py", ".sh"))
        return PROGRAM if is_code else ""
    if key == "lease":
        return PLACE_OUTSIDE
    if key != "workspace":
        return ""
    code = Workspace.from_str(value)
    is_elsewhere = (
        code.frozen
        or any(is_url(source) for source in code.projects)
        or paths_outside(code.projects, setting.project)
    )
    return FILES_OUTSIDE if is_elsewhere else ""


def paths_outside(paths: Iterable[str], project: str) -> list[str]:
    """Return the paths that are neither in the project nor in the current directory."""
    inside = [project_top(project), os.path.realpath(os.getcwd())]
    return [path for path in paths if not _is_in(path, inside)]


def _is_in(path: str, places: list[str]) -> bool:
    try:
        real = os.path.realpath(os.path.expanduser(path))
    except ValueError:  # with a NUL it is no path
        return False
    return any(real == place or real.startswith(place.rstrip("/") + "/") for place in places)


def project_top(project: str) -> str:
    """Return the top of the repository around a project's file, or the file's directory."""
    top = checkout_of(project)
    # a home directory that is a repository holds more than the projects in it
    is_home = top is not None and os.path.realpath(top) == os.path.realpath(os.path.expanduser("~"))
    return os.path.realpath(project) if top is None or is_home else top


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def _paths(value: Any) -> Iterator[str]:
    """Yield what may be a local path in a value, however an option or parameter is going to read it.

    A text may be a path, a URL, ``NAME=PATH,NAME:PATH``, or JSON; settings may follow a path after ``?``.
    """
    for text in _texts(value):
        for written in {text, unquote(text)}:
            local = _REMOTE.sub("", _MACRO.sub("x", written))
            if local == written:
                yield written
            yield from filter(None, _SEPARATORS.split(local))


# ---- which files are trusted


def is_trusted(source: Source) -> bool:
    """Tell whether the user has trusted a project's file, as it is now."""
    return trusted_files().get(source.real_path) == source.digest


def trusted_files() -> dict[str, str]:
    """Return the files that were trusted, by path, with the digest of what was trusted.

    Raises:
        StateStoreError: the record cannot be read.
    """
    return read_json(_record()) or {}


def trust(source: Source) -> None:
    """Record that the user trusts a project's file, as it was read.

    Raises:
        StateStoreError: it cannot be recorded.
    """
    _write({**trusted_files(), source.real_path: source.digest})


def revoke(real_path: str) -> bool:
    """Forget that a file is trusted; returns whether it was.

    Raises:
        StateStoreError: it cannot be recorded.
    """
    files = trusted_files()
    if files.pop(real_path, None) is None:
        return False
    _write(files)
    return True


def _write(files: dict[str, str]) -> None:
    path = _record()
    partial = f"{path}.{os.getpid()}"
    make_private_dir(os.path.dirname(path))
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(files, file, indent=1, sort_keys=True)
        os.replace(partial, path)
    except OSError as error:
        raise state_error("record the trust in", path, error) from error


def _record() -> str:
    return os.path.join(state_dir(), "trusted.json")

"""The trust in the configuration files of projects: which of their settings need it, and which files have it.

A file that came with a project may choose looks and defaults of a job. What names a program, credentials, an
address or a destination counts only once the user has trusted the file (`shunter trust`). That is recorded
by the file's path and content, so a file that changes needs trust again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from shunter.git import checkout_of
from shunter.paths import make_private_dir, state_dir, state_error
from shunter.runner.config_files import Setting, Source
from shunter.specs.options import FILES_OUTSIDE, PLACE_OUTSIDE, PROGRAM
from shunter.specs.workspace import Workspace, is_url

#: A URL of files that are not on this machine; ``simplecache::file://`` and the like are.
_REMOTE = re.compile(
    r"(?<![\w.+:-])(?:s3a?|https?|gs|gcs|fsx|efs|hf|hdfs|az|adl|abfss?|wasbs?)://(?:(?!::)[^\s,;=\"'{}\[\]\\])*"
)
_MACRO = re.compile(r"\$\{(?:app_id|replica_id)\}")
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
    return FILES_OUTSIDE if key == "workspace" and _is_elsewhere(value, setting.project) else ""


def _is_elsewhere(workspace: str, project: str) -> bool:
    code = Workspace.from_str(workspace)
    if code.frozen or any(is_url(source) for source in code.projects):
        return True
    return bool(paths_outside(code.projects, project))


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
    path = _record_of(source.real_path)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (FileNotFoundError, ValueError):
        return False
    except OSError as error:
        raise state_error("read which files are trusted in", path, error) from error
    return bool(found == {"path": source.real_path, "digest": source.digest})


def trust(source: Source) -> None:
    """Record that the user trusts a project's file, as it was read.

    Raises:
        StateStoreError: it cannot be recorded.
    """
    path = _record_of(source.real_path)
    partial = f"{path}.{os.getpid()}"
    make_private_dir(_records())
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({"path": source.real_path, "digest": source.digest}, file)
        os.replace(partial, path)
    except OSError as error:
        raise state_error("record the trust in", path, error) from error


def revoke(real_path: str) -> bool:
    """Forget that a file is trusted; returns whether it was.

    Raises:
        StateStoreError: the record cannot be removed.
    """
    path = _record_of(real_path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise state_error("remove the trust in", path, error) from error
    return True


def trusted_files() -> dict[str, str]:
    """Return the files that were trusted, by path, with the digest of what was trusted."""
    files: dict[str, str] = {}
    try:
        records = sorted(os.listdir(_records()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    for record in records:
        try:
            with open(os.path.join(_records(), record), encoding="utf-8") as file:
                found = json.load(file)
            files[found["path"]] = found["digest"]
        except (OSError, ValueError, TypeError, KeyError):
            continue  # half-written, or not ours
    return dict(sorted(files.items()))


def _records() -> str:
    return os.path.join(state_dir(), "trusted")


def _record_of(real_path: str) -> str:
    return os.path.join(_records(), hashlib.sha256(os.fsencode(real_path)).hexdigest())

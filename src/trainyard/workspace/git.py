"""What Git says of a directory: which files it tracks or does not ignore. Reads only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

# Only reading: neither a hook nor the owner of the checkout can do us harm, and no lock is taken.
_COMMAND = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "safe.directory=*"]
_LIST = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
#: Set while a hook runs; they would make Git look elsewhere.
_REPOSITORY_VARIABLES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_LITERAL_PATHSPECS",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)


class GitFailed(Exception):
    """Git is not there or does not answer; the message says why."""


def checkout_of(directory: str) -> str | None:
    """Return the root of the checkout that a directory is in; None outside of any."""
    path = os.path.realpath(directory)
    while True:
        if os.path.lexists(os.path.join(path, ".git")):
            return path
        parent = os.path.dirname(path)
        if parent == path:
            return None
        path = parent


def list_files(directory: str) -> list[str]:
    """Return what Git tracks or does not ignore below a directory, relative to it.

    A submodule is one entry without, and an untracked repository one with a slash at its end. Files that
    were deleted are among them.

    Raises:
        GitFailed: Git cannot say.
    """
    output = _run(directory, _LIST)
    return [os.fsdecode(path) for path in output.split(b"\0") if path]


def ignored(directory: str, paths: Sequence[str]) -> set[str]:
    """Return those of the paths, relative to a directory, that Git ignores.

    Raises:
        GitFailed: Git cannot say.
    """
    given = b"\0".join(os.fsencode(path) for path in paths) + b"\0"
    output = _run(directory, ["check-ignore", "-z", "--stdin"], given, accepted=(0, 1))
    return {os.fsdecode(path) for path in output.split(b"\0") if path}


def _run(directory: str, words: list[str], given: bytes = b"", accepted: Sequence[int] = (0,)) -> bytes:
    environ = {key: value for key, value in os.environ.items() if key not in _REPOSITORY_VARIABLES}
    try:
        done = subprocess.run(
            [*_COMMAND, *words],
            cwd=directory,
            env={**environ, "LC_ALL": "C"},
            input=given,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise GitFailed("git is not installed") from error
    except OSError as error:
        raise GitFailed(f"git cannot be run: {error.strerror}") from error
    if done.returncode not in accepted:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise GitFailed(lines[0] if lines else f"git ended with {done.returncode}")
    return done.stdout

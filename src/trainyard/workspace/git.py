"""What Git says of a directory: which files it tracks or does not ignore. Reads only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from trainyard.gitcommand import reading_environment

_LIST = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
#: A checkout in which Git takes longer is a trap: an ignore file that is a FIFO, say.
LONGEST_SECONDS = 120.0


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
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *words],
            cwd=directory,
            env=reading_environment(),
            input=given,
            capture_output=True,
            check=False,
            timeout=LONGEST_SECONDS,
        )
    except FileNotFoundError as error:
        raise GitFailed("git is not installed") from error
    except OSError as error:
        raise GitFailed(f"git cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise GitFailed(f"git did not answer within {LONGEST_SECONDS:.0f} s") from error
    if done.returncode not in accepted:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        if lines and "dubious ownership" in lines[0]:
            top = checkout_of(directory) or directory
            raise GitFailed(f"it belongs to another user: git config --global --add safe.directory {top}")
        raise GitFailed(lines[0] if lines else f"git ended with {done.returncode}")
    return done.stdout

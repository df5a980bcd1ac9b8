"""Calling Git: which commit a directory is at, which files it tracks or ignores. Reads only.

A checkout may be hostile: Git runs programs that the repository's own configuration names even when it only
reads (``core.fsmonitor``, hooks, attribute filters, and programs that fetch missing objects). All are
switched off through the environment, which overrides every file. Git's ``safe.directory`` decides whose
checkouts are read at all.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence

from shunter.paths import read_regular_file

SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.sshCommand": "false",
    "core.pager": "cat",
    "core.alternateRefsCommand": "",
    "diff.external": "",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",
}
#: Variables that make Git look at another repository. They are set while a hook runs.
REPOSITORY_VARIABLES = frozenset(
    [
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_CONFIG_PARAMETERS",
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
    ]
)
#: Variables that name programs.
_PROGRAM_VARIABLES = frozenset(
    ["GIT_ASKPASS", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_PROXY_COMMAND", "GIT_SSH", "GIT_SSH_COMMAND"]
)
_LARGEST_CONFIG = 1 << 20
_CONFIG_SECONDS = 1.0
#: A checkout in which Git takes longer to list files is a trap: an ignore file that is a FIFO, say.
LISTING_SECONDS = 120.0
#: If Git takes longer to tell the commit, none is recorded.
COMMIT_SECONDS = 2.0


class GitFailed(Exception):
    """Git is not installed or does not answer; the message says why."""


def checkout_of(directory: str) -> str | None:
    """Return the root of the checkout that a directory is in, or None. Does not call Git."""
    path = os.path.realpath(directory)
    while not os.path.lexists(os.path.join(path, ".git")):
        parent = os.path.dirname(path)
        if parent == path:
            return None
        path = parent
    return path


def reading_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which Git reads a repository and runs no other program.

    Args:
        extra: further settings of Git, such as those of `without_filters`.
    """
    environ = _clean_environment()
    count = environ.get("GIT_CONFIG_COUNT", "")
    start = int(count) if count.isdecimal() else 0
    settings = [*SETTINGS.items(), *(extra or {}).items()]
    for number, (key, value) in enumerate(settings, start):
        environ[f"GIT_CONFIG_KEY_{number}"] = key
        environ[f"GIT_CONFIG_VALUE_{number}"] = value
    return {
        **environ,
        "GIT_CONFIG_COUNT": str(start + len(settings)),
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def without_filters(directory: str, top: str) -> dict[str, str]:
    """Return the settings that disable the repository's own filters; the user's own stay.

    Args:
        directory: a directory in the checkout.
        top: the checkout's root.

    Raises:
        GitFailed: Git cannot list them, so that it is not known what it would run.
    """
    if _has_no_filters(os.path.join(top, ".git")):
        return {}
    words = ["config", "--list", "--includes", "--show-scope", "--name-only", "-z"]
    fields = _run(words, directory, reading_environment(), _CONFIG_SECONDS).split(b"\0")
    settings: dict[str, str] = {}
    for scope, name in zip(fields[::2], fields[1::2], strict=False):
        if name.lower().startswith(b"filter.") and scope in (b"local", b"worktree"):
            driver = os.fsdecode(name.rpartition(b".")[0])
            settings |= {f"{driver}.{key}": "" for key in ("clean", "smudge", "process")}
            settings[f"{driver}.required"] = "false"
    return settings


def safe_directories() -> list[str]:
    """Return what the user's and the system's configuration list as ``safe.directory``."""
    words = ["config", "-z", "--includes", "--get-all", "safe.directory"]
    try:
        # run outside of any repository: its own configuration must not count
        output = _run(words, "/", _clean_environment(), 5, accepted=(0, 1))
    except GitFailed:
        return []
    directories: list[str] = []
    for entry in output.split(b"\0")[:-1]:
        if entry:
            directories.append(os.path.expanduser(os.fsdecode(entry)))
        else:  # an empty entry cancels those before it
            directories.clear()
    return directories


def ignored_paths(directory: str) -> set[str]:
    """Return what Git ignores below a directory, relative to it. A directory stands for all that is in it.

    Raises:
        GitFailed: Git cannot list it.
    """
    words = ["--no-optional-locks", "ls-files", "-z", "--others", "--ignored", "--exclude-standard"]
    output = _run([*words, "--directory"], directory, reading_environment(), LISTING_SECONDS)
    paths = [os.fsdecode(path) for path in output.split(b"\0") if path]
    # a directory of which Git ignores only what is in it is followed by that
    partly = {path for path, following in itertools.pairwise(paths) if following.startswith(path)}
    return {path.rstrip("/") for path in paths if not (path.endswith("/") and path in partly)}


def is_ignored(directory: str) -> bool:
    """Tell whether Git ignores a directory as a whole.

    Raises:
        GitFailed: Git cannot tell.
    """
    words = ["--no-optional-locks", "check-ignore", "."]
    return bool(_run(words, directory, reading_environment(), LISTING_SECONDS, accepted=(0, 1)))


def commit_of(directory: str, seconds: float = COMMIT_SECONDS) -> tuple[str | None, bool | None]:
    """Return a directory's commit, and whether files were changed; None for what is not known."""
    top = checkout_of(directory)
    if top is None:
        return None, None
    words = ["--no-optional-locks", "status", "--porcelain=v2", "--branch", "--no-renames"]
    # within a submodule Git would obey the submodule's configuration
    words.append("--ignore-submodules=dirty")
    try:
        lines = _run(
            words, directory, reading_environment(without_filters(directory, top)), seconds
        ).splitlines()
    except GitFailed:
        return None, None
    heads = [
        line.split()[2].decode("ascii", "replace") for line in lines if line.startswith(b"# branch.oid ")
    ]
    commit = next((head for head in heads if head != "(initial)"), None)
    return commit, any(not line.startswith(b"#") for line in lines)


def _clean_environment() -> dict[str, str]:
    unwanted = REPOSITORY_VARIABLES | _PROGRAM_VARIABLES
    return {key: value for key, value in os.environ.items() if key not in unwanted}


def _has_no_filters(repository: str) -> bool:
    """Tell whether a repository's configuration has no filter, nor anything that may include one."""
    if os.path.lexists(os.path.join(repository, "commondir")):
        return False  # Git reads the configuration of the directory that this file names
    try:
        text = read_regular_file(os.path.join(repository, "config"), _LARGEST_CONFIG).lower()
    except OSError:
        return False  # in a worktree or submodule, .git is a file
    return not any(word in text for word in (b"filter", b"include", b"worktreeconfig"))


def _run(
    words: list[str],
    directory: str,
    environ: dict[str, str],
    seconds: float,
    accepted: Sequence[int] = (0,),
) -> bytes:
    """Run git in a directory and return its output."""
    try:
        process = subprocess.run(
            ["git", *words],
            cwd=directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=seconds,
        )
    except FileNotFoundError as error:
        raise GitFailed("git is not installed") from error
    except OSError as error:
        raise GitFailed(f"git cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise GitFailed(f"git did not answer within {seconds:.0f} s") from error
    if process.returncode not in accepted:
        lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
        if lines and "dubious ownership" in lines[0]:
            top = checkout_of(directory) or directory
            raise GitFailed(f"it belongs to another user: git config --global --add safe.directory {top}")
        raise GitFailed(lines[0] if lines else f"git ended with exit code {process.returncode}")
    return process.stdout

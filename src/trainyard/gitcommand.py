"""Calling Git in a checkout that may be hostile: its configuration names programs, and none of them runs.

Git runs programs that the repository's own configuration names even when it only reads: ``core.fsmonitor``,
hooks, filters of attributes, and what fetches objects that are missing. All are switched off by the
environment, which is stronger than any file. Whose checkouts are read at all is for Git's ``safe.directory``.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

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
UNWANTED = REPOSITORY_VARIABLES | _PROGRAM_VARIABLES
#: A configuration larger than this is not that of a repository of people's.
_LARGEST_CONFIG = 1 << 20
_SECONDS = 1.0


class GitConfigUnreadable(Exception):
    """The configuration of a repository cannot be read, so that it is not known what it would run."""


def reading_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which Git reads a repository and runs nothing.

    Args:
        extra: further settings of Git, such as those of `without_filters`.
    """
    environ = {key: value for key, value in os.environ.items() if key not in UNWANTED}
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
    """Return the settings that take the repository's own filters out of use; the user's own stay.

    Args:
        directory: a directory in the checkout.
        top: the checkout's top.

    Raises:
        GitConfigUnreadable: Git cannot list them.
    """
    if _is_plain(os.path.join(top, ".git", "config")):
        return {}
    import subprocess

    words = ["git", "config", "--list", "--includes", "--show-scope", "--name-only", "-z"]
    try:
        done = subprocess.run(
            words,
            cwd=directory,
            env=reading_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise GitConfigUnreadable(str(error)) from None
    fields = done.stdout.split(b"\0")
    settings: dict[str, str] = {}
    for scope, name in zip(fields[::2], fields[1::2], strict=False):
        if name.lower().startswith(b"filter.") and scope in (b"local", b"worktree"):
            driver = os.fsdecode(name.rpartition(b".")[0])
            settings |= {f"{driver}.{key}": "" for key in ("clean", "smudge", "process")}
            settings[f"{driver}.required"] = "false"
    return settings


def _is_plain(path: str) -> bool:
    """Tell whether a configuration of a repository holds no filter, nor anything that may bring one in."""
    from trainyard.ordinary import read_ordinary

    try:
        text = read_ordinary(path, _LARGEST_CONFIG).lower()
    except OSError:
        return False  # a worktree or submodule, whose .git is a file
    return not any(word in text for word in (b"filter", b"include", b"worktreeconfig"))


def safe_directories() -> list[str]:
    """Return what the user's and the system's configuration list as ``safe.directory``."""
    import subprocess

    environ = {key: value for key, value in os.environ.items() if key not in UNWANTED}
    words = ["git", "config", "-z", "--includes", "--get-all", "safe.directory"]
    try:
        # outside of any repository, whose own configuration has no say in this
        done = subprocess.run(
            words, cwd="/", env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return []
    listed: list[str] = []
    for entry in done.stdout.split(b"\0")[:-1]:
        if entry:
            listed.append(os.path.expanduser(os.fsdecode(entry)))
        else:  # an empty entry takes back those before it
            listed.clear()
    return listed

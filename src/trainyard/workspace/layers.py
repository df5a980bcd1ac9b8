"""What decides within a directory: a Git checkout, its ignore files when Git cannot be asked, or nothing."""

from __future__ import annotations

import os
import posixpath

from trainyard import git
from trainyard.workspace.ignore import GitRules, Verdict, read_lines


class GitLayer:
    """A checkout, or the part of one below a directory.

    Args:
        directory: where it is.
        prefix: the directory's path in the project with a slash at its end; "" for the project itself.

    Raises:
        git.GitFailed: Git cannot say.
    """

    def __init__(self, directory: str, prefix: str) -> None:
        self.directory = directory
        self.prefix = prefix
        listed = git.list_files(directory)
        self.files = {prefix + path.rstrip("/") for path in listed}
        self.directories: set[str] = set()
        for parent in {posixpath.dirname(path) for path in self.files}:
            while parent not in self.directories and parent:
                self.directories.add(parent)
                parent = posixpath.dirname(parent)

    def ignored(self, paths: list[str]) -> set[str]:
        """Return those of the paths, which are the project's, that Git ignores."""
        own = [path[len(self.prefix) :] for path in paths]
        return {self.prefix + path for path in git.ignored_paths(self.directory, own)}


class GitignoreLayer:
    """The ignore files of a checkout, read without Git. What Git tracks in spite of them is left out.

    Args:
        checkout: the checkout's root.
        directory: where the layer begins: the checkout, or a directory in it.
        prefix: the directory's path in the project, as with `GitLayer`.
    """

    def __init__(self, checkout: str, directory: str, prefix: str) -> None:
        self._prefix = prefix
        relative = os.path.relpath(os.path.realpath(directory), checkout)
        parts = [] if relative == "." else relative.split(os.sep)
        #: The layer's directory as the checkout knows it, with a slash at its end.
        self._above = "".join(part + "/" for part in parts)
        self._rules: list[tuple[str, GitRules]] = []
        self._add("", os.path.join(checkout, ".git", "info", "exclude"))
        for depth in range(len(parts)):
            base = "".join(part + "/" for part in parts[:depth])
            self._add(base, os.path.join(checkout, *parts[:depth], ".gitignore"))

    def enter(self, directory: str, path: str) -> None:
        """Read the ignore file of a directory, before anything in it is asked for."""
        self._add(self._own(path + "/") if path else self._above, os.path.join(directory, ".gitignore"))

    def ignores(self, path: str, *, directory: bool) -> bool:
        """Tell whether a path of the project is ignored."""
        own = self._own(path)
        for base, rules in reversed(self._rules):
            if own.startswith(base):
                inner = own[len(base) :]
                verdict = rules.directory(inner) if directory else rules.file(inner)
                if verdict is not None:
                    return verdict is Verdict.OUT
        return False

    def _own(self, path: str) -> str:
        return self._above + path[len(self._prefix) :]

    def _add(self, base: str, path: str) -> None:
        lines = read_lines(path)
        if lines:
            self._rules.append((base, GitRules(lines, path)))
            self._rules.sort(key=lambda pair: pair[0].count("/"))


def is_ignored_directory(directory: str) -> bool:
    """Tell whether Git ignores a directory as a whole, so that it is no part of the checkout around it."""
    try:
        return bool(git.ignored_paths(directory, ["."]))
    except git.GitFailed:
        return False

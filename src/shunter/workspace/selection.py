"""Which files of a directory are part of the workspace, by the same rules for all backends.

Inside a Git checkout: what Git tracks or does not ignore. Elsewhere: everything. Then minus what
``.dockerignore``, ``.torchxignore`` and ``.shunterignore`` at the root leave out, caches, version control
metadata, and likely secrets. A ``!pattern`` in ``.shunterignore`` brings back what it names.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from dataclasses import dataclass, field, replace

from shunter import git
from shunter.errors import WorkspaceError
from shunter.paths import state_dir
from shunter.system.ownership import why_not_used
from shunter.workspace.ignore import (
    DOCKERIGNORE,
    SHUNTERIGNORE,
    TORCHXIGNORE,
    DockerRules,
    GitRules,
    IgnoreDecision,
    TorchxRules,
    read_lines,
)
from shunter.workspace.secret_files import is_secret
from shunter.workspace.shipment import Report

GIT, DEFAULT = "git", "default"
_METADATA = frozenset({".git", ".hg", ".svn"})
_CACHES = frozenset({"__pycache__"})
_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass
class Selection:
    """The files, links and directories of a project: their paths, relative to it, and what lstat says."""

    root: str
    files: list[tuple[str, os.stat_result]] = field(default_factory=list)
    links: list[tuple[str, os.stat_result]] = field(default_factory=list)
    directories: dict[str, int] = field(default_factory=dict)
    report: Report = field(default_factory=Report)


def select(root: str) -> Selection:
    """Choose the files of a project.

    Raises:
        WorkspaceError: it is not a readable directory, or an ignore file does not parse.
    """
    return _Selector(root).run()


# ---- what Git says


class _Checkout:
    """What Git ignores in a checkout, or in the part of one below a directory of the project.

    Raises:
        git.GitFailed: Git does not say.
    """

    def __init__(self, directory: str, path: str) -> None:
        prefix = f"{path}/" if path else ""
        self._ignored = {prefix + name for name in git.ignored_paths(directory)}
        lines = "\n".join(read_lines(os.path.join(directory, ".gitmodules")) or ())
        self.submodules = {prefix + name for name in re.findall(r"^\s*path\s*=\s*(.+?)\s*$", lines, re.M)}

    def enter(self, directory: str, path: str) -> None:
        """Do nothing: Git has read the directory's ignore file."""

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Tell whether a path of the project is ignored."""
        return path in self._ignored


class _IgnoreFiles:
    """The ignore files of a checkout, for where Git cannot be asked: tracked files may be left out.

    Args:
        checkout: the checkout's root.
        directory: the checkout, or a directory in it.
        path: the directory's path in the project.
    """

    submodules: frozenset[str] = frozenset()

    def __init__(self, checkout: str, directory: str, path: str) -> None:
        above = os.path.relpath(os.path.realpath(directory), checkout)
        parts = [] if above == "." else above.split(os.sep)
        self._length = len(path)
        self._above = "/".join(parts)
        #: Rules, and the directory of the checkout that they are for, with a slash at its end; deepest last.
        self._rules: list[tuple[str, GitRules]] = []
        self._add("", os.path.join(checkout, ".git", "info", "exclude"))
        for depth in range(len(parts)):
            self._add("/".join(parts[:depth]), os.path.join(checkout, *parts[:depth], ".gitignore"))

    def enter(self, directory: str, path: str) -> None:
        """Read the ignore file of a directory, before anything in it is asked for."""
        self._add(self._in_checkout(path), os.path.join(directory, ".gitignore"))

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Tell whether a path of the project is ignored."""
        name = self._in_checkout(path)
        for base, rules in reversed(self._rules):
            if name.startswith(base):
                decision = rules.decide(name[len(base) :], is_directory=is_directory)
                if decision is not None:
                    return decision is IgnoreDecision.OUT
        return False

    def _in_checkout(self, path: str) -> str:
        return posixpath.join(self._above, path[self._length :].lstrip("/")).rstrip("/")

    def _add(self, base: str, path: str) -> None:
        lines = read_lines(path)
        if lines:
            self._rules.append((f"{base}/" if base else "", GitRules(lines, path)))
            self._rules.sort(key=lambda pair: pair[0].count("/"))


# ---- the walk


@dataclass(frozen=True)
class _Directory:
    """A directory to be read.

    Attributes:
        absolute: where it is.
        path: its path in the project.
        git: what Git ignores in it; None outside of a checkout.
        left_out_by: the rule that left it out; then only what is named is included.
        is_named: a pattern names it, so that Git and the other ignore files do not count in it.
        is_listed: whether it is part of the workspace even if nothing in it is.
    """

    absolute: str
    path: str
    git: _Checkout | _IgnoreFiles | None
    left_out_by: str = ""
    is_named: bool = False
    is_listed: bool = True


class _Selector:
    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)
        if not os.path.isdir(self._root):
            raise WorkspaceError(
                f"the workspace {root} is not a directory",
                hint="Name the directory whose files the job needs: --workspace DIR",
            )
        self._selection = Selection(self._root)
        self._report = self._selection.report
        self._own = self._shunterignore(os.path.join(self._root, SHUNTERIGNORE))
        self._anchored: dict[str, DockerRules] = {}
        for name, rules in ((DOCKERIGNORE, DockerRules), (TORCHXIGNORE, TorchxRules)):
            lines = read_lines(os.path.join(self._root, name))
            if lines:
                self._anchored[name] = rules(lines, os.path.join(root, name))
        self._state = os.path.realpath(state_dir())

    def _shunterignore(self, path: str) -> GitRules:
        lines = read_lines(path) or []
        reason = why_not_used(path, self._root) if lines else ""
        if reason and any(line.startswith("!") for line in lines):
            # it may exclude files, but not include any that would be left out otherwise
            lines = ["" if line.startswith("!") else line for line in lines]
            self._report.notes.append(f"the patterns with ! in {path} do not count: {reason}")
        rules = GitRules(lines, path)
        self._report.notes += rules.notes
        return rules

    def run(self) -> Selection:
        waiting = [_Directory(self._root, "", self._first_rules())]
        while waiting:
            waiting += self._read(waiting.pop())
        self._report.problems.sort()
        self._report.secrets.sort()
        self._report.secret_example = next(iter(self._report.secrets), "")
        return self._selection

    def _first_rules(self) -> _Checkout | _IgnoreFiles | None:
        checkout = git.checkout_of(self._root)
        if checkout is None:
            return None
        try:
            if os.path.realpath(self._root) != checkout and git.is_ignored(self._root):
                self._report.notes.append(f"{self._root} is ignored by Git, so all of its files are included")
                return None
        except git.GitFailed:
            pass  # the next question to Git says so
        return self._rules_of(self._root, "", checkout)

    def _rules_of(self, directory: str, path: str, checkout: str) -> _Checkout | _IgnoreFiles:
        try:
            return _Checkout(directory, path)
        except git.GitFailed as error:
            self._report.notes.append(
                f"git could not be asked about {path or directory} ({error}); .gitignore files were read"
                " instead"
            )
            return _IgnoreFiles(checkout, directory, path)

    def _read(self, directory: _Directory) -> list[_Directory]:
        """Choose from what is in a directory; returns the directories in it that have to be read."""
        try:
            with os.scandir(directory.absolute) as iterator:
                entries = list(iterator)
        except OSError as error:
            if directory.path == "":
                raise WorkspaceError(
                    f"the workspace {self._root} cannot be read: {error.strerror}",
                    hint="Correct its permissions, or name another directory: --workspace DIR",
                ) from error
            self._problem(directory.path, f"cannot be read: {error.strerror}")
            return []
        path = directory.path
        is_judged = not directory.is_named and not directory.left_out_by
        if path and is_judged and any(entry.name == ".git" for entry in entries):
            rules = self._rules_of(directory.absolute, path, directory.absolute)
            directory = replace(directory, git=rules)
        if directory.git is not None:
            directory.git.enter(directory.absolute, path)
            if not entries and path in directory.git.submodules:
                self._problem(path, "is a Git submodule that is not checked out")
        inner = []
        for entry in entries:
            entry_path = f"{path}/{entry.name}" if path else entry.name
            if entry.is_dir(follow_symlinks=False):
                inner += self._directory(directory, entry, entry_path)
            else:
                self._file(directory, entry, entry_path)
        return inner

    def _rule_against(
        self, parent: _Directory, entry: os.DirEntry[str], path: str, *, is_directory: bool
    ) -> str:
        """Return which rule other than ``.shunterignore`` leaves a path out; "" for none."""
        if parent.left_out_by:
            return parent.left_out_by
        if entry.name in _METADATA or (is_directory and (entry.name in _CACHES or self._is_state(entry))):
            return DEFAULT
        if parent.is_named:
            return ""
        for name, rules in self._anchored.items():
            if rules.excludes(path):
                return name
        if parent.git is not None and parent.git.ignores(path, is_directory=is_directory):
            return GIT
        return ""

    def _is_state(self, entry: os.DirEntry[str]) -> bool:
        return self._state.endswith(entry.name) and os.path.realpath(entry.path) == self._state

    def _note_left_out(self, parent: _Directory, name: str, path: str, rule: str) -> None:
        if not parent.left_out_by and name not in _METADATA:
            self._report.leave_out(rule, path)

    def _directory(self, parent: _Directory, entry: os.DirEntry[str], path: str) -> list[_Directory]:
        """Judge a directory; returns it if it has to be read."""
        decision = self._own.decide(path, is_directory=True)
        rule = SHUNTERIGNORE
        if decision is not IgnoreDecision.OUT:
            rule = self._rule_against(parent, entry, path, is_directory=True)
        directory = _Directory(entry.path, path, parent.git, is_named=parent.is_named)
        if not rule:
            self._list(path)
            return [directory]
        if decision is IgnoreDecision.NAMED:
            self._list(path)
            return [replace(directory, git=None, is_named=True)]
        self._note_left_out(parent, entry.name, path, rule)
        if rule in self._anchored and self._anchored[rule].has_exceptions:
            return [replace(directory, is_listed=False)]
        if self._own.may_name_below(path):
            return [_Directory(entry.path, path, None, left_out_by=rule, is_listed=False)]
        return []

    def _list(self, path: str) -> None:
        """Make a directory and those above it part of the workspace."""
        while path and path not in self._selection.directories:
            try:
                mode = os.lstat(os.path.join(self._root, path)).st_mode
            except OSError:  # it is just being removed
                mode = 0o755
            self._selection.directories[path] = stat.S_IMODE(mode)
            path = posixpath.dirname(path)

    def _file(self, parent: _Directory, entry: os.DirEntry[str], path: str) -> None:
        decision = self._own.decide(path, is_directory=False)
        is_named = decision is IgnoreDecision.NAMED
        rule = SHUNTERIGNORE
        if decision is not IgnoreDecision.OUT:
            rule = self._rule_against(parent, entry, path, is_directory=False)
        if rule and not is_named:
            self._note_left_out(parent, entry.name, path, rule)
            return
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError as error:
            self._problem(path, f"cannot be read: {error.strerror}")
            return
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFREG:
            if not is_named and is_secret(path, entry.path):
                self._report.secrets.append(path)
                return
            self._selection.files.append((path, info))
        elif kind == stat.S_IFLNK:
            self._selection.links.append((path, info))
        else:
            self._problem(path, f"is {_KINDS.get(kind, 'not a file')}, which cannot be shipped")
            return
        if not parent.is_listed:
            self._list(parent.path)

    def _problem(self, path: str, what: str) -> None:
        self._report.problems.append((path, what))

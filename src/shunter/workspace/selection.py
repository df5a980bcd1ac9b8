"""Which files of a directory are part of the workspace, by the same rules for all backends.

Inside a Git checkout: what Git tracks or does not ignore. Elsewhere: everything. Then minus what
``.dockerignore``, ``.torchxignore`` and ``.shunterignore`` at the root leave out, caches, version control
metadata, and likely secrets. A ``!pattern`` in ``.shunterignore`` brings back what it names.
"""

from __future__ import annotations

import os
import posixpath
import stat
from dataclasses import dataclass, field
from typing import NamedTuple

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
_BY_DEFAULT = _METADATA | {"__pycache__"}
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


class GitCheckout:
    """What Git lists in a checkout, or in the part of one below a directory.

    Args:
        directory: where it is.
        prefix: the directory's path in the project with a slash at its end; "" for the project itself.

    Raises:
        git.GitFailed: Git cannot list the files.
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


class GitignoreFiles:
    """The ignore files of a checkout, for where Git cannot be asked: tracked files may be left out.

    Args:
        checkout: the checkout's root.
        directory: the checkout, or a directory in it.
        prefix: the directory's path in the project, as with `GitCheckout`.
    """

    def __init__(self, checkout: str, directory: str, prefix: str) -> None:
        self._prefix = prefix
        relative = os.path.relpath(os.path.realpath(directory), checkout)
        parts = [] if relative == "." else relative.split(os.sep)
        #: The directory as the checkout knows it, with a slash at its end.
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
                decision = rules.directory(inner) if directory else rules.file(inner)
                if decision is not None:
                    return decision is IgnoreDecision.OUT
        return False

    def _own(self, path: str) -> str:
        return self._above + path[len(self._prefix) :]

    def _add(self, base: str, path: str) -> None:
        lines = read_lines(path)
        if lines:
            self._rules.append((base, GitRules(lines, path)))
            self._rules.sort(key=lambda pair: pair[0].count("/"))


class _Task(NamedTuple):
    """A directory to be read."""

    absolute: str
    path: str
    git: GitCheckout | GitignoreFiles | None
    #: Which rule left the directory out; then only what is named is included.
    out: str = ""
    #: It was named, so that Git and the other ignore files do not count in it.
    free: bool = False
    #: Whether it is part of the workspace even if nothing in it is.
    listed: bool = True


class _Candidate(NamedTuple):
    """Something that Git did not list: it ignores it, or it cannot track it."""

    task: _Task
    entry: os.DirEntry[str]
    path: str


def select(root: str) -> Selection:
    """Choose the files of a project.

    Raises:
        WorkspaceError: it is not a readable directory, or an ignore file does not parse.
    """
    return _Selector(root).run()


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
        self._own = self._git_rules(SHUNTERIGNORE)
        self._anchored: dict[str, DockerRules] = {}
        for name, rules in ((DOCKERIGNORE, DockerRules), (TORCHXIGNORE, TorchxRules)):
            lines = read_lines(os.path.join(self._root, name))
            if lines:
                self._anchored[name] = rules(lines, os.path.join(root, name))
        self._tasks: list[_Task] = []
        self._candidates: list[_Candidate] = []
        self._state = os.path.realpath(state_dir())

    def _git_rules(self, name: str) -> GitRules | None:
        path = os.path.join(self._root, name)
        lines = read_lines(path)
        if not lines:
            return None
        reason = why_not_used(path, self._root)
        if reason and any(line.startswith("!") for line in lines):
            # it may exclude files, but not include any that would be left out otherwise
            lines = ["" if line.startswith("!") else line for line in lines]
            self._report.notes.append(f"the patterns with ! in {path} do not count: {reason}")
        rules = GitRules(lines, path)
        self._report.notes += rules.notes
        return rules

    def run(self) -> Selection:
        self._tasks.append(_Task(self._root, "", self._first_rules()))
        while self._tasks or self._candidates:
            while self._tasks:
                self._read(self._tasks.pop())
            self._settle()
        self._report.problems.sort()
        self._report.secrets.sort()
        self._report.secret_example = next(iter(self._report.secrets), "")
        return self._selection

    # ---- what Git says

    def _first_rules(self) -> GitCheckout | GitignoreFiles | None:
        checkout = git.checkout_of(self._root)
        if checkout is None:
            return None
        rules = self._rules_of(self._root, "", checkout)
        below = os.path.realpath(self._root) != checkout
        if below and isinstance(rules, GitCheckout) and not rules.files and _is_ignored_directory(self._root):
            self._report.notes.append(f"{self._root} is ignored by Git, so all of its files are included")
            return None
        return rules

    def _rules_of(self, directory: str, path: str, checkout: str) -> GitCheckout | GitignoreFiles:
        prefix = f"{path}/" if path else ""
        try:
            return GitCheckout(directory, prefix)
        except git.GitFailed as error:
            where = path or self._root
            self._report.notes.append(
                f"git could not be asked about {where} ({error}); .gitignore files were read instead"
            )
            return GitignoreFiles(checkout, directory, prefix)

    # ---- directories

    def _read(self, task: _Task) -> None:
        try:
            with os.scandir(task.absolute) as found:
                entries = list(found)
        except OSError as error:
            if task.path == "":
                raise WorkspaceError(
                    f"the workspace {self._root} cannot be read: {error.strerror}",
                    hint="Correct its permissions, or name another directory: --workspace DIR",
                ) from error
            self._problem(task.path, f"cannot be read: {error.strerror}")
            return
        rules = task.git
        if rules is None and task.path and not task.free and not task.out and _has_git(entries):
            task = task._replace(git=self._rules_of(task.absolute, task.path, task.absolute))
        elif isinstance(rules, GitignoreFiles):
            rules.enter(task.absolute, task.path)
        prefix = f"{task.path}/" if task.path else ""
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                self._directory(task, entry, prefix + entry.name)
            else:
                self._file(task, entry, prefix + entry.name)

    def _directory(self, task: _Task, entry: os.DirEntry[str], path: str) -> None:
        decision = self._own.directory(path) if self._own else None
        if decision is IgnoreDecision.OUT:
            self._shut(task, entry, path, SHUNTERIGNORE)
            return
        reason = task.out or self._directory_reason(task, entry, path)
        if decision is IgnoreDecision.NAMED and reason != "":
            self._open(path, _Task(entry.path, path, None, free=True))
        elif reason is None:
            self._candidates.append(_Candidate(task, entry, path))
        elif reason:
            self._shut(task, entry, path, reason)
        else:
            self._open(path, self._subtask(task, entry, path))

    def _directory_reason(self, task: _Task, entry: os.DirEntry[str], path: str) -> str | None:
        """Return which rule leaves a directory out: "" for none, None when Git must be asked."""
        if entry.name in _BY_DEFAULT or self._is_state(entry):
            return DEFAULT
        rules = task.git
        if not task.free and isinstance(rules, GitCheckout):
            is_known = path in rules.directories or path in rules.files
            return self._pattern_reason(task, path, directory=True) or ("" if is_known else None)
        return self._pattern_reason(task, path, directory=True)

    def _pattern_reason(self, task: _Task, path: str, *, directory: bool) -> str:
        """Return which ignore file leaves a path out: "" for none. Does not ask Git itself."""
        if task.free:
            return ""
        for name, rules in self._anchored.items():
            if rules.excludes(path):
                return name
        if isinstance(task.git, GitignoreFiles) and task.git.ignores(path, directory=directory):
            return GIT
        return ""

    def _is_state(self, entry: os.DirEntry[str]) -> bool:
        return self._state.endswith(entry.name) and os.path.realpath(entry.path) == self._state

    def _subtask(self, task: _Task, entry: os.DirEntry[str], path: str) -> _Task:
        rules = task.git
        if isinstance(rules, GitCheckout) and path in rules.files:
            if os.path.lexists(os.path.join(entry.path, ".git")):
                rules = self._rules_of(entry.path, path, entry.path)
            else:
                self._problem(path, "is a Git submodule that is not checked out")
                rules = None
        return _Task(entry.path, path, rules, free=task.free)

    def _open(self, path: str, task: _Task) -> None:
        """Include a directory, and go into it."""
        self._list(path)
        self._tasks.append(task)

    def _shut(self, task: _Task, entry: os.DirEntry[str], path: str, reason: str) -> None:
        """Leave a directory out, and go into it only for what a pattern brings back."""
        if not task.out and entry.name not in _METADATA:
            self._report.leave_out(reason, path)
        if reason in self._anchored and self._anchored[reason].has_exceptions:
            rules = self._subtask(task, entry, path).git
            self._tasks.append(_Task(entry.path, path, rules, listed=False))
        elif self._own is not None and self._own.may_name_below(path):
            self._tasks.append(_Task(entry.path, path, None, out=reason, listed=False))

    def _list(self, path: str) -> None:
        """Make a directory and those above it part of the workspace."""
        while path and path not in self._selection.directories:
            try:
                mode = os.lstat(os.path.join(self._root, path)).st_mode
            except OSError:  # it is just being removed
                mode = 0o755
            self._selection.directories[path] = stat.S_IMODE(mode)
            path = posixpath.dirname(path)

    # ---- files

    def _file(self, task: _Task, entry: os.DirEntry[str], path: str) -> None:
        decision = self._own.file(path) if self._own else None
        if decision is IgnoreDecision.NAMED:
            self._include(task, entry, path, named=True)
        elif decision is IgnoreDecision.OUT:
            if not task.out:
                self._report.leave_out(SHUNTERIGNORE, path)
        elif not task.out:
            reason = self._file_reason(task, entry, path)
            if reason and entry.name not in _METADATA:
                self._report.leave_out(reason, path)
            elif reason == "":
                self._include(task, entry, path, named=False)

    def _file_reason(self, task: _Task, entry: os.DirEntry[str], path: str) -> str | None:
        if entry.name in _METADATA:  # a file in worktrees and submodules
            return DEFAULT
        reason = self._pattern_reason(task, path, directory=False)
        rules = task.git
        if not reason and not task.free and isinstance(rules, GitCheckout) and path not in rules.files:
            if entry.is_file(follow_symlinks=False) or entry.is_symlink():
                return GIT
            self._candidates.append(_Candidate(task, entry, path))
            return None
        return reason

    def _include(self, task: _Task, entry: os.DirEntry[str], path: str, *, named: bool) -> None:
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError as error:
            self._problem(path, f"cannot be read: {error.strerror}")
            return
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFREG:
            if not named and is_secret(path, entry.path):
                self._report.secrets.append(path)
                return
            self._selection.files.append((path, info))
        elif kind == stat.S_IFLNK:
            self._selection.links.append((path, info))
        else:
            self._problem(path, f"is {_KINDS.get(kind, 'not a file')}, which cannot be shipped")
            return
        if not task.listed:
            self._list(task.path)

    def _problem(self, path: str, what: str) -> None:
        self._report.problems.append((path, what))

    # ---- what Git did not list

    def _settle(self) -> None:
        """Ask Git about what it did not list: it is ignored, or empty, or cannot be tracked."""
        by_rules: dict[int, list[_Candidate]] = {}
        for candidate in self._candidates:
            by_rules.setdefault(id(candidate.task.git), []).append(candidate)
        self._candidates = []
        for candidates in by_rules.values():
            ignored = self._ignored(candidates)
            for candidate in candidates:
                self._settle_one(candidate, is_ignored=candidate.path in ignored)

    def _ignored(self, candidates: list[_Candidate]) -> set[str]:
        rules = candidates[0].task.git
        paths = [candidate.path for candidate in candidates]
        assert isinstance(rules, GitCheckout)
        try:
            return rules.ignored(paths)
        except git.GitFailed as error:
            self._report.notes.append(f"git could not be asked about empty directories ({error})")
            return set(paths)

    def _settle_one(self, candidate: _Candidate, *, is_ignored: bool) -> None:
        task, entry, path = candidate
        if not entry.is_dir(follow_symlinks=False):
            if is_ignored:
                self._report.leave_out(GIT, path)
            else:
                self._include(task, entry, path, named=False)
        elif is_ignored:
            self._shut(task, entry, path, GIT)
        else:
            self._open(path, _Task(entry.path, path, task.git))


def _has_git(entries: list[os.DirEntry[str]]) -> bool:
    return any(entry.name == ".git" for entry in entries)


def _is_ignored_directory(directory: str) -> bool:
    """Tell whether Git ignores a directory as a whole, so that it is not part of the checkout around it."""
    try:
        return bool(git.ignored_paths(directory, ["."]))
    except git.GitFailed:
        return False

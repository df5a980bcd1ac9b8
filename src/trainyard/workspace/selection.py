"""Which files of a directory are part of the workspace. One law for all backends.

Inside a Git checkout: what Git tracks or does not ignore. Elsewhere: everything. Then minus what
``.dockerignore``, ``.torchxignore`` and ``.trainyardignore`` at the root leave out, caches, version control
metadata, and likely secrets. A ``!pattern`` in ``.trainyardignore`` brings back whatever it names.
"""

from __future__ import annotations

import os
import posixpath
import stat
from dataclasses import dataclass, field
from typing import NamedTuple

from trainyard import git
from trainyard.errors import WorkspaceError
from trainyard.paths import state_dir
from trainyard.system.trust import why_not_trusted
from trainyard.workspace.ignore import (
    DOCKERIGNORE,
    TORCHXIGNORE,
    TRAINYARDIGNORE,
    DockerRules,
    GitRules,
    Verdict,
    ignore_file,
)
from trainyard.workspace.layers import GitignoreLayer, GitLayer, is_ignored_directory
from trainyard.workspace.secret_files import is_secret

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
class Report:
    """What is to be said of a workspace besides its files.

    Attributes:
        problems: paths and what is wrong with them. None of it stops anything.
        secrets: files that were left out since they most likely hold a secret.
        left_out: by rule (``git``, an ignore file's name, ``default``) what it left out. A directory stands
            for all that is in it.
        notes: how the files were chosen, where that is not plain.
    """

    problems: list[tuple[str, str]] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: A secret by its path in its project, whose ignore file can name it.
    secret_example: str = ""

    @property
    def ignored_count(self) -> int:
        """How many files and directories rules left out."""
        return sum(len(paths) for paths in self.left_out.values())

    def warnings(self) -> list[str]:
        """Return in words what whoever submits a job should know."""
        lines = list(self.notes)
        if self.secrets:
            more = f" and {len(self.secrets) - 5} more" if len(self.secrets) > 5 else ""
            lines.append(
                f"left out, since it looks like a secret: {', '.join(self.secrets[:5])}{more}"
                f" (name it in {TRAINYARDIGNORE} to take it along: !/{self.secret_example})"
            )
        # links are as they were, and a job may find at home what they point to
        lost = [problem for problem in self.problems if not problem[1].startswith("points to ")]
        lines += [f"left out: {path} {what}" for path, what in lost[:5]]
        if len(lost) > 5:
            lines.append(f"{len(lost) - 5} more could not be taken along (`trainyard workspace show`)")
        return lines

    def leave(self, reason: str, path: str) -> None:
        """Note that a rule left a path out."""
        self.left_out.setdefault(reason, []).append(path)

    def add(self, other: Report, prefix: str) -> None:
        """Take over another project's report, its paths below a prefix."""
        self.problems += [(prefix + path, what) for path, what in other.problems]
        self.secrets += [prefix + path for path in other.secrets]
        self.secret_example = self.secret_example or other.secret_example
        for reason, paths in other.left_out.items():
            self.left_out.setdefault(reason, []).extend(prefix + path for path in paths)
        self.notes += [note for note in other.notes if note not in self.notes]


@dataclass
class Selection:
    """The files, links and directories of a project: their paths, relative to it, and what lstat says."""

    root: str
    files: list[tuple[str, os.stat_result]] = field(default_factory=list)
    links: list[tuple[str, os.stat_result]] = field(default_factory=list)
    directories: dict[str, int] = field(default_factory=dict)
    report: Report = field(default_factory=Report)


class _Task(NamedTuple):
    """A directory to be read."""

    absolute: str
    path: str
    layer: GitLayer | GitignoreLayer | None
    #: Which rule left the directory out; only what is named is taken then.
    out: str = ""
    #: It was named, so that Git and the other ignore files have no say in it.
    free: bool = False
    #: Whether it is part of the workspace even if nothing in it is.
    listed: bool = True


class _Candidate(NamedTuple):
    """Something that Git did not list, which it may ignore or not care for."""

    task: _Task
    entry: os.DirEntry[str]
    path: str


def select(root: str) -> Selection:
    """Choose the files of a project.

    Raises:
        WorkspaceError: it is no directory that can be read, or an ignore file does not parse.
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
        self._own = self._git_rules(TRAINYARDIGNORE)
        self._torchx = self._git_rules(TORCHXIGNORE)
        lines = ignore_file(self._root, DOCKERIGNORE)
        self._docker = DockerRules(lines, os.path.join(root, DOCKERIGNORE)) if lines else None
        self._tasks: list[_Task] = []
        self._candidates: list[_Candidate] = []
        self._state = os.path.realpath(state_dir())

    def _git_rules(self, name: str) -> GitRules | None:
        lines = ignore_file(self._root, name)
        if not lines:
            return None
        path = os.path.join(self._root, name)
        reason = why_not_trusted(path, self._root)
        if reason and any(line.startswith("!") for line in lines):
            # it may keep files back, but brings none along that would stay here otherwise
            lines = ["" if line.startswith("!") else line for line in lines]
            self._report.notes.append(f"the patterns with ! of {path} do not count: {reason}")
        rules = GitRules(lines, path)
        self._report.notes += rules.notes
        return rules

    def run(self) -> Selection:
        self._tasks.append(_Task(self._root, "", self._first_layer()))
        while self._tasks or self._candidates:
            while self._tasks:
                self._read(self._tasks.pop())
            self._settle()
        self._report.problems.sort()
        self._report.secrets.sort()
        self._report.secret_example = next(iter(self._report.secrets), "")
        return self._selection

    # ---- layers

    def _first_layer(self) -> GitLayer | GitignoreLayer | None:
        checkout = git.checkout_of(self._root)
        if checkout is None:
            return None
        layer = self._layer(self._root, "", checkout)
        below = os.path.realpath(self._root) != checkout
        if below and isinstance(layer, GitLayer) and not layer.files and is_ignored_directory(self._root):
            self._report.notes.append(f"{self._root} is ignored by Git, so all of its files are taken")
            return None
        return layer

    def _layer(self, directory: str, path: str, checkout: str) -> GitLayer | GitignoreLayer:
        prefix = f"{path}/" if path else ""
        try:
            return GitLayer(directory, prefix)
        except git.GitFailed as error:
            where = path or self._root
            self._report.notes.append(
                f"git could not be asked about {where} ({error}); .gitignore files were read instead"
            )
            return GitignoreLayer(checkout, directory, prefix)

    # ---- directories

    def _read(self, task: _Task) -> None:
        try:
            with os.scandir(task.absolute) as found:
                entries = list(found)
        except OSError as error:
            if task.path == "":
                raise WorkspaceError(
                    f"the workspace {self._root} cannot be read: {error.strerror}",
                    hint="Mend its permissions, or name another directory: --workspace DIR",
                ) from error
            self._problem(task.path, f"cannot be read: {error.strerror}")
            return
        layer = task.layer
        if layer is None and task.path and not task.free and not task.out and _has_git(entries):
            task = task._replace(layer=self._layer(task.absolute, task.path, task.absolute))
        elif isinstance(layer, GitignoreLayer):
            layer.enter(task.absolute, task.path)
        prefix = f"{task.path}/" if task.path else ""
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                self._directory(task, entry, prefix + entry.name)
            else:
                self._file(task, entry, prefix + entry.name)

    def _directory(self, task: _Task, entry: os.DirEntry[str], path: str) -> None:
        verdict = self._own.directory(path) if self._own else None
        if verdict is Verdict.OUT:
            self._shut(task, entry, path, TRAINYARDIGNORE)
            return
        reason = task.out or self._directory_reason(task, entry, path)
        if verdict is Verdict.NAMED and reason != "":
            self._open(entry, path, _Task(entry.path, path, None, free=True))
        elif reason is None:
            self._candidates.append(_Candidate(task, entry, path))
        elif reason:
            self._shut(task, entry, path, reason)
        else:
            self._open(entry, path, self._subtask(task, entry, path))

    def _directory_reason(self, task: _Task, entry: os.DirEntry[str], path: str) -> str | None:
        """Return which rule leaves a directory out: "" for none, None when Git must be asked."""
        if entry.name in _BY_DEFAULT or self._is_state(entry):
            return DEFAULT
        if task.free:
            return ""
        if self._docker is not None and self._docker.excludes(path):
            return DOCKERIGNORE
        if self._torchx is not None and self._torchx.directory(path) is Verdict.OUT:
            return TORCHXIGNORE
        layer = task.layer
        if isinstance(layer, GitLayer) and path not in layer.directories and path not in layer.files:
            return None
        if isinstance(layer, GitignoreLayer) and layer.ignores(path, directory=True):
            return GIT
        return ""

    def _is_state(self, entry: os.DirEntry[str]) -> bool:
        return self._state.endswith(entry.name) and os.path.realpath(entry.path) == self._state

    def _subtask(self, task: _Task, entry: os.DirEntry[str], path: str) -> _Task:
        layer = task.layer
        if isinstance(layer, GitLayer) and path in layer.files:
            if os.path.lexists(os.path.join(entry.path, ".git")):
                layer = self._layer(entry.path, path, entry.path)
            else:
                self._problem(path, "is a Git submodule that is not checked out")
                layer = None
        return _Task(entry.path, path, layer, free=task.free)

    def _open(self, entry: os.DirEntry[str], path: str, task: _Task) -> None:
        """Take a directory, and go into it."""
        self._list(path)
        self._tasks.append(task)

    def _shut(self, task: _Task, entry: os.DirEntry[str], path: str, reason: str) -> None:
        """Leave a directory out, and go into it only for what a pattern brings back."""
        if not task.out and entry.name not in _METADATA:
            self._report.leave(reason, path)
        if reason == DOCKERIGNORE and self._docker is not None and self._docker.has_exceptions:
            layer = self._subtask(task, entry, path).layer
            self._tasks.append(_Task(entry.path, path, layer, listed=False))
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
        verdict = self._own.file(path) if self._own else None
        if verdict is Verdict.NAMED:
            self._take(task, entry, path, named=True)
        elif verdict is Verdict.OUT:
            if not task.out:
                self._report.leave(TRAINYARDIGNORE, path)
        elif not task.out:
            reason = self._file_reason(task, entry, path)
            if reason and entry.name not in _METADATA:
                self._report.leave(reason, path)
            elif reason == "":
                self._take(task, entry, path, named=False)

    def _file_reason(self, task: _Task, entry: os.DirEntry[str], path: str) -> str | None:
        if entry.name in _METADATA:  # a file in worktrees and submodules
            return DEFAULT
        if task.free:
            return ""
        if self._docker is not None and self._docker.excludes(path):
            return DOCKERIGNORE
        if self._torchx is not None and self._torchx.file(path) is Verdict.OUT:
            return TORCHXIGNORE
        layer = task.layer
        if isinstance(layer, GitLayer) and path not in layer.files:
            if entry.is_file(follow_symlinks=False) or entry.is_symlink():
                return GIT
            self._candidates.append(_Candidate(task, entry, path))
            return None
        if isinstance(layer, GitignoreLayer) and layer.ignores(path, directory=False):
            return GIT
        return ""

    def _take(self, task: _Task, entry: os.DirEntry[str], path: str, *, named: bool) -> None:
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
            self._problem(path, f"is {_KINDS.get(kind, 'no file')}, which cannot travel")
            return
        if not task.listed:
            self._list(task.path)

    def _problem(self, path: str, what: str) -> None:
        self._report.problems.append((path, what))

    # ---- what Git did not list

    def _settle(self) -> None:
        """Ask Git about what it did not list: ignored, or empty, or nothing that it can track."""
        by_layer: dict[int, list[_Candidate]] = {}
        for candidate in self._candidates:
            by_layer.setdefault(id(candidate.task.layer), []).append(candidate)
        self._candidates = []
        for candidates in by_layer.values():
            ignored = self._ignored(candidates)
            for candidate in candidates:
                self._settle_one(candidate, is_ignored=candidate.path in ignored)

    def _ignored(self, candidates: list[_Candidate]) -> set[str]:
        layer = candidates[0].task.layer
        paths = [candidate.path for candidate in candidates]
        assert isinstance(layer, GitLayer)
        try:
            return layer.ignored(paths)
        except git.GitFailed as error:
            self._report.notes.append(f"git could not be asked about empty directories ({error})")
            return set(paths)

    def _settle_one(self, candidate: _Candidate, *, is_ignored: bool) -> None:
        task, entry, path = candidate
        if not entry.is_dir(follow_symlinks=False):
            if is_ignored:
                self._report.leave(GIT, path)
            else:
                self._take(task, entry, path, named=False)
        elif is_ignored:
            self._shut(task, entry, path, GIT)
        else:
            self._open(entry, path, _Task(entry.path, path, task.layer))


def _has_git(entries: list[os.DirEntry[str]]) -> bool:
    return any(entry.name == ".git" for entry in entries)

"""The content of a workspace at one moment: its manifest, and where each file can be read.

What is shipped is what was hashed: `Snapshot.read` refuses a file that has been changed since.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from shunter.errors import WorkspaceChangedError, WorkspaceError
from shunter.specs.workspace import Workspace
from shunter.workspace.code_store import Store
from shunter.workspace.file_digests import (
    ChangingFileError,
    Index,
    NotAFileError,
    hash_file,
)
from shunter.workspace.manifest import Entry, Manifest
from shunter.workspace.selection import Selection, select
from shunter.workspace.shipment import Report

CHUNK = 1 << 20
#: Beyond these an implicit workspace is most likely a mistake.
MOST_BYTES = 1 << 30
MOST_FILES = 100_000


@dataclass(frozen=True)
class Snapshot:
    """A workspace, fixed.

    Attributes:
        manifest: its entries and fingerprint.
        report: what the user should know of it.
        sources: the absolute paths of files by their paths in the workspace.
    """

    manifest: Manifest
    report: Report
    sources: Mapping[str, str]

    def source(self, entry: Entry) -> str:
        """Return the absolute path of a file entry."""
        return self.sources[entry.path]

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield a file's content as it was hashed; what was appended to it since is left out.

        Raises:
            WorkspaceChangedError: the file no longer has the content that was hashed. The last chunk is not
                yielded then.
        """
        path = self.source(entry)
        digest, left = hashlib.sha256(), entry.size
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb", buffering=0) as file:
                while True:
                    chunk = file.read(min(CHUNK, left))
                    left -= len(chunk)
                    digest.update(chunk)
                    if (left and not chunk) or (not left and digest.hexdigest() != entry.digest):
                        raise WorkspaceChangedError(path)
                    yield chunk
                    if not left:
                        return
        except OSError as error:
            raise WorkspaceChangedError(path) from error


def snapshot(workspace: Workspace, *, may_be_empty: bool = False) -> Snapshot:
    """Select and hash the files of a workspace; for a frozen one, return the stored snapshot.

    Args:
        workspace: its projects. One that was not asked for (``implicit``) must look like a project.
        may_be_empty: whether it may have no files.

    Raises:
        WorkspaceError: a project is not a directory, an ignore file does not parse, two projects have the
            same path, no file is left unless ``may_be_empty``, or an implicit workspace is the home directory
            or very large.
    """
    if workspace.frozen:
        return kept_snapshot(workspace.frozen)
    places: dict[str, str] = {}
    for source, to in workspace.projects.items():
        root = os.path.abspath(os.path.expanduser(source))
        if root in places:
            raise WorkspaceError(
                f"the workspace {workspace} has the directory {root} twice", hint="Name each directory once."
            )
        if workspace.implicit:
            check_implicit(root)
        places[root] = to
    selections = [select(source) for source in places]
    if workspace.implicit:
        _check_implicit_size(selections)
    report = Report()
    entries: dict[str, Entry] = {}
    owners: dict[str, str] = {}
    sources: dict[str, str] = {}
    for selection in selections:
        to = places[selection.root]
        prefix = f"{to}/" if to else ""
        for entry in _entries(selection, prefix, places):
            _check_clash(entry, entries, owners, selection.root)
            entries.setdefault(entry.path, entry)
            owners.setdefault(entry.path, selection.root)
            if entry.kind == "file":
                sources[entry.path] = f"{selection.root}/{entry.path[len(prefix) :]}"
        report.add(selection.report, prefix)
    report.problems.sort()
    if not sources and not may_be_empty:
        raise _no_files(list(places), report)
    return Snapshot(Manifest(entries.values()), report, sources)


def _check_clash(entry: Entry, entries: Mapping[str, Entry], owners: Mapping[str, str], owner: str) -> None:
    """Refuse an entry where another project has something else, or no directory above it."""
    for path in (entry.path, entry.path.rpartition("/")[0]):
        known = entries.get(path)
        kind = entry.kind if path == entry.path else "dir"
        if known is not None and not (known.kind == kind == "dir"):
            raise WorkspaceError(
                f"two projects of the workspace have the path {path}: {owners[path]} and {owner}",
                hint="Give one of them another destination, or leave the path out of one (.shunterignore).",
            )


def kept_snapshot(beginning: str, store: Store | None = None) -> Snapshot:
    """Return a workspace that an earlier job ran with, by the beginning of its fingerprint.

    Raises:
        WorkspaceError: it is not kept, or not all of it.
    """
    store = store or Store()
    manifest = store.find(beginning)
    if not store.has_all(manifest):
        raise WorkspaceError(
            f"the content of the workspace @{manifest.fingerprint[:12]} is not kept on this machine",
            hint="Submit from a directory instead: --workspace DIR",
        )
    blobs = {entry.path: store.blob_path(entry) for entry in manifest.entries if entry.kind == "file"}
    return Snapshot(manifest, Report(), blobs)


def check_implicit(root: str) -> None:
    """Refuse a directory that was not named and is surely not a project: ``/`` or the home directory.

    Raises:
        WorkspaceError: it is one of these.
    """
    real = os.path.realpath(root)
    home = os.path.realpath(os.path.expanduser("~"))
    if real in ("/", home):
        what = "the root of the file system" if real == "/" else "your home directory"
        raise WorkspaceError(
            f"the current directory is {what}, which is not shipped unless it is named",
            hint="Change to your project, or name what the job needs: --workspace DIR"
            " ('' ships nothing, '.' ships all of this).",
        )


def _check_implicit_size(selections: Sequence[Selection]) -> None:
    files = sum(len(selection.files) for selection in selections)
    size = sum(info.st_size for selection in selections for _, info in selection.files)
    if size > MOST_BYTES or files > MOST_FILES:
        raise WorkspaceError(
            f"the current directory {' '.join(selection.root for selection in selections)} has {files} files"
            f" and {size / (1 << 30):.1f} GiB, which is not shipped unless it is named",
            hint="Leave out what the job does not need in .shunterignore (`shunter workspace show` lists the"
            " largest), or name it: --workspace .",
        )


def _entries(selection: Selection, prefix: str, places: Mapping[str, str]) -> list[Entry]:
    """Return what a project has, and the directories that it is put into."""
    entries = [Entry(prefix[: slash.start()], "dir", 0o755) for slash in re.finditer("/", prefix)]
    entries += [Entry(prefix + path, "dir", mode) for path, mode in selection.directories.items()]
    entries += _links(selection, prefix, places)
    index = Index(selection.root)
    unknown = []
    for path, info in selection.files:
        digest = index.digest(path, info)
        if digest is None:
            unknown.append(path)
        else:
            entries.append(Entry(prefix + path, "file", info.st_mode & 0o7777, info.st_size, digest))
    with ThreadPoolExecutor() as pool:
        outcomes = pool.map(_hash, [os.path.join(selection.root, path) for path in unknown])
        for path, outcome in zip(unknown, outcomes, strict=True):
            if isinstance(outcome, str):
                selection.report.problems.append((path, outcome))
                continue
            digest, info, began = outcome
            if not began:
                note = f"{prefix + path} is being written to: the job gets its current content"
                selection.report.notes.append(note)
            index.remember(path, info, digest, began)
            entries.append(Entry(prefix + path, "file", info.st_mode & 0o7777, info.st_size, digest))
    index.save()
    return entries


def _hash(path: str) -> tuple[str, os.stat_result, int] | str:
    """Return what `hash_file` does, or why a file cannot be shipped."""
    try:
        return hash_file(path)
    except ChangingFileError as error:
        raise WorkspaceChangedError(path) from error
    except NotAFileError:
        return "is no longer a file"
    except FileNotFoundError:
        return "was removed while the workspace was read"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _links(selection: Selection, prefix: str, places: Mapping[str, str]) -> list[Entry]:
    entries = []
    for path, _ in selection.links:
        absolute = os.path.join(selection.root, path)
        try:
            target = os.readlink(absolute)
        except OSError as error:
            selection.report.problems.append((path, f"cannot be read: {error.strerror}"))
            continue
        kept, inside = _link_target(target, absolute, prefix + path, places)
        if not os.path.exists(absolute):
            selection.report.problems.append((path, f"points to {target}, which does not exist"))
        elif not inside:
            selection.report.problems.append((path, f"points to {target}, outside of the workspace"))
        entries.append(Entry(prefix + path, "link", 0o777, target=kept))
    return entries


def _link_target(target: str, absolute: str, path: str, places: Mapping[str, str]) -> tuple[str, bool]:
    """Return what a link should point to, and whether that is in the workspace.

    A link that reaches the workspace from outside, as an absolute one does, would lead from a frozen copy
    back to the live files, or nowhere.
    """
    pointed = os.path.normpath(os.path.join(os.path.dirname(absolute), target))
    there = _place_of(pointed, places)
    if there is None:
        real = os.path.join(os.path.realpath(os.path.dirname(pointed)), os.path.basename(pointed))
        there = _place_of(real, places)
    if there is None:
        return target, False
    directory = os.path.dirname(path)
    if not os.path.isabs(target) and os.path.normpath(os.path.join(directory, target)) == there:
        return target, True
    return os.path.relpath(there, directory or "."), True


def _place_of(absolute: str, places: Mapping[str, str]) -> str | None:
    """Return where a path of this machine is in the workspace, or None."""
    for source in sorted(places, key=len, reverse=True):
        for root in dict.fromkeys([source, os.path.realpath(source)]):
            if absolute == root or absolute.startswith(root.rstrip("/") + "/"):
                return os.path.normpath(os.path.join(places[source], os.path.relpath(absolute, root)))
    return None


def _no_files(sources: list[str], report: Report) -> WorkspaceError:
    where = " and ".join(sources)
    reasons = [
        f"{len(paths)} left out by {'Git' if reason == 'git' else reason}"
        for reason, paths in report.left_out.items()
    ]
    if report.secrets:
        reasons.append(f"{len(report.secrets)} left out as likely secrets")
    if report.problems:
        reasons.append(f"{len(report.problems)} cannot be shipped ({': '.join(report.problems[0])})")
    why = ", ".join(reasons) or "the directory is empty"
    return WorkspaceError(
        f"the workspace {where} has no files: {why}",
        hint="Name another directory (--workspace DIR), or ship nothing (--workspace '').",
    )

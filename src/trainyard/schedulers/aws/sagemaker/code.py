"""The code of a job: chosen by the workspace law, packed into a reproducible archive, named by its content.

What is uploaded is a "directory" of S3 whose name is made from its content: ``sourcedir.tar.gz``, and the
toolkit where scripts are started by it. Code that is there already is not sent again.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError, did_you_mean
from trainyard.schedulers.aws.sagemaker import names
from trainyard.schedulers.aws.sagemaker.channels import is_s3
from trainyard.schedulers.aws.sagemaker.command import ARCHIVE_FILE, TOOLKIT_FILE
from trainyard.schedulers.aws.sagemaker.isolation import Isolation
from trainyard.schedulers.aws.sagemaker.request import PlannedCode
from trainyard.schedulers.aws.sagemaker.script import is_in_image, script_of
from trainyard.specs.workspace import Workspace
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.images.layer import LayerContent, LayerEntry, write_gzip
from trainyard.workspace.index import hash_file
from trainyard.workspace.manifest import Entry, Manifest
from trainyard.workspace.selection import Report
from trainyard.workspace.snapshot import Snapshot, snapshot, still_growing
from trainyard.workspace.store import Store
from trainyard.workspace.toolkit_files import toolkit_archive

if TYPE_CHECKING:
    from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts
    from trainyard.specs.app import AppDef
    from trainyard.workspace.errors import WorkspaceChangedError
    from trainyard.workspace.progress import Progress

#: Changed whenever the same files would be packed in another way.
LAYOUT = 1
#: How many scripts a message shows, those at the top first.
LIKELY_SCRIPTS = 12


@dataclass
class Sources:
    """Where code comes from on this machine.

    Attributes:
        workspace: its directories, and where each goes.
        files: further files: name in the archive -> path.
        program: the script that must be in it; "" for none.
        growing: absolute paths of files that are known to be appended to all the time.
    """

    workspace: Workspace
    files: dict[str, str]
    program: str = ""
    growing: frozenset[str] = frozenset()

    def read(self) -> Snapshot:
        """Select and hash everything.

        Raises:
            WorkspaceError: a directory cannot be read, or there is nothing in it.
            ConfigError: the script is not in it, or two things have the same name.
        """
        if self.workspace.frozen:
            taken = _earlier(self.workspace.frozen)
        else:
            taken = snapshot(self.workspace, growing=self.growing)
        if self.files:
            taken = self._with_files(taken)
        _check_program(self.program, taken.manifest)
        return taken

    def _with_files(self, taken: Snapshot) -> Snapshot:
        entries = list(taken.manifest.entries)
        paths = {entry.path: taken.source(entry) for entry in entries if entry.kind == "file"}
        for name, path in self.files.items():
            if name in taken.manifest.by_path:
                raise ConfigError(f"dependencies: {path} has the name of a file of the code, {name}")
            digest, info, _ = hash_file(path)
            entries.append(Entry(name, "file", info.st_mode & 0o7777, info.st_size, digest))
            paths[name] = path
        return Snapshot(Manifest(entries), taken.report, paths, taken.growing)


class _Elsewhere(Snapshot):
    """Code of an earlier job that this machine no longer has; it may well be in S3 still."""

    def source(self, entry: Entry) -> str:
        """Refuse: there is nothing to read."""
        raise WorkspaceError(
            f"the code @{self.manifest.fingerprint[:12]} is neither in S3 any more nor kept on this machine",
            hint="Submit from a directory instead: --workspace DIR",
        )


def _earlier(beginning: str) -> Snapshot:
    """Return the code that an earlier job ran with; its content may be in S3 alone."""
    store = Store()
    manifest = store.find(beginning)
    return store.snapshot(beginning) if store.has_all(manifest) else _Elsewhere(manifest, Report(), {})


def _check_program(program: str, manifest: Manifest) -> None:
    if not program or program in manifest.by_path or is_in_image(program):
        return
    if {"setup.py", "pyproject.toml"} & set(manifest.by_path) and not program.endswith((".py", ".sh")):
        return  # a module of the package
    scripts = [entry.path for entry in manifest.entries if entry.path.endswith((".py", ".sh"))]
    likely = sorted(scripts, key=lambda path: path.count("/"))[:LIKELY_SCRIPTS]
    raise ConfigError(
        f"the script {program} is not in the code that travels with the job",
        hint=did_you_mean(program, likely) or "There is no script in it.",
    )


class CodePackage:
    """The code of one job, planned: the `Shipment` of this scheduler.

    Args:
        sources: directories and files of this machine; None where the code comes from elsewhere.
        with_toolkit: whether the toolkit travels too.
        archive: ``s3://`` URI of an archive that is there already.
        clone: clones a repository and returns its sources; None if there is none.
        isolation: how the code is started, if it is without network; None if it has one.
    """

    def __init__(
        self,
        sources: Sources | None,
        *,
        with_toolkit: bool = False,
        archive: str = "",
        clone: Any = None,
        isolation: Isolation | None = None,
    ) -> None:
        self._sources = sources
        self._isolation = isolation
        self._clone = clone
        self._archive = archive
        self.toolkit = toolkit_archive() if with_toolkit else None
        self.snapshot = self._read(sources) if sources is not None else None

    def _read(self, sources: Sources) -> Snapshot:
        taken = sources.read()
        if self._isolation is not None:
            self._isolation.check(taken)
        return taken

    @property
    def manifest(self) -> Manifest | None:
        """What is shipped; None if it is nothing but the toolkit, or not known yet."""
        return self.snapshot.manifest if self.snapshot is not None else None

    @property
    def report(self) -> Report:
        """What is to be said of it."""
        return self.snapshot.report if self.snapshot is not None else Report()

    @property
    def planned(self) -> PlannedCode:
        """What the request has to know of it."""
        if self._clone is not None and self.snapshot is None:
            return PlannedCode(names.CONTENT)
        uploads = self.snapshot is not None or self.toolkit is not None
        has_code = self.snapshot is not None or bool(self._archive)
        return PlannedCode(self.key if uploads else "", self._archive, has_code)

    @property
    def key(self) -> str:
        """Names the content: 40 hexadecimal digits."""
        parts = [
            LAYOUT,
            self.manifest.fingerprint if self.manifest is not None else "",
            hashlib.sha256(self.toolkit).hexdigest() if self.toolkit is not None else "",
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    def plan(self) -> dict[str, Any]:
        """Return what will be shipped, as JSON values."""
        manifest, report = self.manifest, self.report
        return {
            "kind": "archive",
            "fingerprint": manifest.fingerprint if manifest is not None else None,
            "files": manifest.files if manifest is not None else 0,
            "size": manifest.size if manifest is not None else 0,
            "archive": self._archive or ARCHIVE_FILE,
            "toolkit": self.toolkit is not None,
            "secrets": report.secrets,
            "problems": [list(problem) for problem in report.problems],
        }

    def ship(self, progress: Any) -> dict[str, str]:
        """Do nothing: `AWSSageMakerScheduler.ship` uploads it, since it has the clients."""
        return {}

    def resolve(self, progress: Any) -> None:
        """Clone the repository, if the code comes from one.

        Raises:
            ConfigError: it cannot be cloned, the script is not in it, or it could not run without network.
        """
        if self._clone is not None and self.snapshot is None:
            self.snapshot = self._read(self._clone.sources(progress))

    def reread(self, changed: WorkspaceChangedError, progress: Progress) -> bool:
        """Read the files again, since one has been changed; tells whether that can be."""
        if self._sources is None or self._sources.workspace.frozen or self.snapshot is None:
            return False
        self._sources.growing = still_growing(self.snapshot, changed, progress)
        self.snapshot = self._read(self._sources)
        return True

    def write(self, directory: str | os.PathLike[str]) -> None:
        """Write archive and toolkit into a directory.

        Raises:
            WorkspaceChangedError: a file no longer has the content that was hashed.
        """
        for name in self.file_names():
            self.write_file(name, Path(directory, name))

    def write_file(self, name: str, path: Path) -> None:
        """Write one of the files that there are, by its name; see `write`."""
        if name == ARCHIVE_FILE and self.snapshot is not None:
            write_gzip(_content(self.snapshot), path)
        elif name == TOOLKIT_FILE and self.toolkit is not None:
            path.write_bytes(self.toolkit)

    def file_names(self) -> list[str]:
        """Return the names of the files that there are: archive and toolkit."""
        wanted = {ARCHIVE_FILE: self.snapshot, TOOLKIT_FILE: self.toolkit}
        return [name for name, content in wanted.items() if content is not None]

    def keep(self) -> None:
        """Keep the manifest, and the small files for comparisons, on this machine."""
        if self.snapshot is not None and not isinstance(self.snapshot, _Elsewhere):
            store = Store()
            store.put_manifest(self.snapshot.manifest)
            store.keep_sources(self.snapshot)

    def close(self) -> None:
        """Remove what was cloned."""
        if self._clone is not None:
            self._clone.close()


def _content(taken: Snapshot) -> LayerContent:
    entries = tuple(
        LayerEntry(entry.path, entry.kind, entry.mode, 0, 0, entry.size, entry.digest, entry.target)
        for entry in taken.manifest.entries
    )

    def read(entry: LayerEntry) -> Iterator[bytes]:
        return taken.read(taken.manifest.by_path[entry.path])

    return LayerContent(entries, read)


def plan_code(
    app: AppDef, workspace: Workspace, opts: AWSSageMakerOpts, *, local: bool = False
) -> CodePackage | None:
    """Decide what code travels with a job, and read it. None if none does.

    ``source_dir``, ``git_config`` and a workspace that somebody asked for exclude each other. Without any of
    them a script gets the current directory.

    Raises:
        ConfigError: several of them are given, the script is not in the code, or the code could not run
            without network, which it is not to have.
        WorkspaceError: the code cannot be read.
    """
    script = script_of(app.roles[0]) if len(app.roles) == 1 else None
    with_toolkit = script is not None and opts.toolkit
    program = script.program if script is not None else ""
    isolation = _isolation(app, opts, program)
    source = opts.source_dir
    if workspace and not workspace.implicit and (source or opts.git_config):
        which = "source_dir" if source else "git_config"
        raise ConfigError(
            f"the workspace {workspace} and {which} are both given: the code can come from one only",
            hint=f"Leave {which} out, or the workspace (--workspace '').",
        )
    if opts.git_config is not None:
        from trainyard.schedulers.aws.sagemaker.gitcode import Clone

        return CodePackage(None, with_toolkit=with_toolkit, clone=Clone(opts, program), isolation=isolation)
    if source and is_s3(source):
        if not source.endswith((".tar.gz", ".tgz")):
            raise ConfigError(f"source_dir {source} is no archive: it must be a .tar.gz")
        return CodePackage(None, with_toolkit=with_toolkit, archive=source)
    if source is not None:
        if source and not os.path.isdir(os.path.expanduser(source)):
            raise ConfigError(
                f"source_dir {source} is not a directory of this machine",
                hint="Name the directory of the code, or an archive in S3: s3://.../sourcedir.tar.gz.",
            )
        chosen = Workspace({source: ""}) if source else Workspace()
    elif workspace:
        chosen = workspace
    elif script is not None and not is_in_image(program):
        chosen = Workspace({".": ""}, implicit=True)
    else:
        chosen = Workspace()
    if not chosen and not opts.dependencies:
        if isolation is not None:
            isolation.check_directory()
        return CodePackage(None, with_toolkit=True) if with_toolkit else None
    sources = add_dependencies(chosen, opts.dependencies or [], program)
    return CodePackage(sources, with_toolkit=with_toolkit, isolation=isolation)


def _isolation(app: AppDef, opts: AWSSageMakerOpts, program: str) -> Isolation | None:
    """Return how a script is started without network; None with one, and where nothing is installed."""
    if not opts.enable_network_isolation or not program:
        return None
    return Isolation(program, opts.toolkit, {**(opts.environment or {}), **app.roles[0].env})


def add_dependencies(workspace: Workspace, dependencies: list[str], program: str, base: str = "") -> Sources:
    """Return a workspace with further directories and files beside it, by their last names.

    Raises:
        ConfigError: one does not exist, or two have the same name.
    """
    projects, files = dict(workspace.projects), {}
    for given in dependencies:
        path = os.path.join(base, os.path.expanduser(given))
        name = posixpath.basename(os.path.abspath(path))
        if name in files or name in projects.values():
            raise ConfigError(f"dependencies: two of them are named {name}")
        if os.path.isdir(path):
            projects[path] = name
        elif os.path.isfile(path):
            files[name] = os.path.abspath(path)
        else:
            raise ConfigError(f"dependencies: there is no file or directory {given}")
    if dependencies and workspace.frozen:
        raise ConfigError("dependencies cannot be put into code that an earlier job ran with")
    chosen = workspace if workspace.frozen else Workspace(projects, implicit=workspace.implicit)
    return Sources(chosen, files, program)

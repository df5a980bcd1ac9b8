"""The code of a job: where it comes from, packed into a reproducible archive, named by its content.

What is uploaded is a "directory" of S3 whose name is made from its content: ``sourcedir.tar.gz``, and the
toolkit where it starts the script. Code that is there already is not sent again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import posixpath
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from shunter.errors import ConfigError, WorkspaceError, did_you_mean
from shunter.git import REPOSITORY_VARIABLES
from shunter.redaction import SHORTEST_URL_TOKEN, redact_text
from shunter.schedulers.aws_sagemaker_scheduler import names
from shunter.schedulers.aws_sagemaker_scheduler.channels import is_s3
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import ARCHIVE_FILE, TOOLKIT_FILE, PlannedCode
from shunter.schedulers.aws_sagemaker_scheduler.network_isolation import check_isolated
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.training_script import is_in_image, script_of
from shunter.specs.app import AppDef
from shunter.specs.workspace import Workspace
from shunter.workspace.code_store import Store
from shunter.workspace.file_digests import hash_file
from shunter.workspace.images.image_shipment import ImageShipment
from shunter.workspace.images.layer import content_of, write_gzip
from shunter.workspace.manifest import Entry, Manifest
from shunter.workspace.shipment import Report
from shunter.workspace.snapshot import Snapshot, kept_snapshot, snapshot
from shunter.workspace.toolkit_files import toolkit_archive

#: To be changed whenever the same files would be packed differently.
LAYOUT = 1
#: How many scripts a message names, those nearest to the top first.
LIKELY_SCRIPTS = 12


def goes_into_image(app: AppDef, workspace: Workspace, opts: AWSSageMakerOpts) -> bool:
    """Tell whether the workspace is put into the image. A script's code never is."""
    if not opts.image_repo or not workspace or opts.source_dir is not None or opts.git_config is not None:
        return False
    return len(app.roles) > 1 or script_of(app.roles[0]) is None


def plan_code(app: AppDef, workspace: Workspace, opts: AWSSageMakerOpts) -> CodePackage | None:
    """Decide what code travels with a job, and read it; None if none does.

    ``source_dir``, ``git_config`` and an explicit workspace exclude each other. Without any of them a script
    gets the current directory.

    Raises:
        ConfigError: several of them are given, the script is not in the code, or the code needs a network
            that the job does not have.
        WorkspaceError: the code cannot be read.
    """
    script = script_of(app.roles[0]) if len(app.roles) == 1 else None
    with_toolkit = script is not None and opts.toolkit
    program = script.program if script is not None else ""
    check: Callable[[Snapshot], None] | None = None
    if opts.enable_network_isolation and program:
        environment = {**(opts.environment or {}), **app.roles[0].env}
        check = partial(check_isolated, program=program, toolkit=opts.toolkit, environment=environment)
    source = opts.source_dir
    if workspace and not workspace.implicit and (source or opts.git_config):
        which = "source_dir" if source else "git_config"
        raise ConfigError(
            f"the workspace {workspace} and {which} are both given: the code can come from one only",
            hint=f"Leave {which} out, or the workspace (--workspace '').",
        )
    if opts.git_config is not None:
        clone = GitClone(opts, program)
        return CodePackage(None, with_toolkit=with_toolkit, clone=clone, check=check)
    if source and is_s3(source):
        if not source.endswith((".tar.gz", ".tgz")):
            raise ConfigError(f"source_dir {source} must be an archive, with a name that ends in .tar.gz")
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
        return CodePackage(None, with_toolkit=True) if with_toolkit else None
    sources = add_dependencies(chosen, opts.dependencies or [], program)
    return CodePackage(sources, with_toolkit=with_toolkit, check=check)


def add_dependencies(
    workspace: Workspace, dependencies: list[str], program: str, base: str = ""
) -> CodeSources:
    """Return a workspace with further directories and files added under their base names."""
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
        raise ConfigError("dependencies cannot be put into the code of an earlier job")
    chosen = workspace if workspace.frozen else Workspace(projects, implicit=workspace.implicit)
    return CodeSources(chosen, files, program)


@dataclass
class CodeSources:
    """Where code comes from on this machine.

    Attributes:
        workspace: its directories, and where each goes.
        files: further files: name in the archive -> path.
        program: the script that must be in it; "" for none.
    """

    workspace: Workspace
    files: dict[str, str]
    program: str = ""

    def read(self) -> Snapshot:
        """Select and hash everything."""
        if self.workspace.frozen:
            taken = _of_earlier_job(self.workspace.frozen)
        else:
            taken = snapshot(self.workspace)
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
        return Snapshot(Manifest(entries), taken.report, paths)


class _LostSnapshot(Snapshot):
    """Code of an earlier job that this machine no longer has; it may still be in S3."""

    def source(self, entry: Entry) -> str:
        """Refuse: there is nothing to read."""
        raise WorkspaceError(
            f"the code @{self.manifest.fingerprint[:12]} is no longer in S3, nor on this machine",
            hint="Submit from a directory instead: --workspace DIR",
        )


def _of_earlier_job(beginning: str) -> Snapshot:
    store = Store()
    manifest = store.find(beginning)
    if store.has_all(manifest):
        return kept_snapshot(beginning, store)
    return _LostSnapshot(manifest, Report(), {})


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
        archive: ``s3://`` URI of an archive that exists already.
        clone: the repository that the code comes from, if it comes from one.
        check: refuses code that the job cannot start.
    """

    def __init__(
        self,
        sources: CodeSources | None,
        *,
        with_toolkit: bool = False,
        archive: str = "",
        clone: GitClone | None = None,
        check: Callable[[Snapshot], None] | None = None,
    ) -> None:
        self._sources = sources
        self._check = check
        self._clone = clone
        self._archive = archive
        #: The image with the job's environment, if one is made.
        self.image: ImageShipment | None = None
        self.toolkit = toolkit_archive() if with_toolkit else None
        self.snapshot = self._read(sources) if sources is not None else None

    def _read(self, sources: CodeSources) -> Snapshot:
        taken = sources.read()
        if self._check is not None:
            self._check(taken)
        return taken

    @property
    def manifest(self) -> Manifest | None:
        """The files that are shipped; None if only the toolkit is, or they are not known yet."""
        return self.snapshot.manifest if self.snapshot is not None else None

    @property
    def report(self) -> Report:
        """Remarks about the files."""
        return self.snapshot.report if self.snapshot is not None else Report()

    @property
    def planned(self) -> PlannedCode:
        """What the request needs to know of it."""
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
            **({"images": self.image.plan()["images"]} if self.image is not None else {}),
            "secrets": report.secrets,
            "problems": [list(problem) for problem in report.problems],
        }

    def ship(self, progress: Any) -> dict[str, str]:
        """Make the image with the environment. `AWSSageMakerScheduler.ship` uploads: it has the clients."""
        return self.image.ship(progress) if self.image is not None else {}

    def resolve(self, progress: Any) -> None:
        """Clone the repository, if the code comes from one."""
        if self._clone is not None and self.snapshot is None:
            self.snapshot = self._read(self._clone.sources(progress))

    def reread(self) -> bool:
        """Read the files again, since one has changed; returns False if that is not possible."""
        if self._sources is None or self._sources.workspace.frozen or self.snapshot is None:
            return False
        self.snapshot = self._read(self._sources)
        return True

    def file_names(self) -> list[str]:
        """Return the names of the files that are shipped: archive and toolkit."""
        contents = {ARCHIVE_FILE: self.snapshot, TOOLKIT_FILE: self.toolkit}
        return [name for name, content in contents.items() if content is not None]

    def write(self, directory: str | os.PathLike[str]) -> None:
        """Write archive and toolkit into a directory."""
        for name in self.file_names():
            self.write_file(name, Path(directory, name))

    def write_file(self, name: str, path: Path) -> None:
        """Write one of `file_names`; see `write`."""
        if name == ARCHIVE_FILE and self.snapshot is not None:
            write_gzip(content_of(self.snapshot), str(path))
        elif name == TOOLKIT_FILE and self.toolkit is not None:
            path.write_bytes(self.toolkit)

    def keep(self) -> None:
        """Keep the manifest, and the small files for comparisons, on this machine."""
        if self.snapshot is not None and not isinstance(self.snapshot, _LostSnapshot):
            Store().keep_sources(self.snapshot)

    def close(self) -> None:
        """Remove the clone."""
        if self._clone is not None:
            self._clone.close()


# ---- code of a Git repository
#
# It is cloned into a temporary directory, packed, and removed again. Credentials reach Git through its
# environment, as a header for the repository's host alone. They are neither in a command line nor in the
# clone's configuration, and are removed from Git's messages.

GIT_SECONDS = 600
#: Variables that a token or password is taken from, if the option has none.
TOKEN_VARIABLES = ("GIT_TOKEN", "GITHUB_TOKEN")
PASSWORD_VARIABLE = "GIT_PASSWORD"


class GitClone:
    """A repository, cloned when it is needed."""

    def __init__(self, opts: AWSSageMakerOpts, program: str) -> None:
        self._config = dict(opts.git_config or {})
        # a login in the URL is treated like any other; otherwise it would appear in Git's command line
        self._repo, self._url_login = _split_login(self._config.get("repo", ""))
        self._source = opts.source_dir or ""
        self._dependencies = list(opts.dependencies or [])
        self._program = program
        self._directory = ""

    def sources(self, progress: Any) -> CodeSources:
        """Clone the repository, and return what of it travels."""
        progress.step(f"cloning {self._repo}")
        self._directory = tempfile.mkdtemp(prefix="shunter-clone-")
        try:
            return self._sources()
        except BaseException:
            self.close()
            raise

    def _sources(self) -> CodeSources:
        root = os.path.join(self._directory, "code")
        branch, commit = self._config.get("branch"), self._config.get("commit")
        # a commit may be anywhere in the history; of a branch, the head is enough
        depth = [] if commit else ["--depth", "1"]
        on_branch = ["--branch", branch] if branch else []
        repo = self._repo
        if "://" not in repo and os.path.exists(repo):
            repo = os.path.abspath(repo)
        self._git("clone", "--quiet", *depth, *on_branch, "--", repo, root)
        if commit:
            self._git("-C", root, "checkout", "--quiet", "--detach", self._known_commit(root, commit))
        self._git("-C", root, "rev-parse", "HEAD")  # refuses a repository without a commit
        source = os.path.join(root, self._source) if self._source else root
        if not os.path.isdir(source):
            raise ConfigError(f"the repository {self._repo} has no directory {self._source}")
        return add_dependencies(Workspace({source: ""}), self._dependencies, self._program, root)

    def _known_commit(self, root: str, commit: str) -> str:
        verify = ["-C", root, "rev-parse", "--verify", "--quiet", "--end-of-options"]
        for name in (commit, f"origin/{commit}"):
            try:
                return self._git(*verify, f"{name}^{{commit}}").strip()
            except ConfigError:
                continue
        branch = self._config.get("branch")
        where = f"the branch {branch} of {self._repo}" if branch else self._repo
        raise ConfigError(
            f"there is no commit {commit} in {where}", hint="Give a hash or a tag that has been pushed."
        )

    def close(self) -> None:
        """Remove the clone."""
        directory, self._directory = self._directory, ""
        if directory:
            shutil.rmtree(directory, ignore_errors=True)

    def _git(self, *words: str) -> str:
        environ, secrets = self._environment()
        try:
            done = subprocess.run(
                ["git", *words],
                # not the user's directory: a checkout there may configure programs that Git would start
                cwd=self._directory or "/",
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=GIT_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise ConfigError("git_config needs Git, which is not installed") from None
        except subprocess.TimeoutExpired:
            raise ConfigError(f"git {words[0]} of {self._repo} took more than {GIT_SECONDS} s") from None
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.strip() or f"exit code {done.returncode}"
        for secret in secrets:
            said = said.replace(secret, "<redacted>")
        raise ConfigError(
            f"cannot get the code from {self._repo}: {redact_text(said)}",
            hint="Check repo, branch and commit of git_config, and the token (GIT_TOKEN) or password.",
        )

    def _environment(self) -> tuple[dict[str, str], list[str]]:
        """Return Git's environment, and the secrets in it."""
        kept = {name: value for name, value in os.environ.items() if name not in REPOSITORY_VARIABLES}
        environ = {**kept, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true"}
        environ.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
        login = self._login()
        if not login or not self._repo.startswith("https://"):
            return environ, []
        encoded = base64.b64encode(login.encode()).decode()
        count = int(environ.get("GIT_CONFIG_COUNT", "0"))
        environ["GIT_CONFIG_COUNT"] = str(count + 1)
        environ[f"GIT_CONFIG_KEY_{count}"] = f"http.https://{urlsplit(self._repo).netloc}/.extraHeader"
        environ[f"GIT_CONFIG_VALUE_{count}"] = f"Authorization: Basic {encoded}"
        user, _, password = login.partition(":")
        return environ, [encoded, password or user]

    def _login(self) -> str:
        """Return ``user:password``; "" without a login."""
        two_factors = str(self._config.get("2FA_enabled", "")).lower() == "true"
        token = self._config.get("token") or next(
            (os.environ[name] for name in TOKEN_VARIABLES if os.environ.get(name)), ""
        )
        user = self._config.get("username", "")
        password = self._config.get("password") or (os.environ.get(PASSWORD_VARIABLE, "") if user else "")
        if password and not token and not two_factors:
            return f"{user}:{password}"
        return f"{user or 'x-access-token'}:{token}" if token else self._url_login


def _split_login(repo: str) -> tuple[str, str]:
    """Return a repository's URL without the login in it, and the login as ``user:password``."""
    parts = urlsplit(repo)
    if parts.scheme not in ("http", "https") or "@" not in parts.netloc:
        return repo, ""
    login, _, host = parts.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    if not colon and len(user) < SHORTEST_URL_TOKEN:
        return repo, ""  # only a name, whose password Git's credential helper may know
    return urlunsplit(parts._replace(netloc=host)), f"{unquote(user)}:{unquote(password)}"

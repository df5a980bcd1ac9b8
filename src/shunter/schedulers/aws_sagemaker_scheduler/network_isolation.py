"""Finds what in a job without a network (``enable_network_isolation``) needs a network.

Code comes as a channel, so it works there unchanged. What does not work: packages that are installed from an
index when the container starts, and everything else that the container would send or fetch. AWS's developer
guide, "Run training and inference containers in internet-free mode": the containers can make no outbound
network calls, not even to services such as S3, and have no AWS credentials; instances of a job reach each
other.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shunter.errors import ConfigError, WorkspaceChangedError, WorkspaceError
from shunter.workspace.manifest import Manifest
from shunter.workspace.snapshot import Snapshot

REQUIREMENTS = "requirements.txt"
PACKAGE_FILE = "setup.py"
PROJECT_FILE = "pyproject.toml"
#: Names AWS's CodeArtifact as the index: a token for it is fetched before anything is installed.
CODE_ARTIFACT = "CA_REPOSITORY_ARN"
_REMOTE = ("s3://", "http://", "https://")
_NO = frozenset({"", "0", "false", "no", "off", "n", "f"})
#: Larger files are not lists of requirements.
_LONGEST = 1 << 20
# developer guide, same page: these containers need S3 and do not support network isolation
_UNSUPPORTED_IMAGE = re.compile(r"(?:^|/)sagemaker-(?:chainer|rl-)")
_ALTERNATIVES = (
    "Install it when the image is built; or let wheels travel with the code, and say so: "
    '-cfg \'environment={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/ml/code/wheels"}\' '
    "(UV_OFFLINE and UV_FIND_LINKS where the image has uv)."
)

#: Returns a small file of the code as text; None if it does not exist or cannot be read.
ReadFile = Callable[[str], "str | None"]


# ---- the request


def problems_of(request: Mapping[str, Any]) -> Iterator[str]:
    """Find what a request asks for that cannot work in a container without network."""
    if not request.get("EnableNetworkIsolation"):
        return
    # developer guide, "Access a training container through AWS Systems Manager for remote debugging": the
    # agent in the container talks to that service
    if (request.get("RemoteDebugConfig") or {}).get("EnableRemoteDebug"):
        yield (
            "enable_remote_debug and enable_network_isolation are both given: people connect through a "
            "service (SSM) that the container cannot reach without a network"
        )
    parameters = request.get("HyperParameters") or {}
    directory = _decoded(parameters.get("sagemaker_submit_directory", ""))
    if directory.startswith(_REMOTE):
        yield (
            f"enable_network_isolation: the container would fetch its code from {directory}, and has no "
            "network; give it as source_dir, which comes as a channel"
        )
    output = _decoded(parameters.get("sagemaker_s3_output", ""))
    if output.startswith(_REMOTE):
        yield (
            f"enable_network_isolation: the container would send intermediate results to {output}, and has "
            "no network; leave sagemaker_s3_output out: checkpoint_s3_uri is sent on by SageMaker itself"
        )
    algorithm = request["AlgorithmSpecification"]
    image = algorithm.get("TrainingImage", "")
    if _UNSUPPORTED_IMAGE.search(image) and not algorithm.get("ContainerEntrypoint"):
        yield f"enable_network_isolation: the image {image} needs S3 when it starts, which it could not reach"


def _decoded(text: str) -> str:
    """Return a hyperparameter's value: text that is decoded once as JSON."""
    try:
        return str(json.loads(text))
    except ValueError:
        return text


# ---- the code


@dataclass(frozen=True)
class Isolation:
    """How code is started without network.

    Attributes:
        program: the script.
        toolkit: whether shunter's toolkit starts it, and not the image's own ``train``.
        environment: its variables.
    """

    program: str
    toolkit: bool
    environment: Mapping[str, str]

    def check(self, code: Snapshot) -> None:
        """Refuse code that would be installed over the network when the container starts."""
        problem = next(self._problems(code.manifest, _reader(code)), None)
        if problem is not None:
            what, hint = problem
            raise ConfigError(f"enable_network_isolation: {what}", hint=hint)

    def check_directory(self) -> None:
        """Refuse code that the container would have to fetch, where none travels with the job."""
        directory = self.environment.get("SAGEMAKER_SUBMIT_DIRECTORY", "")
        if directory.startswith(_REMOTE):
            raise ConfigError(
                f"enable_network_isolation: the container would fetch its code from {directory} "
                "(SAGEMAKER_SUBMIT_DIRECTORY), and it has no network",
                hint=f"Give it as -cfg source_dir={directory}: then it comes as a channel.",
            )

    def _problems(self, manifest: Manifest, read: ReadFile) -> Iterator[tuple[str, str]]:
        """Find what is wrong, and what to do."""
        package = self._package_file(manifest, read)
        # sagemaker-training installs nothing for shell scripts; the toolkit does
        requires = REQUIREMENTS in manifest.by_path and (self.toolkit or not self.program.endswith(".sh"))
        installs = [*([REQUIREMENTS] if requires else []), *([package] if package else [])]
        if installs and self.environment.get(CODE_ARTIFACT):
            yield _problem(
                f"{CODE_ARTIFACT} names an index for {' and '.join(installs)}, whose token would be fetched "
                "over the network, which the container does not have",
                f"Leave {CODE_ARTIFACT} out.",
            )
        if requires:
            yield from self._requirement_problems(read)
        if package and not _builds_offline(self.environment):
            yield _problem(
                f"{package} makes the code a package, which would be built and installed with what an index "
                "has, and the container has no network to reach one",
                f"Leave {package} out (.shunterignore), and name the script by its file, if it need not be "
                "installed.",
            )

    def _package_file(self, manifest: Manifest, read: ReadFile) -> str:
        """Return the file that makes the code a package to be installed; decided as the toolkit does."""
        paths = manifest.by_path
        if self.program.endswith(".sh"):
            return ""
        if PACKAGE_FILE in paths:
            return PACKAGE_FILE
        if not self.toolkit or self.program in paths or PROJECT_FILE not in paths:
            return ""
        lines = (read(PROJECT_FILE) or "").splitlines()
        return PROJECT_FILE if any(line.strip() in ("[project]", "[build-system]") for line in lines) else ""

    def _requirement_problems(self, read: ReadFile) -> Iterator[tuple[str, str]]:
        wanted = Requirements()
        wanted.read(REQUIREMENTS, read)
        if wanted.remote and not _is_on(self.environment, "UV_OFFLINE"):
            path, text = wanted.remote[0]
            yield _problem(
                f"{path} names {text}, which would be fetched when the container starts, and it has no "
                "network",
                f"Leave it out of {path}.",
            )
        if wanted.indexed and not wanted.no_index and not _is_offline(self.environment):
            path, text = wanted.indexed[0]
            more = f" and {len(wanted.indexed) - 1} more" if len(wanted.indexed) > 1 else ""
            yield _problem(
                f"{path} asks for {text}{more}, to be installed from an index when the container starts, "
                "and it has no network",
                f"Leave {path} out (.shunterignore) if the image has all of it.",
            )


def _problem(what: str, first: str) -> tuple[str, str]:
    """Return what is wrong, and what to do: the first alternative, and those that always exist."""
    return what, f"{first} {_ALTERNATIVES}"


@dataclass
class Requirements:
    """What requirements files ask for, each entry with the path of its file.

    Attributes:
        indexed: requirements that would be looked up in an index.
        remote: addresses, and repositories that would be cloned.
        no_index: whether the files themselves say that no index is used.
    """

    indexed: list[tuple[str, str]] = field(default_factory=list)
    remote: list[tuple[str, str]] = field(default_factory=list)
    no_index: bool = False
    seen: set[str] = field(default_factory=set)

    def read(self, path: str, read: ReadFile) -> None:
        """Read a file, and those that it includes; one that cannot be read counts as needing an index."""
        if path in self.seen:
            return
        self.seen.add(path)
        content = read(path)
        if content is None:
            self.indexed.append((path, "what could not be read"))
            return
        for raw in re.sub(r"\\\r?\n", " ", content).splitlines():
            text = re.sub(r"(?:^|\s)#.*", "", raw).strip()
            if text:
                self._line(path, text, read)

    def _line(self, path: str, text: str, read: ReadFile) -> None:
        option, _, value = (text.replace("=", " ", 1) if text.startswith("--") else text).partition(" ")
        value = value.strip()
        if option in ("-r", "--requirement"):
            self.read(posixpath.normpath(posixpath.join(posixpath.dirname(path), value)), read)
        elif option == "--no-index":
            self.no_index = True
        elif option in ("-i", "--index-url") and value.startswith("file:"):
            self.no_index = True  # an index that travels with the code
        elif option in ("-e", "--editable"):
            self._requirement(path, value)
        elif not text.startswith("-"):
            self._requirement(path, text)

    def _requirement(self, path: str, text: str) -> None:
        bare = text.partition(";")[0].strip()
        address = bare.partition("@")[2].strip() if re.match(r"[\w.\-\[\],]+\s*@", bare) else bare
        if "://" in address and not address.startswith("file:"):
            self.remote.append((path, re.sub(r"://[^/@]+@", "://", address)))
        elif not (address.startswith((".", "/", "file:")) or address.endswith((".whl", ".tar.gz", ".zip"))):
            self.indexed.append((path, bare.partition(" --")[0].strip()))


def _reader(code: Snapshot) -> ReadFile:
    def read(path: str) -> str | None:
        entry = code.manifest.by_path.get(path)
        if entry is None or entry.kind != "file" or entry.size > _LONGEST:
            return None
        try:
            return b"".join(code.read(entry)).decode("utf-8", "replace")
        except WorkspaceChangedError:
            raise
        except WorkspaceError:  # code of an earlier job that is in S3 alone
            return None

    return read


# ---- the environment


def _is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").strip().lower() not in _NO


def _is_offline(environment: Mapping[str, str]) -> bool:
    """Tell whether the variables make the installer use no index, one on disk, or its own configuration."""
    switches = ("PIP_NO_INDEX", "UV_OFFLINE", "PIP_CONFIG_FILE", "UV_CONFIG_FILE")
    indexes = ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
    return any(_is_on(environment, name) for name in switches) or any(
        environment.get(name, "").startswith("file:") for name in indexes
    )


def _builds_offline(environment: Mapping[str, str]) -> bool:
    """Tell whether the variables also let a package be built offline, which needs its build tools."""
    if not _is_offline(environment):
        return False
    others = {name: value for name, value in environment.items() if name != "PIP_NO_INDEX"}
    return _is_offline(others) or "PIP_FIND_LINKS" in environment or "PIP_NO_BUILD_ISOLATION" in environment

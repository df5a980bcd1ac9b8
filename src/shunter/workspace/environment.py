"""The Python environment that travels with a script: what it is read from, and building it before the job.

An environment is described by JSON values, a role's ``metadata["train"]["environment"]``. The toolkit builds
it, once for each fingerprint, and uses it (``shunter_toolkit.environment_store``): on the machine where the
job is submitted, on a login node, or where the job runs.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shunter._toolkit import environment_build, environment_description, environment_store
from shunter._toolkit.environment_description import PACKAGES, PROJECT, REQUIREMENTS, SCRIPT, Description
from shunter.errors import BackendError, ConfigError, ShunterError
from shunter.paths import state_dir
from shunter.progress import Progress
from shunter.specs.app import AppDef, Role
from shunter.specs.script_header import find_block, read_header
from shunter.specs.training import METADATA_KEY
from shunter.workspace.code_store import Store
from shunter.workspace.toolkit_files import local_toolkit, put_toolkit

#: The key of the training specification.
KEY = "environment"
#: What to ask for instead of a file: no environment, although the script has a header.
NONE = "none"
#: How long an environment may take to be built, in seconds.
BUILD_SECONDS = 3600.0

_INCLUDES = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[=\s]\s*(?P<path>[^\s#]+)", re.MULTILINE)
#: What a line of requirements installs from this machine, with its options.
_LOCAL = re.compile(
    r"^\s*(?P<link>(?:-e|--editable)[=\s]\s*)?(?:[\w.-]+\s*@\s*)?(?:file:)?"
    r"(?P<path>\.{1,2}|[^\s#;:\[@-][^\s#;:\[@]*/[^\s#;:\[@]*)(?=[\s#;\[]|$)",
    re.MULTILINE,
)
#: The files that say how a linked folder is installed.
_OF_BUILD = ("pyproject.toml", "setup.py", "setup.cfg")
_LOCKED_FILE = re.compile(r'url = "[^"]*/([^"/]+)"[^}]*?\bsize = (\d+)')
_PYTHON_FILE = ".python-version"


def describe(source: str | Sequence[str]) -> dict[str, Any]:
    """Describe an environment, for a role's ``metadata["train"]["environment"]``.

    Args:
        source: a requirements file, a project with a ``uv.lock`` (its folder, or one of the two files), a
            script with a header (PEP 723), or a list of packages. Paths are relative to the current
            directory.

    Raises:
        ConfigError: there is no such file, or it cannot be used.
    """
    if not isinstance(source, str):
        return Description(PACKAGES, "a list of packages", [str(package) for package in source]).json()
    name = os.path.basename(os.path.normpath(source))
    if os.path.isdir(source):
        return _of_project(source)
    if name in ("pyproject.toml", "uv.lock"):
        return _of_project(os.path.dirname(source))
    if name.endswith(".py"):
        description = of_script(source)
        if description is None:
            raise ConfigError(
                f"cannot make an environment from {source}: it has no header `# /// script`",
                hint="Add one (`uv add --script FILE PACKAGE`), or name a requirements.txt.",
            )
        return description
    requirements = Description(REQUIREMENTS, source)
    _add_requirements(requirements, os.path.normpath(source))
    return requirements.json()


def of_script(path: str) -> dict[str, Any] | None:
    """Describe the environment that a script's header asks for; None if it asks for none.

    A ``script.py.lock`` beside it counts, as ``uv lock --script`` makes it.

    Raises:
        ConfigError: the header is wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return None  # it may be in the image
    header = read_header(text, path) if path.endswith(".py") else None
    if header is None:
        return None
    packages, python = header.get("dependencies"), header.get("requires-python", "")
    if packages is None and not python:
        return None  # it says only how the job runs
    if not _are_texts(packages or []) or not isinstance(python, str):
        raise ConfigError(
            f"the header of {path}: dependencies is a list of texts, and requires-python is a text",
            hint='Write them as: dependencies = ["numpy>=2"] and requires-python = ">=3.11".',
        )
    description = Description(PACKAGES, f"the header of {path}", list(packages or []), python)
    lock = f"{path}.lock"
    uv = header.get("tool", {}).get("uv", {})
    _check_paths(uv, path)
    if uv or os.path.exists(lock):
        description.kind, description.uv, description.header = SCRIPT, uv, find_block(text)
    if os.path.exists(lock):
        description.files = {os.path.normpath(lock): _digest(lock)}
    return description.json()


def _check_paths(uv: Any, script: str) -> None:
    """Refuse sources beside the script: their content is not part of what an environment is known by."""
    for name, source in (uv.get("sources") or {}).items():
        for each in source if isinstance(source, list) else [source]:
            where = str(each.get("path", "")) if isinstance(each, dict) else ""
            if where and not os.path.isabs(where):
                raise ConfigError(
                    f"the header of {script}: the source of {name} is the path {where}, and environments are "
                    "shared by jobs with other code",
                    hint=f"Leave {name} out of the dependencies and let it travel as code: --env "
                    "PYTHONPATH=FOLDER. Or name a package of an index, a URL, or an absolute path.",
                )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _of_project(folder: str) -> dict[str, Any]:
    lock, project = (os.path.normpath(os.path.join(folder, name)) for name in ("uv.lock", "pyproject.toml"))
    for path in (project, lock):
        if not os.path.isfile(path):
            raise ConfigError(
                f"cannot make an environment from {folder or '.'}: it has no {os.path.basename(path)}",
                hint="`uv lock` in the project writes its uv.lock; or name a requirements.txt.",
            )
    version = os.path.join(folder, _PYTHON_FILE)
    files = [lock, project, *([os.path.normpath(version)] if os.path.isfile(version) else [])]
    try:
        python = tomllib.loads(_read(project).decode()).get("project", {}).get("requires-python", "")
    except ValueError as error:
        raise ConfigError(f"cannot make an environment from {project}: {error}", hint="Correct it.") from None
    digests = {path: _digest(path) for path in files}
    return Description(PROJECT, lock, requires_python=str(python), files=digests).json()


def _add_requirements(description: Description, path: str) -> None:
    """Add a requirements file, and those that it includes."""
    if path in description.files:
        return
    description.files[path] = _digest(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    for match in _LOCAL.finditer(text):
        if os.path.exists(match["path"]):
            description.local[os.path.abspath(match["path"])] = _local_digest(path, **match.groupdict())
    for match in _INCLUDES.finditer(text):
        if "://" not in match["path"]:
            _add_requirements(
                description, os.path.normpath(os.path.join(os.path.dirname(path), match["path"]))
            )


def _local_digest(source: str, path: str, link: str | None) -> str:
    """Return the digest of what a line of requirements installs from this machine."""
    if os.path.isfile(path):
        return _digest(path)
    if not link:
        raise ConfigError(
            f"{source} installs a copy of the folder {path}, and environments are shared by jobs with other "
            "code",
            hint=f"Write -e {path}, which uses the folder as it is, or leave it out and let it travel as "
            "code: --env PYTHONPATH=FOLDER.",
        )
    files = [os.path.join(path, name) for name in _OF_BUILD]
    return hashlib.sha256(b"\0".join(_read(name) for name in files if os.path.isfile(name))).hexdigest()


def _digest(path: str) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path} for the job's environment: {error.strerror}",
            hint="Name a requirements.txt, a folder with a uv.lock, or a script with a header.",
        ) from None


# ---- the environments of a job


def of_role(role: Role) -> Description | None:
    """Return what environment a role asks for; None if it uses the Python that is there.

    Raises:
        ConfigError: the description is wrong.
    """
    value = role.metadata[METADATA_KEY].get(KEY) if METADATA_KEY in role.metadata else None
    if not value:
        return None
    try:
        return Description(**value)
    except TypeError as error:
        raise ConfigError(
            f"role {role.name!r}: metadata['train']['environment'] is wrong: {error}",
            hint="Make it with shunter.workspace.environment.describe().",
        ) from None


def of_app(app: AppDef | None) -> Iterator[tuple[Role, Description]]:
    """Yield the roles of a job that ask for an environment, with its description."""
    for role in app.roles if app is not None else ():
        description = of_role(role)
        if description is not None:
            yield role, description


def add_variable(role: Role, place: Mapping[str, str]) -> None:
    """Tell the toolkit of a role, by a variable, which environment to use.

    Args:
        role: changed in place.
        place: where it is kept, see `ToolkitPlace.environments`; empty if the toolkit keeps it where it runs.

    Raises:
        ConfigError: its files do not travel with the code.
    """
    description = of_role(role)
    if description is None:
        return
    outside = [name for name in description.files if name.startswith((os.pardir, "/"))]
    if outside and not place:
        raise ConfigError(
            f"role {role.name!r}: the environment of {description.source} is built where the job runs, and "
            f"{outside[0]} does not travel with the code",
            hint="Submit from a directory that has it, or copy it there.",
        )
    for key, value in place.items():
        setattr(description, key, value.replace("*", description.digest))
    role.env.setdefault(environment_description.VARIABLE, json.dumps(description.json()))


# ---- building before the job


def local_store() -> str:
    """Return the folder of the environments of this machine's jobs."""
    return os.path.join(state_dir(), "environments")


def request_for(description: Description, python: str, uv: str = "") -> bytes:
    """Return what ``environment build`` of the toolkit reads.

    Args:
        description: the environment.
        python: the Python to build it for, a path or a name on PATH.
        uv: the path of uv, for machines that have no uv on PATH.

    Raises:
        ConfigError: a file has changed since it was described, and its content is not kept.
    """
    contents = {
        name: content(name, digest).decode("utf-8", "surrogateescape")
        for name, digest in description.files.items()
    }
    document = {"environment": description.json(), "contents": contents, "python": python, "uv": uv}
    return json.dumps(document).encode()


def content(name: str, digest: str) -> bytes:
    """Return a file as it was described: from the current directory, or of an earlier job's code.

    Raises:
        ConfigError: it has changed since, and its content is not kept.
    """
    try:
        with open(name, "rb") as file:
            now = file.read()
    except OSError:
        now = b""
    if hashlib.sha256(now).hexdigest() == digest:
        return now
    kept = Store().read_blob(digest)
    if kept is None:
        raise ConfigError(
            f"cannot build the job's environment: {name} has changed since, and its content is not kept",
            hint="Submit a new job.",
        )
    return kept


def build_here(description: Description, python: str, version: str, progress: Progress) -> None:
    """Build an environment on this machine, unless it is there.

    Args:
        description: the environment.
        python: the Python to build it for.
        version: of that Python, such as ``3.11.7``.
        progress: shows it.

    Raises:
        BackendError: it cannot be built; the message has the installer's last lines.
    """
    if environment_store.published(os.path.join(local_store(), f"{description.name(version)}.json")):
        return
    put_toolkit()
    progress.step(f"building the environment of {description.source}")
    command = [sys.executable, "-S", local_toolkit(), "environment", "build", local_store()]
    request = request_for(description, python)
    try:
        done = subprocess.run(command, input=request, capture_output=True, timeout=BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BackendError(f"building the environment of {description.source} took too long") from None
    report(
        result_of(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")), description, progress
    )


def report(result: Mapping[str, Any], description: Description, progress: Progress) -> None:
    """Report that an environment is there, if it had to be built."""
    if result["built"]:
        progress.done(f"built the environment of {description.source} in {result['seconds']:.1f} s")


def result_of(code: int, out: bytes, err: str) -> dict[str, Any]:
    """Return what ``environment`` of the toolkit printed.

    Raises:
        BackendError: it failed.
    """
    if code == 0:
        return dict(json.loads(out))
    raise environment_error(err)


def environment_error(words: str) -> ShunterError:
    """Return the error for an environment that could not be built, from what the toolkit printed."""
    message = words.strip() or "the environment could not be built: the toolkit printed nothing"
    advice = "uv and pip take their index from their own configuration."
    if os.strerror(errno.ENOSPC) in message:
        advice = "The disk is full; `shunter gc` lists environments that no job uses."
    return BackendError(message[0].lower() + message[1:], hint=f"Nothing was submitted. {advice}")


# ---- what a plan says


def planned(description: Description, store: str, version: str = "") -> dict[str, Any]:
    """Say what becomes of an environment of this machine, as JSON values.

    Args:
        description: the environment.
        store: the folder of environments.
        version: of the job's Python; by default of the one on PATH.
    """
    version = version or environment_build.version_of(shutil.which("python") or sys.executable)
    pointer = os.path.join(store, f"{description.name(version)}.json")
    folder = environment_store.published(pointer)
    facts = summary(description)
    if not folder:
        tool = "uv" if environment_build.find_uv() else "venv and pip"
        return {**facts, "built": False, "place": f"will be built with {tool} in {store}"}
    try:
        size = int(json.loads(_read(pointer)).get("size", 0))
    except ValueError:
        size = 0
    return {**facts, "built": True, "place": folder, "size": size}


def summary(description: Description) -> dict[str, Any]:
    """Return what a plan shows of every environment."""
    return {
        "source": description.source,
        "packages": description.packages,
        "requires_python": description.requires_python,
        "digest": description.digest[:12],
        "download": download_size(description),
    }


def download_size(description: Description) -> int | None:
    """Return how many bytes its packages are at most, by its lock; None if it has no lock that says it.

    A lock names the files of all platforms and Pythons: of each package the largest one counts that fits
    this machine.
    """
    lock = next((name for name in description.files if name.endswith(".lock")), "")
    if not lock:
        return None
    sizes: dict[str, int] = {}
    for package in content(lock, description.files[lock]).decode("utf-8", "replace").split("[[package]]")[1:]:
        files = [(name, int(size)) for name, size in _LOCKED_FILE.findall(package)]
        wheels = [size for name, size in files if name.endswith(".whl") and _fits(name)]
        largest = max(wheels or [size for name, size in files if not name.endswith(".whl")], default=0)
        name = package.split('"', 2)[1]
        sizes[name] = max(largest, sizes.get(name, 0))
    return sum(sizes.values())


def _fits(wheel: str) -> bool:
    tag = wheel.removesuffix(".whl").rpartition("-")[2]
    system = "macosx" if sys.platform == "darwin" else "linux"
    return tag == "any" or (system in tag and os.uname().machine in tag)

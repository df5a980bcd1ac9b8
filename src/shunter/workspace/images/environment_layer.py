"""The Python environment of a job as a layer of its image, below the code: made once for each base image.

uv installs wheels on this machine, from the indexes and with the credentials that are configured here, for
the Python and the platform of the image. So neither the image nor the nodes need uv or the network. No code
of a package runs here, where a job in a container would never run it. What cannot be made so (no Python is
found in the image, a package has no wheel, uv is not here) is left to the toolkit, which installs it at the
start of the container.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter._toolkit.environment_build import Builder, find_uv, put, source_path
from shunter._toolkit.environment_description import ACCELERATOR, OF_UV, PROJECT, Description
from shunter._toolkit.environment_store import OF_IMAGE
from shunter.docker.command import DockerCommand
from shunter.errors import ConfigError
from shunter.progress import Progress
from shunter.workspace import environment
from shunter.workspace.images.image_config import LABEL_BASE, LABEL_BASE_NAME, LABEL_ENVIRONMENT, environ_of
from shunter.workspace.images.image_content import Cargo, Lookup, Patch, locate
from shunter.workspace.images.layer import LayerContent
from shunter.workspace.manifest import Entry

#: Changed whenever the same environment would be laid out in another way.
LAYOUT = 1
#: What the C library of a base image in a registry has at least, as most wheels of today need it.
_USUAL_LIBC = "glibc 2.28"
#: The releases of glibc (2.x) that uv can be asked for.
_RELEASES = (17, 28, *range(31, 41))
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
#: What asks an image for its Python: the one that scripts run with.
_ASK = (
    'exec "$(command -v python || command -v python3)" -I -S -c "import json, os, sys; '
    "print(json.dumps([getattr(sys, '_base_executable', sys.executable), '%d.%d.%d' % sys.version_info[:3], "
    "os.uname().machine, os.confstr('CS_GNU_LIBC_VERSION') "
    "if 'CS_GNU_LIBC_VERSION' in os.confstr_names else '']))\""
)
#: Requirements that uv runs code for although it must not build, or that may bring such ones.
_UNSAFE = re.compile(r"^\s*(?:-e|--editable|(?:-r|--requirement)[=\s]*\w+://).*", re.MULTILINE)
_CLAUSE = re.compile(r"\s*(>=|<=|>|<|==|!=|~=)\s*(\d+(?:\.\d+)*)(\.\*)?\s*")


class CannotMakeError(ConfigError):
    """The environment cannot be a layer of this image; it is installed at the start of the container."""


@dataclass(frozen=True)
class ImagePython:
    """The Python of an image.

    Attributes:
        program: its path in the image.
        version: such as ``3.12.4``; without the last number if that is not known.
        machine: such as ``x86_64``.
        libc: ``glibc 2.36``, or "" for musl.
    """

    program: str
    version: str
    machine: str
    libc: str

    @property
    def minor(self) -> str:
        """The version's first two numbers."""
        return ".".join(self.version.split(".")[:2])

    @property
    def platform(self) -> str:
        """What uv calls the platform."""
        if not self.libc.startswith("glibc 2."):
            return f"{self.machine}-unknown-linux-musl"
        release = int(self.libc.partition(".")[2].partition(".")[0])
        known = max((each for each in _RELEASES if each <= release), default=_RELEASES[0])
        return f"{self.machine}-manylinux_2_{known}"


def ask_daemon(docker: DockerCommand, image: str) -> ImagePython:
    """Run an image that a daemon has for its Python.

    Raises:
        ShunterError: it has none, or does not run here.
    """
    words = ["run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", _ASK]
    answer = docker.run(*words)
    try:
        return ImagePython(*map(str, json.loads(answer)))
    except (ValueError, TypeError) as error:
        raise CannotMakeError(f"the image's Python does not tell its version: {answer[:200]!r}") from error


def look_up(config: Mapping[str, Any], lookup: Lookup) -> ImagePython:
    """Find the Python of an image of a registry, by the links that lead to it.

    Raises:
        CannotMakeError: no folder of its PATH has a Python whose name says its version.
    """
    folders = [path.strip("/") for path in environ_of(config).get("PATH", "").split(":") if path]
    names = ("python", "python3")
    for folder in folders or ["usr/local/bin", "usr/bin"]:
        found = dict(lookup([f"{folder}/{name}" for name in names]))
        for name in names:
            path = f"{folder}/{name}"
            for _ in range(3):
                entry = found.get(path)
                if entry is None or entry.kind != "link":
                    break
                path = os.path.normpath(os.path.join(os.path.dirname(path), entry.target)).lstrip("/")
                found |= lookup([path])
            version = re.search(r"/python(3\.\d+)$", f"/{path}")
            if version and path in found:
                steps = json.dumps(config.get("history") or [])
                libc = "" if "apk add" in steps else _USUAL_LIBC
                machine = str(config.get("architecture") or "")
                return ImagePython(f"/{path}", version[1], _MACHINES.get(machine, machine), libc)
            if found.get(f"{folder}/{name}"):
                break  # the one that scripts get, and its version is not known
        else:
            continue
        break
    raise CannotMakeError("which Python the image has cannot be seen in its registry")


# ---- what is put into the image


@dataclass(frozen=True)
class EnvironmentPatch(Patch):
    """An image that is to be made: another one with a Python environment on top.

    Attributes:
        description: the environment.
        folder: an empty directory for its files, which have to stay there until the layer is written.
        docker: the daemon that has the base; None if that is in a registry.
        progress: told when it is built.
    """

    description: Description = field(kw_only=True)
    folder: str = field(kw_only=True)
    docker: DockerCommand | None = field(kw_only=True)
    progress: Progress = field(kw_only=True)

    @property
    def what(self) -> str:
        """What goes on top."""
        return f"the environment of {self.description.source}"

    def is_made(self, labels: Mapping[str, str] | None, base_id: str) -> bool:
        """Tell from an image's labels whether it is this one, over the base with this id."""
        wanted = {**self.labels, LABEL_BASE: base_id}
        return all((labels or {}).get(name) == wanted[name] for name in (LABEL_BASE, LABEL_ENVIRONMENT))

    def compose(self, config: Mapping[str, Any], lookup: Lookup | None = None) -> LayerContent:
        """Build the environment for the Python of the base image, and lay it out as a layer.

        Raises:
            CannotMakeError: that is not possible here.
            InstallError: it cannot be installed.
        """
        self.progress.step(f"building {self.what}")
        python = ask_daemon(self.docker, self.base) if self.docker else look_up(config, lookup or _nothing)
        required = self.description.requires_python
        if not satisfies(required, python.version):
            raise CannotMakeError(f"it needs Python {required}, and the image has {python.version}")
        inside = f"{OF_IMAGE}/{self.description.digest}"
        _Installer(self.description, self.folder, python, f"{inside}/venv").build()
        venv = os.path.join(self.folder, "venv")
        where = locate(OF_IMAGE, lookup)
        root = f"{where.path}/{self.description.digest}"
        entries: dict[str, Entry] = {**where.by_path, root: Entry(root, "dir", 0o755)}
        sources: dict[str, str] = {}
        for entry, path in _walk(venv, f"{root}/venv"):
            entries[entry.path], sources[entry.path] = entry, path
        size = sum(entry.size for entry in entries.values())
        record = {"folder": self.description.digest, "source": self.description.source, "size": size}
        pointer = os.path.join(self.folder, "pointer.json")
        put(pointer, json.dumps(record).encode())
        entries[f"{root}.json"] = _file(f"{root}.json", pointer)
        sources[f"{root}.json"] = pointer
        ordered = tuple(entries[path] for path in sorted(entries))
        return LayerContent(ordered, lambda entry: _pieces(sources[entry.path]))


def patch_for(
    description: Description,
    base: str,
    name: str,
    platform: str | None,
    folder: str,
    docker: DockerCommand | None,
    progress: Progress,
) -> EnvironmentPatch:
    """Return what makes an image with an environment of another one; see `EnvironmentPatch`."""
    return EnvironmentPatch(
        base,
        name,
        Cargo(None, lambda entry: ()),
        {LABEL_BASE_NAME: base, LABEL_ENVIRONMENT: key(description)},
        f"environment {description.digest}",
        platform,
        description=description,
        folder=folder,
        docker=docker,
        progress=progress,
    )


def key(description: Description) -> str:
    """Return what tells an environment from others on the same image."""
    parts = [LAYOUT, description.digest, os.environ.get(ACCELERATOR, "")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def image_key(description: Description, base: str, platform: str | None) -> str:
    """Return the tag of an image with an environment over a base."""
    parts = json.dumps([key(description), base, platform])
    return f"environment-{hashlib.sha256(parts.encode()).hexdigest()[:40]}"


def _nothing(paths: Sequence[str]) -> Mapping[str, Entry]:
    return {}


def satisfies(required: str, version: str) -> bool:
    """Tell whether a version of Python is certainly among those that ``requires-python`` names."""
    have = tuple(map(int, version.split(".")))
    return all(_holds(clause, have) for clause in required.split(",") if clause.strip())


def _holds(clause: str, have: tuple[int, ...]) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        return False
    operator, wanted, is_prefix = match[1], tuple(map(int, match[2].split("."))), bool(match[3])
    start = have[: len(wanted)]
    if len(wanted) > len(have):  # the last number is not known
        return False
    if operator == "~=":
        return start >= wanted and have[: len(wanted) - 1] == wanted[:-1]
    if is_prefix or operator in ("<", ">="):
        return {"==": start == wanted, "!=": start != wanted, "<": start < wanted, ">=": start >= wanted}.get(
            operator, False
        )
    padded = wanted + (0,) * (3 - len(wanted))
    results = {"==": have == padded, "!=": have != padded, ">": have > padded, "<=": have <= padded}
    return len(have) == 3 and results[operator]


class _Installer(Builder):
    """Installs an environment for another Python than those of this machine."""

    def __init__(self, description: Description, folder: str, python: ImagePython, inside: str) -> None:
        super().__init__(description, folder, sys.executable, os.getcwd())
        self._image = python
        self._inside = inside

    def build(self) -> None:
        """Lay out the environment in ``venv`` of the folder, for the path ``inside`` of the image.

        Raises:
            CannotMakeError: uv is not here, or code of a package would run here.
            InstallError: a package cannot be installed.
        """
        if not self.uv:
            raise CannotMakeError("uv is not on this machine")
        for name, digest in self.description.files.items():
            put(source_path(self.folder, name), environment.content(name, digest))
        venv = os.path.join(self.folder, "venv")
        packages = os.path.join(venv, "lib", f"python{self._image.minor}", "site-packages")
        os.makedirs(packages)
        wanted = self._wanted()
        if wanted:
            target = ["--python-version", self._image.minor, "--python-platform", self._image.platform]
            install = [self.uv, "pip", "install", "--quiet", "--no-build", "--python", self.python]
            self.run([*install, "--target", packages, *target, *wanted])
        scripts = os.path.join(packages, "bin")
        if os.path.isdir(scripts):
            os.replace(scripts, os.path.join(venv, "bin"))
            self._correct_scripts(os.path.join(venv, "bin"))
        self._finish(venv)

    def _wanted(self) -> list[str]:
        if self.description.kind not in OF_UV:
            _check_safe(source_path(self.folder, name) for name in self.description.files)
            return self.arguments()
        exported = os.path.join(self.folder, "exported.txt")
        only = []
        if self.description.kind == PROJECT:
            others = [word for name in self.folders() for word in ("--no-emit-package", name)]
            only = ["--no-emit-workspace", *others]
        words = ["--quiet", "--no-build", "--no-header", "--emit-index-url", "--output-file", exported]
        self.run([self.uv, "export", *words, *only, *self.locked()])
        _check_safe([exported])
        return ["--requirement", exported]

    def _correct_scripts(self, folder: str) -> None:
        """Let programs of packages run with the environment's Python in the image."""
        here, there = self.python.encode(), f"{self._inside}/bin/python".encode()
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as file:
                content = file.read()
            if content.startswith(b"#!") and here in content[:1024]:
                put(path, content[:1024].replace(here, there) + content[1024:])

    def _finish(self, venv: str) -> None:
        binaries = os.path.join(venv, "bin")
        os.makedirs(binaries, exist_ok=True)
        names = {"python": self._image.program, "python3": "python", f"python{self._image.minor}": "python"}
        for name, target in names.items():
            path = os.path.join(binaries, name)
            if os.path.lexists(path):  # a package's own
                os.unlink(path)
            os.symlink(target, path)
        os.symlink("lib", os.path.join(venv, "lib64"))  # where some distributions look
        home = os.path.dirname(self._image.program)
        text = f"home = {home}\ninclude-system-site-packages = false\nversion = {self._image.version}\n"
        put(os.path.join(venv, "pyvenv.cfg"), text.encode())


def _check_safe(paths: Iterable[str]) -> None:
    """Refuse files of requirements that run code of a package on this machine."""
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            unsafe = _UNSAFE.search(file.read())
        if unsafe:
            raise CannotMakeError(f"{unsafe[0].strip()!r} may run code of a package on this machine")


def _walk(folder: str, inside: str) -> Iterator[tuple[Entry, str]]:
    for place, directories, names in os.walk(folder):
        below = os.path.relpath(place, folder)
        here = inside if below == "." else f"{inside}/{below}"
        yield Entry(here, "dir", 0o755), place
        for name in [*names, *(each for each in directories if os.path.islink(os.path.join(place, each)))]:
            if name != ".lock":  # uv's own
                yield _file(f"{here}/{name}", os.path.join(place, name)), os.path.join(place, name)


def _file(path: str, source: str) -> Entry:
    if os.path.islink(source):
        return Entry(path, "link", 0o777, target=os.readlink(source))
    digest = hashlib.sha256()
    for piece in _pieces(source):
        digest.update(piece)
    mode = 0o755 if os.access(source, os.X_OK) else 0o644
    return Entry(path, "file", mode, os.path.getsize(source), digest.hexdigest())


def _pieces(path: str) -> Iterable[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def can_make() -> bool:
    """Tell whether this machine has what makes environments for images."""
    return os.environ.get("SHUNTER_INSTALLER") != "pip" and bool(find_uv())

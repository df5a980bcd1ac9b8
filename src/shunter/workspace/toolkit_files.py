"""The toolkit's files as jobs get them: one archive for images, an unpacked copy for jobs of this machine.

The archive has the same bytes as the one that ``toolkit/build_zipapp.py`` makes of the same sources. Python
keeps the byte code of the unpacked copy. The launcher itself imports the toolkit as its private package
``shunter._toolkit``: a link in a clone, files in a wheel. A ``shunter_toolkit`` installed beside it is a
different package, and is not imported.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import shunter
from shunter.errors import ConfigError
from shunter.paths import make_private_dir, read_regular_file, state_dir, state_error
from shunter.specs.app import Role

#: Path of the toolkit in an image.
TOOLKIT_PATH = "/opt/shunter/toolkit.pyz"
#: The toolkit's base directory in an image.
TOOLKIT_BASE = "/opt/ml"
#: The variable that names a file to use instead of the launcher's own toolkit.
VARIABLE = "SHUNTER_TOOLKIT"

_PACKAGE = "shunter_toolkit"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can carry
# What the toolkit's builder adds to its sources: the start, and the predecessors' import names.
_MAIN = b"import sys\nfrom shunter_toolkit.cli import main\nsys.exit(main(sys.argv[1:] or ['train']))\n"
_ALIASED = ("sagemaker_containers", "sagemaker_training", "torchx", "shunter")
_STAND_IN = (
    b"import os\nfrom shunter_toolkit.aliases import stand_in\n"
    b"stand_in(__name__, os.path.dirname(os.path.dirname(__file__)))\n"
)
_SHEBANG = b"#!/usr/bin/env python3\n"
# How the unpacked copy is started: running a directory would import runpy first.
START = "start.py"
_STARTER = (
    b"import os, sys\nsys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))\n"
    b"sys.dont_write_bytecode = False\n" + _MAIN.removeprefix(b"import sys\n")
)


@dataclass(frozen=True)
class ToolkitPlace:
    """How a job starts the toolkit, and the directories and variables that it uses. Macros are substituted.

    Attributes:
        command: what runs it; its own arguments follow.
        code: directory of the job's code.
        base: the base directory; "" for ``/opt/ml``.
        env: variables for it, unless the job has them.
        environments: where it finds Python environments, as keys of their description: ``store``, or
            ``pointer`` with ``*`` for the description's digest. Without them it keeps them where it runs.
    """

    command: tuple[str, ...] = ("python3", TOOLKIT_PATH)
    code: str = "."  # of an image: its working directory
    base: str = ""
    env: dict[str, str] = field(default_factory=lambda: {"SHUNTER_PYTHON": "python", "PYTHONUNBUFFERED": "1"})
    environments: dict[str, str] = field(default_factory=dict)


def needs_toolkit(role: Role) -> bool:
    """Tell whether a role runs under the toolkit: it has a training job in its metadata."""
    return bool(role.metadata.get("train"))


def local_command() -> tuple[str, ...]:
    """Return how jobs of this machine start the toolkit, once `put_toolkit` has been called.

    It is run by the job's own ``python``, as a script by itself would be, and without ``site``, which takes
    longer to load than the toolkit.
    """
    return ("python", "-S", local_toolkit())


def local_folder() -> str:
    """Return the directory of the toolkit for jobs of this machine."""
    return _local_copy(toolkit_archive())


def local_toolkit() -> str:
    """Return the program that starts this machine's copy of the toolkit, once `put_toolkit` was called."""
    return os.path.join(local_folder(), START)


def put_toolkit() -> None:
    """Put the toolkit where `local_command` says, unless it is there.

    Raises:
        StateStoreError: the state directory cannot be written.
    """
    archive = toolkit_archive()
    path = _local_copy(archive)
    if os.path.exists(path):
        return
    make_private_dir(os.path.dirname(path))
    partial = f"{path}.{os.getpid()}.new"
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            files.extractall(partial)
        with open(os.path.join(partial, START), "wb") as file:
            file.write(_STARTER)
        os.rename(partial, path)
    except OSError as error:
        if not os.path.exists(path):  # another process was quicker
            raise state_error("put the toolkit at", path, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _local_copy(archive: bytes) -> str:
    return os.path.join(state_dir(), "toolkit", hashlib.sha256(archive).hexdigest()[:16])


def toolkit_archive() -> bytes:
    """Return the toolkit as a zip archive that Python runs. The same sources give the same bytes.

    Raises:
        ConfigError: ``SHUNTER_TOOLKIT`` names no such archive, or this installation is not complete.
    """
    given = os.environ.get(VARIABLE)
    return _given(given) if given else _made(_sources())


def _given(path: str) -> bytes:
    try:
        content = read_regular_file(os.path.expanduser(path))
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.getinfo("__main__.py")
    except OSError as error:
        reason = str(error.strerror or error)
    except (zipfile.BadZipFile, KeyError):
        reason = "Python cannot run it as an archive"
    else:
        return content
    raise ConfigError(
        f"cannot take the toolkit from {VARIABLE}={path}: {reason}",
        hint=f"Set {VARIABLE} to the path of a shunter-toolkit.pyz, or unset it to use shunter's own.",
    )


def _sources() -> str:
    """Return the directory of the toolkit's package, within shunter; in a clone it is a link."""
    package = os.path.join(os.path.dirname(shunter.__file__), "_toolkit")
    if os.path.isfile(os.path.join(package, "cli.py")):
        return package
    raise ConfigError(
        f"this job runs under the toolkit, which is missing in {package}",
        hint=f"Reinstall shunter, or set {VARIABLE} to the path of a shunter-toolkit.pyz.",
    )


@functools.cache
def _made(package: str) -> bytes:
    raw = io.BytesIO()
    # Stored, not compressed: compressed bytes differ between versions of zlib.
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
        for name, content in _members(package):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, content)
    return _SHEBANG + raw.getvalue()


def _members(package: str) -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _MAIN
    for name in _ALIASED:
        yield f"aliases/{name}/__init__.py", _STAND_IN
    for path in _files(package):
        with open(os.path.join(package, path), "rb") as file:
            yield f"{_PACKAGE}/{path}", file.read()


def _files(package: str) -> list[str]:
    """Return the package's files, by their parts sorted, as the toolkit's builder sorts them."""
    root = Path(package)
    paths = [
        path.relative_to(root) for path in root.rglob("*") if path.suffix == ".py" or path.name == "py.typed"
    ]
    return [str(path) for path in sorted(paths, key=lambda path: path.parts)]

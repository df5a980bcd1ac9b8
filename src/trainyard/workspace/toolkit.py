"""The toolkit: what runs a training script in its job. It travels with the launcher.

Images get it as one file, with the same bytes as the one that the toolkit's own builder makes of the same
sources. Jobs of this machine run an unpacked copy, whose byte code Python keeps. Nothing of it is imported.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import trainyard
from trainyard.errors import ConfigError
from trainyard.ordinary import read_ordinary
from trainyard.paths import make_private_dir, state_dir, state_error

if TYPE_CHECKING:
    from trainyard.specs.app import Role

#: Where it lies in an image.
TOOLKIT_PATH = "/opt/trainyard/toolkit.pyz"
#: What it works in, in an image.
TOOLKIT_BASE = "/opt/ml"
#: Names a file to take instead of the launcher's own.
VARIABLE = "TRAINYARD_TOOLKIT"

_PACKAGE = "trainyard_toolkit"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can carry
# What the toolkit's builder adds to its sources: the start, and the predecessors' import names.
_MAIN = b"import sys\nfrom trainyard_toolkit.cli import main\nsys.exit(main(sys.argv[1:] or ['train']))\n"
_ALIASED = ("sagemaker_containers", "sagemaker_training")
_STAND_IN = (
    b"import os\nfrom trainyard_toolkit.aliases import stand_in\n"
    b"stand_in(__name__, os.path.dirname(os.path.dirname(__file__)))\n"
)
_SHEBANG = b"#!/usr/bin/env python3\n"
# How the unpacked copy is started: running a directory would import runpy first.
_START = "start.py"
_STARTER = (
    b"import os, sys\nsys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))\n"
    b"sys.dont_write_bytecode = False\n" + _MAIN.removeprefix(b"import sys\n")
)


@dataclass(frozen=True)
class ToolkitPlace:
    """How a job starts the toolkit, and what that works with. Macros in it are substituted.

    Attributes:
        command: what runs it; its own arguments follow.
        code: directory of the job's code.
        base: the base directory; "" for ``/opt/ml``.
        env: variables for it, unless the job has them.
    """

    command: tuple[str, ...] = ("python3", TOOLKIT_PATH)
    code: str = "."  # of an image: its working directory
    base: str = ""
    env: dict[str, str] = field(default_factory=lambda: {"TRAINYARD_PYTHON": "python"})


def needs_toolkit(role: Role) -> bool:
    """Tell whether a role runs under the toolkit: it has a training job in its metadata."""
    return bool(role.metadata.get("train"))


def local_command() -> tuple[str, ...]:
    """Return how jobs of this machine start the toolkit, once `put_toolkit` has been called.

    It is run by the job's own ``python``, as a script by itself would be, and without ``site``, which takes
    longer to load than the toolkit.
    """
    path = _local_copy()
    return ("python", "-S", path if path.endswith(".pyz") else os.path.join(path, _START))


def put_toolkit() -> None:
    """Put the toolkit where `local_command` says, unless it is there.

    Raises:
        StateStoreError: the state directory cannot be written.
    """
    path = _local_copy()
    if os.path.exists(path):
        return
    import shutil
    import tempfile

    make_private_dir(os.path.dirname(path))
    partial = ""
    try:
        partial = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(path))
        if path.endswith(".pyz"):
            Path(partial, "toolkit.pyz").write_bytes(toolkit_archive())
            os.replace(os.path.join(partial, "toolkit.pyz"), path)
            return
        for name, content in (*_members(_sources()), (_START, _STARTER)):
            file = Path(partial, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        os.rename(partial, path)
    except OSError as error:
        if not os.path.exists(path):  # somebody was quicker
            raise state_error("put the toolkit at", path, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _local_copy() -> str:
    """Return where this machine's jobs find the toolkit: named by its sources, whose content is not read."""
    given = os.environ.get(VARIABLE)
    if given:
        digest, suffix = hashlib.sha256(_given(given)), ".pyz"
    else:
        digest, suffix = hashlib.sha256(f"{trainyard.__version__} {_STARTER!r}".encode()), ""
        for path in _files(_sources()):
            info = path.stat()
            digest.update(f"{path}\0{info.st_size}\0{info.st_mtime_ns}\n".encode())
    return os.path.join(state_dir(), "toolkit", digest.hexdigest()[:16] + suffix)


def toolkit_archive() -> bytes:
    """Return the toolkit as a zip archive that Python runs. The same sources give the same bytes.

    Raises:
        ConfigError: ``TRAINYARD_TOOLKIT`` names no such archive, or this installation is not complete.
    """
    given = os.environ.get(VARIABLE)
    return _given(given) if given else _made(_sources())


def _given(path: str) -> bytes:
    import zipfile

    try:
        content = read_ordinary(os.path.expanduser(path))
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.getinfo("__main__.py")
    except OSError as error:
        reason = str(error.strerror or error)
    except (zipfile.BadZipFile, KeyError):
        reason = "it is no archive that Python runs"
    else:
        return content
    raise ConfigError(
        f"cannot take the toolkit from {VARIABLE}={path}: {reason}",
        hint=f"Let {VARIABLE} name a trainyard-toolkit.pyz, or unset it to take the one of trainyard itself.",
    )


def _sources() -> Path:
    """Return the toolkit's package: within an installed trainyard, or beside it in a clone."""
    own = Path(trainyard.__file__).parent
    for place in (own / "_toolkit", own.parents[1] / "toolkit" / "src"):
        if (place / _PACKAGE / "cli.py").is_file():
            return place / _PACKAGE
    raise ConfigError(
        f"this job runs under the toolkit, which is missing in {own}",
        hint=f"Install trainyard again. Or let {VARIABLE} name a trainyard-toolkit.pyz.",
    )


def _made(package: Path) -> bytes:
    import zipfile

    raw = io.BytesIO()
    # Stored, not compressed: compressed bytes differ between versions of zlib.
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
        for name, content in _members(package):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, content)
    return _SHEBANG + raw.getvalue()


def _members(package: Path) -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _MAIN
    for name in _ALIASED:
        yield f"aliases/{name}/__init__.py", _STAND_IN
    for path in _files(package):
        yield f"{_PACKAGE}/{path.relative_to(package).as_posix()}", path.read_bytes()


def _files(package: Path) -> list[Path]:
    return sorted(path for path in package.rglob("*") if path.suffix == ".py" or path.name == "py.typed")

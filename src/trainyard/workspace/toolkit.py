"""The toolkit as one file that goes into an image: what runs a training script there.

The file is made from the installed distribution ``trainyard-toolkit`` without importing it, and has the
same bytes as the one that the toolkit's own builder makes of the same sources.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainyard.errors import ConfigError
from trainyard.paths import make_private_dir, state_dir, state_error

if TYPE_CHECKING:
    from trainyard.specs.app import Role

#: Where it lies in an image.
TOOLKIT_PATH = "/opt/trainyard/toolkit.pyz"
#: What it works in, in an image.
TOOLKIT_BASE = "/opt/ml"
#: Names a file to take instead of the installed distribution.
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


class ToolkitPlace(NamedTuple):
    """Where a job finds the toolkit, and what it works with. Macros in it are substituted.

    Attributes:
        archive: path of the toolkit's zipapp.
        code: directory of the job's code.
        base: the base directory; "" for ``/opt/ml``.
        python: what runs it.
    """

    archive: str = TOOLKIT_PATH
    code: str = "."  # of an image: its working directory
    base: str = ""
    python: str = "python3"


def needs_toolkit(role: Role) -> bool:
    """Tell whether a role runs under the toolkit: it has a training job in its metadata."""
    return bool(role.metadata.get("train"))


def toolkit_file() -> str:
    """Return the path at which jobs of this machine find the toolkit, once `put_toolkit` has been called."""
    return _file_of(toolkit_archive())


def put_toolkit() -> None:
    """Put the toolkit where `toolkit_file` says, unless it is there.

    Raises:
        StateStoreError: the state directory cannot be written.
    """
    content = toolkit_archive()
    path = _file_of(content)
    if os.path.exists(path):
        return
    make_private_dir(os.path.dirname(path))
    partial = f"{path}.{os.getpid()}"
    try:
        Path(partial).write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        raise state_error("put the toolkit at", path, error) from error


def _file_of(content: bytes) -> str:
    return os.path.join(state_dir(), "toolkit", f"{hashlib.sha256(content).hexdigest()[:16]}.pyz")


def toolkit_archive() -> bytes:
    """Return the toolkit as a zip archive that Python runs. The same sources give the same bytes.

    Raises:
        ConfigError: it is not installed, or ``TRAINYARD_TOOLKIT`` names no such archive.
    """
    given = os.environ.get(VARIABLE)
    return _given(given) if given else _made(_installed())


def _given(path: str) -> bytes:
    import zipfile

    try:
        content = Path(path).expanduser().read_bytes()
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
        hint=f"Let {VARIABLE} name a trainyard-toolkit.pyz, or unset it to take the installed toolkit.",
    )


def _installed() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)  # finds a top-level package without importing it
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    if not places or not os.path.isfile(os.path.join(places[0], "cli.py")):
        raise ConfigError(
            "this job runs under the toolkit, which is not installed here",
            hint="Install it beside trainyard: pip install trainyard-toolkit. "
            f"Or let {VARIABLE} name a trainyard-toolkit.pyz.",
        )
    return Path(places[0])


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
    for path in sorted(
        path for path in package.rglob("*") if path.suffix == ".py" or path.name == "py.typed"
    ):
        yield f"{_PACKAGE}/{path.relative_to(package).as_posix()}", path.read_bytes()

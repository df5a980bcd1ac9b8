"""The toolkit as one file that goes into an image: what runs a training script there.

The file is made from the installed distribution ``trainyard-toolkit`` without importing it, and has the
same bytes as the one that the toolkit's own builder makes of the same sources.
"""

from __future__ import annotations

import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainyard.errors import ConfigError

if TYPE_CHECKING:
    from trainyard.specs.app import Role

#: Where it lies in an image.
TOOLKIT_PATH = "/opt/trainyard/toolkit.pyz"
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


class ToolkitInImage(NamedTuple):
    """What `Scheduler.toolkit_place` returns for images that a workspace was put into: see `ToolkitPlace`."""

    archive: str = TOOLKIT_PATH
    code: str = "."  # the image's working directory
    base: str = ""
    python: str = "python3"


def needs_toolkit(role: Role) -> bool:
    """Tell whether a role runs under the toolkit: it has a training job in its metadata."""
    return bool(role.metadata.get("train"))


def toolkit_archive() -> bytes:
    """Return the toolkit as a zip archive that Python runs. The same sources give the same bytes.

    Raises:
        ConfigError: it is not installed, or ``TRAINYARD_TOOLKIT`` names no such archive.
    """
    given = os.environ.get(VARIABLE)
    return _given(given) if given else _made(_installed())


def _given(path: str) -> bytes:
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

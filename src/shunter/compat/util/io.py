"""Files (``torchx.util.io``)."""

from __future__ import annotations

from pathlib import Path

import shunter
from shunter.plugins import entry_points

COMPONENTS_DIR = Path("torchx/components")


def get_abspath(relpath: str) -> Path:
    """Return the absolute path of a file that is given relative to the installed package."""
    relative = Path(relpath)
    parts = relative.parts[1:] if relative.parts[:1] == ("torchx",) else relative.parts
    return Path(shunter.__file__).parent.joinpath(*parts)


def read_conf_file(conf_file: str) -> str:
    """Return the content of a file, through the entry point ``torchx.file`` if a plugin offers one.

    Raises:
        FileNotFoundError: there is no such file.
    """
    for point in entry_points("file"):
        if point.name == "get_file_contents":
            return str(point.load()(conf_file))
    return Path(conf_file).read_text(encoding="utf-8")

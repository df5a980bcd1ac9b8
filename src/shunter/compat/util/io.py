"""Files (``torchx.util.io``)."""

from __future__ import annotations

from pathlib import Path

from shunter.plugins import entry_points


def read_conf_file(conf_file: str) -> str:
    """Return the content of a file, through the entry point ``torchx.file`` if a plugin offers one.

    Raises:
        FileNotFoundError: there is no such file.
    """
    for point in entry_points("file"):
        if point.name == "get_file_contents":
            return str(point.load()(conf_file))
    return Path(conf_file).read_text(encoding="utf-8")

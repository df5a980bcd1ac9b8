"""What a script's own text says: whether it uses ``/opt/ml``."""

from __future__ import annotations

import os
from collections.abc import Iterator

_BASE = b"/opt/ml"
#: Beside these, /opt/ml is only what holds where the variable is not set.
_VARIABLES = (b"SM_", b"SAGEMAKER_BASE_DIR")
_SHELL_DEFAULT = b"SAGEMAKER_BASE_DIR:-/opt/ml"
_ENDINGS = (".py", ".sh")
_MOST_FILES, _LARGEST = 100, 256 * 1024


def texts(folder: str, name: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield name and text of an entry point, and of the scripts beside it if its folder is small."""
    path = os.path.join(folder, name)
    if name:
        yield from _read(path)
    beside = os.path.dirname(path) if name else folder
    try:
        with os.scandir(beside) as entries:
            found = [entry for _, entry in zip(range(_MOST_FILES + 1), entries)]
    except OSError:
        return
    if len(found) > _MOST_FILES:
        return
    for entry in sorted(found, key=lambda entry: entry.name):
        if entry.name.endswith(_ENDINGS) and entry.name != os.path.basename(name):
            yield from _read(entry.path)


def _read(path: str) -> Iterator[tuple[str, bytes]]:
    try:
        if os.path.isfile(path):
            with open(path, "rb") as file:
                yield os.path.basename(path), file.read(_LARGEST)
    except OSError:
        pass  # the script itself fails, if it needs the file


def uses_base(text: bytes) -> bool:
    """Whether a text names ``/opt/ml``, other than as the default of a variable that says the place."""
    if _BASE not in text:
        return False
    lines = text.replace(_SHELL_DEFAULT, b"").splitlines()
    return any(_BASE in line and not any(name in line for name in _VARIABLES) for line in lines)

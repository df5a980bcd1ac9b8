"""What is installed where a job is submitted: recorded with it, and named when the job lacks a package.

A job of the history has the version of Python and a fingerprint. The names are in a file of the state
directory by that fingerprint, once for all jobs that are submitted from the same environment.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import sys

from shunter.errors import StateStoreError
from shunter.paths import make_private_dir, state_dir

_MISSING = re.compile(r"No module named '?([\w.]+)'?")
_PYTHON_OF_FRAME = re.compile(r"/(?:lib/)?python(3\.\d+)/")
_MODULE = re.compile(r"(\w+)(?:\.py|\.[\w-]+\.so|\.so|/)?")


def recorded() -> str:
    """Record what is installed here; returns the version of Python and the fingerprint of the packages."""
    names = sorted({name for folder in _folders() for name in _names(folder)})
    text = "\n".join(names)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    path = _path(digest)
    with contextlib.suppress(OSError, StateStoreError):  # it only adds to a message
        if not os.path.exists(path):
            make_private_dir(os.path.dirname(path))
            partial = f"{path}.{os.getpid()}.new"
            with open(partial, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            os.replace(partial, path)
    return "{}.{}.{} {}".format(*sys.version_info[:3], digest)


def _folders() -> list[str]:
    """Return the folders of packages of this Python, and of the environment that is active in the shell."""
    active = os.environ.get("VIRTUAL_ENV", "")
    folders = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    return folders + (glob.glob(f"{glob.escape(active)}/lib/python3*/site-packages") if active else [])


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(("_", "."))]
    except OSError:
        return []


def _path(digest: str) -> str:
    return os.path.join(state_dir(), "installed", digest)


def difference(record: str, lines: list[str]) -> str:
    """Say how the Python of a job differs from that where it was submitted; "" if nothing is known to.

    Args:
        record: what `recorded` returned.
        lines: what the job wrote when it failed.
    """
    version, _, digest = record.partition(" ")
    text = "\n".join(lines)
    missing, frame = _MISSING.search(text), _PYTHON_OF_FRAME.search(text)
    parts = []
    if frame and frame[1] != ".".join(version.split(".")[:2]):
        parts.append(f"It was submitted from Python {version}, and runs with Python {frame[1]}.")
    package = _installed(digest, missing[1].partition(".")[0]) if missing else ""
    if package:
        parts.append(f"It was submitted from an environment (Python {version}) that has {package}.")
    return " ".join(parts)


def _installed(digest: str, module: str) -> str:
    """Return what was installed with a module, with its version if its name tells; "" if nothing was."""
    try:
        with open(_path(digest), encoding="utf-8", errors="surrogateescape") as file:
            names = file.read().split("\n")
    except OSError:
        return ""
    for name in names:
        distribution, dash, version = name.removesuffix(".dist-info").partition("-")
        if dash and name.endswith(".dist-info") and distribution.lower() == module.lower():
            return f"{module} {version}"
    return module if any(module == match[1] for name in names if (match := _MODULE.fullmatch(name))) else ""

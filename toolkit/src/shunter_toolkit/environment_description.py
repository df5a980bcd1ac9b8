"""What a Python environment consists of, before it is built, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError
from .input_config import parse_object

#: The variable that carries an environment's description, as JSON.
VARIABLE = "SHUNTER_ENVIRONMENT"
PACKAGES, REQUIREMENTS, SCRIPT, PROJECT = "packages", "requirements", "script", "project"
#: The kinds whose locks only uv can read.
OF_UV = (SCRIPT, PROJECT)
#: The variable of uv that chooses the accelerator for which packages are installed.
ACCELERATOR = "UV_TORCH_BACKEND"


@dataclass
class Description:
    """What an environment consists of, before it is built.

    Args:
        kind: ``packages`` (a list), ``requirements`` (files for pip), ``script`` (a header with a lock or
            uv's settings) or ``project`` (``pyproject.toml`` and ``uv.lock``).
        source: what it was read from, for messages: ``requirements.txt``, ``the header of train.py``.
        packages: requirements as pip and uv read them.
        requires_python: the versions of Python that it needs, such as ``>=3.11``; "" for the job's own.
        files: the files it is made from, by path relative to the code, each with its SHA-256. The first one
            is the requirements file, or the lock.
        local: the folders and files of the submitting machine that requirements name, by absolute path, each
            with a SHA-256 of what is installed. Folders are linked (``-e``): what says how they are built
            counts.
        header: the header of a script, as comments.
        uv: uv's settings in that header.
        store: the folder that holds it; "" for the default one of the machine that builds it.
        pointer: the path of its ``NAME.json`` if it was built before the job started.
    """

    kind: str
    source: str
    packages: list[str] = field(default_factory=list)
    requires_python: str = ""
    files: dict[str, str] = field(default_factory=dict)
    local: dict[str, str] = field(default_factory=dict)
    header: str = ""
    uv: dict[str, Any] = field(default_factory=dict)
    store: str = ""
    pointer: str = ""

    @classmethod
    def parse(cls, text: str) -> Description:
        """Read a description from JSON.

        Raises:
            ConfigError: it is not one.
        """
        document = parse_object(text, f"Cannot read the environment in {VARIABLE}")
        try:
            return cls(**document)
        except TypeError as error:
            raise ConfigError(f"Cannot read the environment in {VARIABLE}: {error}") from None

    def json(self) -> dict[str, Any]:
        """Return it as JSON values, without what is empty."""
        return {name: value for name, value in vars(self).items() if value}

    @property
    def digest(self) -> str:
        """The digest of what is to be installed, wherever that is."""
        parts = [self.kind, sorted(self.packages), self.requires_python, sorted(self.files.items()), self.uv]
        if self.local:
            parts.append(self.local)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def name(self, python: str) -> str:
        """Return its fingerprint on this machine.

        Args:
            python: the version of the Python that it is made for, such as ``3.11.7``. It does not count if
                the description says itself which Python it needs.
        """
        minor = ".".join(python.split(".")[:2])
        by_uv = self.kind in OF_UV or self.requires_python
        accelerator = os.environ.get(ACCELERATOR, "")
        parts = [self.digest, "" if by_uv else minor, sys.platform, os.uname().machine, _libc(), accelerator]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""

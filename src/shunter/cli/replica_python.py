"""What commands run in a replica: a file of this folder, by whatever Python the replica has."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from pathlib import Path

from shunter.runner import Runner

_SHELL = (
    "text=$1; shift; for python in python3 python; do command -v $python >/dev/null && "
    'exec $python -IS -c "$text" "$@"; done; echo "shunter: this replica has no Python" >&2; exit 127'
)


def python_words(file: str, *args: str) -> list[str]:
    """Return the command that runs a file of this folder in a replica, with arguments."""
    source = Path(__file__).with_name(file).read_bytes()
    # on its way it passes shells, ssh and queues, which treat line ends and quotes differently; Grid Engine
    # takes no word of more than 4096 characters
    packed = base64.b64encode(zlib.compress(source, 9)).decode()
    text = f"exec(__import__('zlib').decompress(__import__('base64').b64decode('{packed}')))"
    return ["sh", "-c", _SHELL, "sh", text, *args]


def is_dev_job(runner: Runner, handle: str) -> bool:
    """Tell whether a job of the history keeps itself for interactive work."""
    record = runner.history.find(handle)
    return record is not None and record.is_dev_job


def session_words(command: Sequence[str]) -> list[str]:
    """Return what runs a command, or a shell, in a dev job as its script would run it."""
    return python_words("dev_session.py", *command)

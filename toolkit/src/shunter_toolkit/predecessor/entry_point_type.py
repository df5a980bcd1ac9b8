"""What kind an entry point is, under the predecessors' names."""

from __future__ import annotations

import enum

from .. import script_command


class _EntryPointType(enum.Enum):
    PYTHON_PACKAGE = script_command.PYTHON_PACKAGE
    PYTHON_PROGRAM = script_command.PYTHON_PROGRAM
    COMMAND = script_command.COMMAND


PYTHON_PACKAGE = _EntryPointType.PYTHON_PACKAGE
PYTHON_PROGRAM = _EntryPointType.PYTHON_PROGRAM
COMMAND = _EntryPointType.COMMAND


def get(path: str, name: str) -> _EntryPointType:
    """The kind of the entry point ``name`` in the folder ``path``."""
    return _EntryPointType(script_command.kind_of(path, name))

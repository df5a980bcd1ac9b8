"""Lines in which a user's regular expression matches."""

from __future__ import annotations

import re

#: A carriage return ends a line too (a progress bar draws over it), unless a line feed follows.
LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r(?!\n|\Z)|\r\Z|\Z)")


class LineSearch:
    """Finds the lines of blocks in which a valid expression matches somewhere. Threads may share it."""

    def __init__(self, regex: str) -> None:
        self._pattern = re.compile(regex)

    def select(self, block: bytes) -> bytes:
        """Return the lines in which the expression matches, their ends included."""
        return b"".join(line for line in LINE.findall(block) if line and self._is_found(line))

    def _is_found(self, line: bytes) -> bool:
        return self._pattern.search(line.decode("utf-8", "replace").rstrip("\r\n")) is not None

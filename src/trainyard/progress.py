"""How something that takes time tells how far it is."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object


class Progress(Protocol):
    """Is told how far something is. May be called from several threads."""

    def step(self, text: str) -> None:
        """Begin something: "hashing 5,000 files"."""

    def advance(self, label: str, done: int, total: int) -> None:
        """Tell that ``done`` of ``total`` bytes of something are through; a ``total`` of 0 is not known."""

    def output(self, line: str) -> None:
        """Pass on a line of a program's output, such as a build's."""

    def done(self, text: str) -> None:
        """Tell what came of it: "pushed repo@sha256:...: 1.2 MB"."""


class Silent:
    """A `Progress` that tells nobody."""

    def step(self, text: str) -> None:
        """Say nothing."""

    def advance(self, label: str, done: int, total: int) -> None:
        """Say nothing."""

    def output(self, line: str) -> None:
        """Say nothing."""

    def done(self, text: str) -> None:
        """Say nothing."""

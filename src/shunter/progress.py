"""The interface through which long operations report their progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of an operation. May be called from several threads."""

    def step(self, text: str) -> None:
        """Begin something: "hashing 5,000 files"."""

    def advance(self, label: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` bytes have been handled; a ``total`` of 0 means unknown."""

    def output(self, line: str) -> None:
        """Pass on a line of a program's output, such as a build's."""

    def done(self, text: str) -> None:
        """Report a result: "pushed repo@sha256:...: 1.2 MB"."""


class Silent:
    """A `Progress` that shows nothing."""

    def step(self, text: str) -> None:
        """Say nothing."""

    def advance(self, label: str, done: int, total: int) -> None:
        """Say nothing."""

    def output(self, line: str) -> None:
        """Say nothing."""

    def done(self, text: str) -> None:
        """Say nothing."""

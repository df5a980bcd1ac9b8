"""Keeps secrets out of what the toolkit prints and writes.

These are what `secret_rules` finds, and the values of the job's secrets wherever they occur.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .secret_rules import SecretFilter, is_secret_name

__all__ = ["MASK", "Masker", "is_secret_name"]

MASK = "******"
_SHORTEST_VALUE = 6  # shorter values are masked next to their names, but not searched for in text


class Masker(SecretFilter):
    """Replaces secrets by ``******``. Made from the job's environment, hyperparameters and arguments."""

    def __init__(self, *sources: Mapping[str, Any] | Sequence[str]) -> None:
        known: dict[str, str] = {}

        def collect(name: str, secret: str) -> str:
            forms = (secret, secret.encode("unicode_escape").decode("ascii"))
            known.update((form, "") for form in forms if len(form) >= _SHORTEST_VALUE)
            return MASK

        collector = SecretFilter(collect)
        for source in (os.environ, *sources):
            collector.json(dict(source) if hasattr(source, "keys") else source)
        super().__init__(lambda name, secret: MASK, known)

    def variable(self, name: str, value: str) -> str:
        """The value of a variable as it may be shown."""
        return MASK if value and is_secret_name(name) else self.text(value)

    def command(self, words: Sequence[str]) -> str:
        """A command line as it may be shown."""
        return " ".join(word if word and not word.isspace() else repr(word) for word in self.words(words))

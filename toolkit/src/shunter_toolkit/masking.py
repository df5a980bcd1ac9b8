"""Keeps secrets out of what the toolkit prints and writes.

These are what `secret_rules` finds, and the values of the job's secrets wherever they occur.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .secret_rules import SecretFilter, is_secret_name, secrets_in

__all__ = ["MASK", "Masker", "is_secret_name"]

MASK = "******"
_SHORTEST_VALUE = 6  # shorter values are masked next to their names, but not searched for in text


class Masker(SecretFilter):
    """Replaces secrets by ``******``. Made from the job's environment, hyperparameters and arguments."""

    def __init__(self, *sources: Mapping[str, Any] | Sequence[str]) -> None:
        super().__init__(lambda name, secret: MASK)
        self.add(os.environ, *sources)

    def add(self, *sources: Mapping[str, Any] | Sequence[str]) -> None:
        """Mask the secrets in these too."""
        given = (dict(source) if hasattr(source, "keys") else source for source in sources)
        secrets = secrets_in(*given)
        secrets |= {secret.encode("unicode_escape").decode("ascii") for secret in secrets}
        self._known.update((secret, "") for secret in secrets if len(secret) >= _SHORTEST_VALUE)

    def variable(self, name: str, value: str) -> str:
        """The value of a variable as it may be shown."""
        return MASK if value and is_secret_name(name) else self.text(value)

    def command(self, words: Sequence[str]) -> str:
        """A command line as it may be shown."""
        return " ".join(word if word and not word.isspace() else repr(word) for word in self.words(words))

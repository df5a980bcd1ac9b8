"""Keeps secrets out of what the toolkit prints and writes.

These are what `secret_rules` finds, and the values of the job's secrets wherever they occur.
"""

from __future__ import annotations

import json
import os

from .secret_rules import SecretFilter, is_secret_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["MASK", "Masker", "is_secret_name"]

MASK = "******"
_SHORTEST_VALUE = 6  # shorter values are masked next to their names, but not searched for in text


class Masker:
    """Replaces secrets in text. Made from the job's environment, hyperparameters and arguments."""

    def __init__(self, *sources: Mapping[str, Any] | Sequence[str]) -> None:
        values: set[str] = set()

        def collect(name: str, secret: str) -> str:
            values.update((secret, secret.encode("unicode_escape").decode("ascii")))
            return MASK

        collector = SecretFilter(collect)
        for source in (os.environ, *sources):
            collector.json(dict(source) if hasattr(source, "keys") else source)
        known = {value: "" for value in values if len(value) >= _SHORTEST_VALUE}
        self._filter = SecretFilter(_mask, known)

    def text(self, text: str) -> str:
        """The text with every secret in it replaced by ``******``."""
        return self._filter.text(text)

    def json(self, value: Any) -> Any:
        """Nested JSON values with every secret in them replaced."""
        return self._filter.json(value)

    def variable(self, name: str, value: str) -> str:
        """The value of a variable as it may be shown."""
        if value and is_secret_name(name):
            return MASK
        if value.startswith(("{", "[")):
            value = self._structured(value)
        return self.text(value)

    def command(self, words: Sequence[str]) -> str:
        """A command line as it may be shown."""
        shown = self._filter.words(words)
        return " ".join(word if word and not word.isspace() else repr(word) for word in shown)

    def _structured(self, text: str) -> str:
        """JSON with the secrets masked that its structure shows; any other text unchanged."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        masked = self._filter.json(value)
        return text if masked == value else json.dumps(masked, separators=(",", ":"), sort_keys=True)


def _mask(name: str, secret: str) -> str:
    return MASK

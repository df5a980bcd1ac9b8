"""Keeps secrets out of what the toolkit prints and writes: by the names that hold them, and by their
values.
"""

from __future__ import annotations

import json
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MASK = "******"
_SHORTEST_VALUE = 6  # shorter values are masked where their name is shown, but not searched for in text
_SECRET_WORDS = frozenset(
    [
        "password",
        "passwd",
        "passphrase",
        "pass",
        "pwd",
        "secret",
        "secrets",
        "token",
        "credential",
        "credentials",
        "auth",
        "apikey",
        "sas",
    ]
)
_KEY_OWNERS = frozenset(("api", "access", "private", "secret", "account"))
# Tokens of text, not of access; and the shell's working directory.
_HARMLESS_WORDS = frozenset(
    ("eos", "bos", "pad", "unk", "mask", "sep", "cls", "max", "min", "num", "id", "type", "len")
)
_HARMLESS_NAMES = frozenset(("pwd", "oldpwd"))


def is_secret_name(name: str) -> bool:
    """Whether a variable or hyperparameter of this name holds a secret: ``HF_TOKEN``, ``db-password``,
    ``api_key``.
    """
    lower = name.lower()
    words = lower.replace("-", "_").replace(".", "_").split("_")
    if lower in _HARMLESS_NAMES or ("token" in words and not _HARMLESS_WORDS.isdisjoint(words)):
        return False
    keys = "key" in words and not _KEY_OWNERS.isdisjoint(words)
    return keys or not _SECRET_WORDS.isdisjoint(words)


class Masker:
    """Replaces secret values in text. Made once per job from its environment and hyperparameters."""

    def __init__(self, *sources: Mapping[str, Any]) -> None:
        values: set[str] = set()
        for source in (os.environ, *sources):
            _collect(source, values)
        # The longest first: a secret that contains another must not leave its tail behind.
        ordered = sorted((v for v in values if len(v) >= _SHORTEST_VALUE), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._short = len(ordered) < len(values)

    def text(self, text: str) -> str:
        """The text with every known secret, and every login in a URL, replaced by ``******``."""
        if "://" in text and "@" in text:
            text = re.sub(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^\s/@\"']+@", rf"\1{MASK}@", text)
        return self._pattern.sub(MASK, text) if self._pattern else text

    def variable(self, name: str, value: str) -> str:
        """The value of a variable as it may be shown."""
        if value and is_secret_name(name):
            return MASK
        if self._short and value.startswith(("{", "[")):
            value = _without_secrets(value)
        return self.text(value)

    def command(self, words: Sequence[str]) -> str:
        """A command line as it may be shown."""
        shown = (word if word and not word.isspace() else repr(word) for word in _arguments(words))
        return self.text(" ".join(shown))


def _without_secrets(text: str) -> str:
    """JSON with the values of secret names masked, for values too short to be searched for."""
    try:
        return json.dumps(_masked(json.loads(text)), separators=(",", ":"), sort_keys=True)
    except ValueError:
        return text


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: MASK if v and is_secret_name(str(k)) else _masked(v) for k, v in value.items()}
    if isinstance(value, list):
        return _arguments(value)
    return value


def _arguments(words: Sequence[Any]) -> list[Any]:
    """Arguments with the values of options of secret names masked."""
    shown: list[Any] = []
    option = ""
    for word in words:
        shown.append(MASK if word and is_secret_name(option) else _pairs(word))
        option = word.lstrip("-") if isinstance(word, str) and word.startswith("-") else ""
    return shown


def _pairs(word: Any) -> Any:
    """An argument such as ``a=1,token=x``, the form that a dictionary takes, with secret values masked."""
    if not isinstance(word, str) or "=" not in word:
        return word
    split = (part.partition("=") for part in word.split(","))
    return ",".join(
        f"{n}={MASK}" if value and is_secret_name(n.lstrip("-")) else n + eq + value for n, eq, value in split
    )


def _collect(source: Mapping[str, Any], values: set[str]) -> None:
    for name, value in source.items():
        if isinstance(value, dict):
            _collect(value, values)
        elif value and is_secret_name(str(name)):
            text = str(value)
            values.update((text, text.encode("unicode_escape").decode("ascii")))

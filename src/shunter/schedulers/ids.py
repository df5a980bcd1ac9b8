"""Ids of jobs: the name, and a suffix that makes it unique."""

from __future__ import annotations

import os
import re

# No vowels, so that no words are formed; no letters that look alike. 27**10 > 2**47.
ALPHABET = "23456789bcdfghjkmnpqrtvwxyz"
SUFFIX_LENGTH = 10
MAX_NAME_LENGTH = 48


def random_id(length: int = SUFFIX_LENGTH) -> str:
    """Return random characters that are safe in the names of every scheduler, beginning with a letter."""
    letters = ALPHABET[8:]
    data = os.urandom(length)
    return letters[data[0] % len(letters)] + "".join(ALPHABET[byte % len(ALPHABET)] for byte in data[1:])


def normalize(name: str) -> str:
    """Make a name lower case, of letters, digits and single hyphens, and not too long."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return text[:MAX_NAME_LENGTH].rstrip("-") or "app"


def make_unique(name: str, string_length: int = 0) -> str:
    """Return ``name-suffix``, with a random suffix of this length (the default if it is 0)."""
    return f"{normalize(name)}-{random_id(string_length or SUFFIX_LENGTH)}"


def is_made_here(text: str) -> bool:
    """Tell whether a name looks like one of `make_unique`."""
    return re.fullmatch(rf"[a-z0-9][a-z0-9-]*-[{ALPHABET}]{{{SUFFIX_LENGTH}}}", text) is not None

"""Names from texts (``torchx.util.strings``)."""

from __future__ import annotations

import re


def normalize_str(data: str) -> str:
    """Return a name in lower case, of letters, digits and ``-``, with no ``-`` in front."""
    return re.sub(r"[^a-z0-9\-]", "", data.lower()).lstrip("-")

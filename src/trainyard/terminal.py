"""Text of others, made fit for a terminal."""

from __future__ import annotations

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def clean(text: str) -> str:
    """Show control characters as escapes."""
    return text if text.isprintable() else text.translate(_CONTROLS)

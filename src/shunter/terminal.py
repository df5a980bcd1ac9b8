"""Text for a terminal: foreign text made safe, colours, durations.

Everything that the command line prints, except lines of jobs' logs, passes `render`, so that foreign escape
sequences never reach a terminal. `coloured` inserts marks that only `render` turns into escape sequences.
"""

from __future__ import annotations

#: Around the number of a colour. Unicode reserves these two for internal use.
_BEGIN, _END = "\ufdd0", "\ufdd1"
#: Reset, bold, faint and colours.
_COLOURS = ("", "0", "1", "2", *map(str, (*range(31, 37), *range(91, 97))))


class _Escapes(dict[int, str]):
    """Replacements for `str.translate`, computed on first use; the characters in `kept` stay."""

    def __init__(self, kept: str = "") -> None:
        super().__init__()
        self._kept = kept

    def __missing__(self, code: int) -> str:
        shown = self[code] = _escape(code) if chr(code) not in self._kept else chr(code)
        return shown


#: Characters that reorder or break a line, or are invisible; not joiners and marks of scripts.
_HIDDEN = frozenset(
    (
        *(0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, 0xFEFF, ord(_BEGIN), ord(_END)),
        *range(0x2028, 0x202F),
        *range(0x2060, 0x2070),
        *range(0xFFF9, 0xFFFC),
    )
)


def _escape(code: int) -> str:
    if code < 32 or 127 <= code < 160:
        return f"\\x{code:02x}"
    if code in _HIDDEN:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}" if 0xE0000 <= code < 0xE0080 else chr(code)


_CONTROLS, _CONTROLS_OF_LINES = _Escapes(), _Escapes(kept="\n\t")


def clean(text: str) -> str:
    """Show control characters, ends of lines among them, as escapes."""
    return text if text.isprintable() else text.translate(_CONTROLS)


def clean_lines(text: str) -> str:
    """Show control characters as escapes; ends of lines and tabs stay."""
    return text if text.isprintable() else text.translate(_CONTROLS_OF_LINES)


def coloured(text: str, colour: str) -> str:
    """Return a text that `render` colours; the text may be foreign."""
    return f"{_BEGIN}{colour}{_END}{text}{_BEGIN}0{_END}"


def render(text: str) -> str:
    """Return lines for a terminal: colours as escape sequences, no other control characters."""
    if _BEGIN not in text:
        return clean_lines(text)
    first, *parts = text.split(_BEGIN)
    shown = [clean_lines(first)]
    for part in parts:
        colour, end, rest = part.partition(_END)
        if end and colour in _COLOURS:
            shown.append(f"\x1b[{colour}m{clean_lines(rest)}")
        else:
            shown.append(clean_lines(_BEGIN + part))
    return "".join(shown)


def format_duration(seconds: float) -> str:
    """Return ``0.3 s``, ``12 s``, ``4:05 min``, ``3:00:12 h`` or ``2 d 3 h``."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = int(seconds + 0.5)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if whole < 60:
        return f"{whole} s"
    if hours == 0:
        return f"{minutes}:{rest:02d} min"
    if hours < 24:
        return f"{hours}:{minutes:02d}:{rest:02d} h"
    return f"{hours // 24} d {hours % 24} h"

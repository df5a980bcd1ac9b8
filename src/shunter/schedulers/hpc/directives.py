"""The lines of a native script that are options for the queue, such as ``#$ -q long``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shunter.errors import ConfigError


class Directives:
    """Options for the queue, in the order in which they were added.

    Args:
        mark: what such lines begin with: ``#$``, ``#BSUB``.
        omit: the beginnings of options that are left out, such as ``-l h_rt``.
    """

    def __init__(self, mark: str, omit: Sequence[str] | None = None) -> None:
        self._mark = mark
        self._omit = {" ".join(text.split()): False for text in omit or ()}
        self._lines: list[str] = []

    def add(self, flag: str, value: object = None) -> None:
        """Add an option, unless its value is None or it is left out."""
        if value is None:
            return
        text = f"{flag} {value}".rstrip()
        if "\n" in text:
            raise ConfigError(f"the value of {flag} has a line break: {value!r}")
        for start in self._omit:
            if text == start or text.startswith((f"{start} ", f"{start}=")) or _same_key(text, start):
                self._omit[start] = True
                return
        self._lines.append(text)

    def add_native(self, lines: Iterable[str] | None) -> None:
        """Add the user's own lines; the mark may be there or not."""
        for line in lines or ():
            text = line.strip().removeprefix(self._mark).strip()
            if "\n" in text:
                raise ConfigError(
                    f"a line of native has a line break: {line!r}", hint="Give each option separately."
                )
            self._lines.append(text)

    def lines(self) -> list[str]:
        """Return the lines of the script."""
        return [f"{self._mark} {text}" for text in self._lines]

    def warnings(self) -> list[str]:
        """Return warnings about entries of ``omit`` that match no option."""
        return [f"omit: no option begins with {start!r}" for start, fits in self._omit.items() if not fits]


def _same_key(text: str, start: str) -> bool:
    """Tell whether ``-R rusage`` stands for ``-R "rusage[mem=1]"``."""
    plain = text.replace('"', "").replace("'", "")
    return plain.startswith(start) and not plain[len(start) : len(start) + 1].isalnum()

"""The lines of a native script that are options for the queue, such as ``#$ -q long``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shunter.errors import ConfigError

#: Options with their values, in order. One without a value has "", one that is not asked for has None.
Options = Iterable[tuple[str, object]]


def directives(
    mark: str, options: Options, omit: Sequence[str] | None = None, native: Sequence[str] | None = None
) -> tuple[list[str], list[str]]:
    """Return the lines of a script, and warnings about what cannot be left out.

    Args:
        mark: what the lines begin with: ``#$``, ``#BSUB``.
        options: our options.
        omit: the beginnings of options that are left out, such as ``-l h_rt`` or ``-R rusage``.
        native: the user's own lines; the mark may be there or not.

    Raises:
        ConfigError: a line has a line break, so it would be two.
    """
    ours = [f"{flag} {value}".rstrip() for flag, value in options if value is not None]
    starts = {" ".join(text.split()): False for text in omit or ()}
    kept = []
    for text in ours:
        fitting = [start for start in starts if _begins(text, start)]
        starts.update(dict.fromkeys(fitting, True))
        kept += [] if fitting else [text]
    lines = [*kept, *(line.strip().removeprefix(mark).strip() for line in native or ())]
    broken = next((line for line in lines if "\n" in line), None)
    if broken is not None:
        raise ConfigError(f"an option has a line break: {broken!r}", hint="Give each option separately.")
    warnings = [f"omit: no option begins with {start!r}" for start, fits in starts.items() if not fits]
    return [f"{mark} {line}" for line in lines], warnings


def _begins(text: str, start: str) -> bool:
    """Tell whether an option begins with these words; ``-R rusage`` stands for ``-R "rusage[mem=1]"``."""
    plain = text.replace('"', "").replace("'", "")
    return plain.startswith(start) and not plain[len(start) : len(start) + 1].isalnum()

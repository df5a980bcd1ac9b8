"""A shell on a terminal of its own, that runs one command after the other."""

from __future__ import annotations

import os
import re
import subprocess
import termios
from collections.abc import Mapping
from pathlib import Path

LINES, COLUMNS = 50, 120

# Reads commands, each ended by NUL, from the file descriptor $1; tells the status of each between two \x1e.
_LOOP = r"""
last=0
while IFS= read -r -d '' -u "$1" step; do
    (exit "$last")
    eval "$step"
    last=$?
    printf '\036%s\036' "$last"
done
"""
_END = re.compile(rb"\x1e(\d+)\x1e")
_ESCAPE = re.compile(r"\x1b\[([\d;]*)([A-Za-z])")


class Terminal:
    """What stands before the reader: a terminal with a shell in it.

    Args:
        directory: where the shell begins.
        environ: its environment.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self._master, slave = os.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[1] &= ~termios.OPOST
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        termios.tcsetwinsize(slave, (LINES, COLUMNS))
        steps, self._steps = os.pipe()
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", _LOOP, "bash", str(steps)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=directory,
            env=dict(environ),
            pass_fds=[steps],
            start_new_session=True,
        )
        os.close(slave)
        os.close(steps)

    def run(self, command: str) -> tuple[int, list[str]]:
        """Run a command; returns its status and the lines that then stand on the terminal."""
        os.write(self._steps, command.encode() + b"\0")
        output = b""
        while (end := _END.search(output)) is None:
            try:
                chunk = os.read(self._master, 65536)
            except OSError:  # EIO: nobody has the other end any more
                chunk = b""
            assert chunk, f"the shell ended at {command!r}: {output.decode(errors='replace')}"
            output += chunk
        return int(end[1]), screen(output[: end.start()].decode(errors="replace"))

    def close(self) -> None:
        """End the shell."""
        os.close(self._steps)
        self._shell.wait()
        os.close(self._master)


def screen(output: str) -> list[str]:
    """Return the lines that stand on a terminal after this output, lines that were drawn over left out.

    Their colours are still there, as escape sequences.
    """
    lines = [""]
    position = 0
    for escape in [*_ESCAPE.finditer(output), None]:
        first, *others = output[position : escape.start() if escape else len(output)].split("\n")
        lines[-1] += first
        lines += others
        if escape is None:
            break
        position = escape.end()
        if escape[2] == "m":
            lines[-1] += escape[0]
        if escape[2] == "F":  # to the beginning of a line further up
            del lines[max(len(lines) - int(escape[1] or 1), 1) :]
            lines[-1] = ""
    shown = [line.split("\r")[-1] if not line.endswith("\r") else line[:-1] for line in lines]
    return shown[:-1] if shown and not shown[-1] else shown

"""Finds the cause of a failure in the last lines of stderr: the exception, its frames, its rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_HEAD = "Traceback (most recent call last):"
# mpirun --tag-output puts "[1,3]<stderr>:" before each piece that a rank writes, also within a line.
_MPI_TAG = re.compile(r"\[[^\]\s]*?\d+,(\d+)\]<std(?:out|err)>:")
_TORCH_TAG = re.compile(r"^\[(?:rank|default)(\d+)\]:\s?")
_FRAME = re.compile(r'^\s+File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_FINAL = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_ELASTIC = re.compile(r"^\s*(rank|exitcode|host)\s*:\s*(\S+)")
# How mpirun (prterun in Open MPI 5) reports the first rank that failed, between two rulers.
_MPI_REPORTS = (
    re.compile(r"Process name:\s+\S*,(?P<rank>\d+)\]\s*\n\s*Exit code:\s+(?P<exitcode>\d+)"),
    re.compile(
        r"noticed that process rank (?P<rank>\d+) with PID .*? exited on\s+signal (?P<signal>\d+)", re.S
    ),
    re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+) .*?errorcode (?P<exitcode>\d+)", re.S),
)
_MPI_BLOCK = re.compile(r"^-{60,}\n.*?^-{60,}\n?", re.S | re.M)
_SYNTAX = re.compile(r"^(?P<type>SyntaxError|IndentationError|TabError): (?P<message>.*)$")
_LAUNCHERS = ("ChildFailedError", "CalledProcessError")
MAX_FRAMES = 5


@dataclass
class Trace:
    """One traceback: exception type and message, the innermost frames, the rank if its lines name one."""

    kind: str
    message: str
    frames: list[dict[str, Any]]
    rank: int | None

    @property
    def short_kind(self) -> str:
        """The type without its module: ``torch.OutOfMemoryError`` -> ``OutOfMemoryError``."""
        return self.kind.rpartition(".")[2]

    def summary(self) -> str:
        """One line: ``ValueError: the message``."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


def find(text: str) -> Trace | None:
    """The traceback that tells why a run failed: the last one that is not a launcher's own report.

    Ranks that write at the same time mix their lines; each rank's lines are read as a separate stream.
    The rank that mpirun names comes first.
    """
    streams: dict[int | None, str] = {}
    for line in text.splitlines(keepends=True):
        for rank, piece in _pieces(line):
            streams[rank] = streams.get(rank, "") + piece
    found = [trace for rank, stream in streams.items() for trace in _traces(stream.splitlines(), rank)]
    own = [trace for trace in found if trace.short_kind not in _LAUNCHERS]
    named = mpi_failure(text).get("rank")
    blamed = [trace for trace in own if named is not None and trace.rank == int(named)]
    first_rank = [trace for trace in own if trace.rank is not None]
    best = blamed[-1:] or first_rank[:1] or own[-1:] or found[-1:]
    return best[0] if best else None


def mpi_failure(text: str) -> dict[str, str]:
    """The first failed rank in mpirun's own report: ``{"rank": "1"}`` with ``"exitcode"`` or ``"signal"``."""
    matches = (match for pattern in _MPI_REPORTS for match in [pattern.search(text)] if match)
    first = next(matches, None)
    return {} if first is None else first.groupdict()


def script_lines(text: str) -> list[str]:
    """The lines that the script wrote: without mpirun's report and its tags, of the rank that it names."""
    named = mpi_failure(text).get("rank")
    if named is None:
        return text.splitlines()
    pieces = [piece for line in _MPI_BLOCK.sub("", text).splitlines(keepends=True) for piece in _pieces(line)]
    of_rank = "".join(piece for rank, piece in pieces if rank == int(named))
    return (of_rank or "".join(piece for _, piece in pieces)).splitlines()


def _pieces(line: str) -> list[tuple[int | None, str]]:
    """(rank, text) of the pieces of a line; rank None where the line has no tag."""
    words = _MPI_TAG.split(line)  # text, rank, text, rank, text, ...
    pieces: list[tuple[int | None, str]] = [(None, words[0])] if words[0] else []
    pieces += [(int(words[i]), words[i + 1]) for i in range(1, len(words), 2)]
    if len(words) > 1 and not words[0] and words[2].startswith(" ") and not words[2].startswith("  "):
        pieces[0] = (pieces[0][0], words[2][1:])  # Open MPI 5 sets its tag off with a space
    if len(words) == 1:
        match = _TORCH_TAG.match(line)
        if match:
            return [(int(match.group(1)), line[match.end() :])]
    return pieces


def _traces(lines: list[str], rank: int | None) -> list[Trace]:
    heads = [i for i, line in enumerate(lines) if line.strip() == _HEAD]
    found = [trace for i in heads for trace in [_parse(lines[i + 1 :], rank)] if trace is not None]
    return found or _syntax_error(lines, rank)


def _syntax_error(lines: list[str], rank: int | None) -> list[Trace]:
    """Python prints no heading above an error in the script that it was given."""
    for i in range(len(lines) - 1, -1, -1):
        final = _SYNTAX.match(lines[i])
        places = [k for k in range(max(0, i - 4), i) if _FRAME.match(lines[k])]
        if final and places:
            return [trace for trace in [_parse(lines[places[-1] :], rank)] if trace is not None]
    return []


def _parse(lines: list[str], rank: int | None) -> Trace | None:
    frames: list[dict[str, Any]] = []
    for i, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame:
            code = lines[i + 1].strip() if i + 1 < len(lines) and not _FRAME.match(lines[i + 1]) else ""
            function = frame.group("function") or "<module>"
            number = int(frame.group("line"))
            frames.append({"file": frame.group("file"), "line": number, "function": function, "code": code})
        elif line and not line[0].isspace():
            final = _FINAL.match(line.strip())
            if final is None:
                return None
            message = [final.group("message") or "", *_rest_of_message(lines[i + 1 :])]
            return Trace(final.group("type"), "\n".join(message).strip(), frames[-MAX_FRAMES:], rank)
    return None


def _rest_of_message(lines: list[str]) -> list[str]:
    """Further lines of a message, up to an empty line or the next heading."""
    rest: list[str] = []
    for line in lines[:3]:
        if not line.strip() or line.startswith(("Traceback", "-", "*", "=", "[", "During", "The above")):
            break
        rest.append(line)
    return rest


def elastic_failure(text: str) -> dict[str, str]:
    """The first failed rank in torchrun's own report: ``{"rank": "1", "exitcode": "3", "host": "h2"}``."""
    _, found, report = text.rpartition("Root Cause (first observed failure):")
    if not found:
        return {}
    matches = (_ELASTIC.match(line) for line in report.splitlines()[:8])
    return {match.group(1): match.group(2) for match in matches if match}

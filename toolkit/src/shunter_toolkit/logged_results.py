"""Small results in a job's log, for schedulers that keep no files of a job that has ended.

At the end of the run the directories ``model``, ``output`` and ``checkpoints`` are packed, and written to
stdout as lines that begin with a mark and have a part each, in base64; the last one has the SHA-256 of the
whole. Readers of the log leave these lines out.

Where containers beside the job's have separate logs (Kubernetes), the lines of larger results go to
files, one for each of these containers; the last line goes to stdout. Of results that are too large,
checkpoints are left out first, then the model; the last line names them, and so does a warning.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

from . import archive, log
from .layout import Layout

#: The variable with the form by which `posted_results` sends them; it permits writing below its prefix.
FORM = "SHUNTER_RESULTS_SECRET"
#: Begins each line. What is before it on the line is the script's, whose last line may lack its end.
MARK = b"@shunter-results@ "
#: How large the packed results in stdout may be, and how large results may be before they are packed.
MOST_BYTES, MOST_UNPACKED = 1 << 20, 64 << 20
#: Bytes in a line: what the line has in base64 is written in one piece, also where others write to the same
#: pipe (PIPE_BUF is 4096).
LINE_BYTES = 2880
#: How many lines there can be in stdout, and in all.
MOST_LINES, MOST_NUMBER = MOST_BYTES // LINE_BYTES + 3, 99_999
#: Names the folder and the number of the files for larger results: ``FOLDER:COUNT``.
FILES = "SHUNTER_RESULT_FILES"
#: Lines in such a file: with what engines add, less than the 10 MiB at which the kubelet rotates a log.
FILE_LINES = 2560
FILE_BYTES = FILE_LINES * LINE_BYTES
#: How many results are put together at the same time: an attempt that was killed has written a part of one.
_MOST_GROUPS = 8
_KINDS = ("output", "model", "checkpoints")
_INTERNAL = "output/.failure.reserve"
_LINE = re.compile(
    rb"([0-9a-f]{12}) (?:(\d{1,5}) ([A-Za-z0-9+/=]*)"
    rb"|end (\d{1,5}) ([0-9a-f]{64})(?: without ([a-z,]+))?)\s*\Z"
)


class LoggedResults(NamedTuple):
    """Results in a log: packed, and the directories that were too large."""

    packed: bytes
    left_out: tuple[str, ...] = ()


def write(layout: Layout, descriptor: int = 1) -> None:
    """Write the results to stdout, or a line that says why not. Never raises."""
    try:
        folder, _, count = os.environ.get(FILES, "").rpartition(":")
        results = _packed(layout, max(MOST_BYTES, FILE_BYTES * int(count or 0)))
        if results is None:
            return
        packed = results.packed
        digest = hashlib.sha256(packed).hexdigest()
        parts = [packed[start : start + LINE_BYTES] for start in range(0, len(packed), LINE_BYTES)]
        lines = [
            b"%s%s %d %s\n" % (MARK, digest[:12].encode(), number, base64.b64encode(part))
            for number, part in enumerate(parts)
        ]
        if len(packed) <= MOST_BYTES:
            for line in lines:  # each in one piece
                _write(descriptor, line)
        else:
            for start in range(0, len(lines), FILE_LINES):
                with open(os.path.join(folder, str(start // FILE_LINES)), "wb") as file:
                    file.writelines(lines[start : start + FILE_LINES])
        without = f" without {','.join(results.left_out)}" if results.left_out else ""
        _write(descriptor, MARK + f"{digest[:12]} end {len(parts)} {digest}{without}\n".encode())
    except (OSError, ValueError) as error:
        log.warning(f"The results do not come back with the log: {error}")


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _packed(layout: Layout, most: int) -> LoggedResults | None:
    """Return the packed results, without directories that are too large; None if nothing is left."""
    entries = {name: _entries(layout, name) for name in _KINDS}
    kept = [name for name in entries if entries[name]]
    left_out: list[str] = []
    packed = b""
    while kept:
        chosen = [entry for name in kept for entry in entries[name]]
        size = sum(os.path.getsize(path) for _, path in chosen if not os.path.islink(path))
        packed = _pack(chosen, most) if size <= max(MOST_UNPACKED, 8 * most) else b""
        if packed:
            break
        left_out.append(kept.pop())
    if left_out:
        log.warning(
            f"Too large to come back with the log, which takes {most} bytes when they are packed: "
            f"{', '.join(left_out)}. Run the job with --output s3://BUCKET/PREFIX."
        )
    return LoggedResults(packed, tuple(left_out)) if packed else None


def result_entries(layout: Layout) -> list[tuple[str, str]]:
    """Return what a job leaves, as names in an archive and paths."""
    return [entry for name in _KINDS for entry in _entries(layout, name)]


def _entries(layout: Layout, name: str) -> list[tuple[str, str]]:
    """Return what a directory of results holds, by names in the archive; empty if it has no file."""
    entries = [(f"{name}/{path}", full) for path, full in archive.entries_of(os.path.join(layout.base, name))]
    entries = [(path, full) for path, full in entries if path != _INTERNAL]
    has_files = any(os.path.isfile(full) and not os.path.islink(full) for _, full in entries)
    return entries if has_files else []


def _pack(entries: list[tuple[str, str]], most: int) -> bytes:
    """Return entries as an archive; empty if it is too large."""
    with tempfile.TemporaryDirectory(prefix="shunter-") as folder:
        path = os.path.join(folder, "results")
        archive.pack(entries, path, keeps_times=True)
        if os.path.getsize(path) > most:
            return b""
        with open(path, "rb") as file:
            return file.read()


def without_results(data: bytes) -> bytes:
    """Return whole lines of a log without those that have results."""
    if MARK not in data:
        return data
    lines = []
    for line in data.splitlines(True):
        before, mark, _ = line.partition(MARK)
        if not mark:
            lines.append(line)
        elif before:
            lines.append(before + b"\n")
    return b"".join(lines)


def read(lines: Iterable[bytes]) -> LoggedResults | None:
    """Return the results of a log: the last that are complete; None if there are none."""
    parts: dict[bytes, dict[int, bytes]] = {}
    ends: dict[bytes, tuple[int, str, tuple[str, ...]]] = {}
    results = None
    for line in lines:
        match = _LINE.match(line.partition(MARK)[2])
        if match is None:
            continue
        key, number, text, count, digest, without = match.groups()
        if key not in parts and len(parts) == _MOST_GROUPS:  # lines that only look like ours
            oldest = next(iter(parts))
            del parts[oldest]
            ends.pop(oldest, None)
        own = parts.setdefault(key, {})
        if number is None:
            ends[key] = int(count), digest.decode(), tuple(without.decode().split(",") if without else ())
        elif int(number) < MOST_NUMBER and len(text) <= 2 * LINE_BYTES:
            try:
                own[int(number)] = base64.b64decode(text)
            except binascii.Error:
                continue
        length, expected, left_out = ends.get(key, (-1, "", ()))  # services do not always keep the order
        if len(own) == length and sorted(own) == list(range(length)):
            whole = b"".join(own[index] for index in range(length))
            if hashlib.sha256(whole).hexdigest() == expected:
                results = LoggedResults(whole, left_out)
    return results

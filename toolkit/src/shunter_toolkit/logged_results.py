"""Small results in a job's log, for schedulers that keep no files of a job that has ended.

At the end of the run the directories ``model``, ``output`` and ``checkpoints`` are packed, and written to
stdout as lines that begin with a mark and have a part each, in base64; the last one has the SHA-256 of the
whole. Readers of the log leave these lines out. Results that are too large stay where they are, which a line
says.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable

from . import archive, log
from .layout import Layout

#: The variable with the form by which `posted_results` sends them; whoever has it can write below its prefix.
FORM = "SHUNTER_RESULTS_SECRET"
#: Begins each line. What is before it on the line is the script's, whose last line may lack its end.
MARK = b"@shunter-results@ "
#: How large the packed results may be, and how large before they are packed.
MOST_BYTES, MOST_UNPACKED = 1 << 20, 64 << 20
#: Bytes in a line: what the line has in base64 is written in one piece, also where others write to the same
#: pipe (PIPE_BUF is 4096).
LINE_BYTES = 2880
#: Longest base64 in a line; before, lines had 9 KiB.
_LONGEST_TEXT = 16 << 10
#: How many lines there can be.
MOST_LINES = MOST_BYTES // LINE_BYTES + 3
#: How many results are put together at the same time: an attempt that was killed has written a part of one.
_MOST_GROUPS = 8
_INTERNAL = "output/.failure.reserve"
_LINE = re.compile(rb"([0-9a-f]{12}) (?:(\d{1,4}) ([A-Za-z0-9+/=]*)|end (\d{1,4}) ([0-9a-f]{64}))\s*\Z")


def write(layout: Layout, descriptor: int = 1) -> None:
    """Write the results to stdout, or a line that says why not. Never raises."""
    try:
        packed = _packed(layout)
        if packed is None:
            return
        digest = hashlib.sha256(packed).hexdigest()
        parts = [packed[start : start + LINE_BYTES] for start in range(0, len(packed), LINE_BYTES)]
        for number, part in enumerate(parts):
            _write(descriptor, b"%s %d %s" % (digest[:12].encode(), number, base64.b64encode(part)))
        _write(descriptor, f"{digest[:12]} end {len(parts)} {digest}".encode())
    except (OSError, ValueError) as error:
        log.warning(f"The results do not come back with the log: {error}")


def _write(descriptor: int, text: bytes) -> None:
    data = MARK + text + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def result_entries(layout: Layout) -> list[tuple[str, str]]:
    """Return what a job leaves, as names in an archive and paths."""
    entries = []
    for name in ("model", "output", "checkpoints"):
        folder = os.path.join(layout.base, name)
        entries += [(f"{name}/{path}", full) for path, full in archive.entries_of(folder)]
    return [(name, path) for name, path in entries if name != _INTERNAL]


def _packed(layout: Layout) -> bytes | None:
    """Return the packed results; None if there are none, or if they are too large."""
    entries = result_entries(layout)
    files = [path for _, path in entries if os.path.isfile(path) and not os.path.islink(path)]
    if not files:
        return None
    size = sum(map(os.path.getsize, files))
    if size <= MOST_UNPACKED:
        with tempfile.TemporaryDirectory(prefix="shunter-") as folder:
            path = os.path.join(folder, "results")
            archive.pack(entries, path, keeps_times=True)
            if os.path.getsize(path) <= MOST_BYTES:
                with open(path, "rb") as file:
                    return file.read()
    log.warning(
        f"The results ({size} bytes) are too large to come back with the log, which takes {MOST_BYTES} bytes "
        "when they are packed: run the job with --output s3://BUCKET/PREFIX."
    )
    return None


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


def read(lines: Iterable[bytes]) -> bytes | None:
    """Return the packed results of a log: the last that are complete; None if there are none."""
    parts: dict[bytes, dict[int, bytes]] = {}
    ends: dict[bytes, tuple[int, str]] = {}
    found: bytes | None = None
    for line in lines:
        match = _LINE.match(line.partition(MARK)[2])
        if match is None:
            continue
        key, number, text, count, digest = match.groups()
        if key not in parts and len(parts) == _MOST_GROUPS:  # lines that only look like ours
            oldest = next(iter(parts))
            del parts[oldest]
            ends.pop(oldest, None)
        own = parts.setdefault(key, {})
        if number is None:
            ends[key] = int(count), digest.decode()
        elif int(number) < MOST_LINES and len(text) <= _LONGEST_TEXT:
            try:
                own[int(number)] = base64.b64decode(text)
            except binascii.Error:
                continue
        length, expected = ends.get(key, (-1, ""))  # services do not always keep the order of lines
        if len(own) == length and sorted(own) == list(range(length)):
            whole = b"".join(own[index] for index in range(length))
            if hashlib.sha256(whole).hexdigest() == expected:
                found = whole
    return found

"""The program that copies a container's output on: ``python resume_log.py DOCKER NAME STDOUT [STDERR]``.

It follows ``docker logs``, which begins with the first line of all. What the log files have already is left
out, by comparing it: beside the container's output, a file holds what the command that wrote it has said of
the lost connection, so counting is not enough. It ends when the container does; how that ended it does not
know. A single file has the lines of both streams, in an order that may differ each time: lines are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import IO

#: How much is read and compared at once.
PIECE = 1 << 20
#: How long a failure takes at least, such as of a full disk: the program is started again until it succeeds.
FAILURE_SECONDS = 0.2
#: Beside a log: how much of the container's output it has, up to which place (JSON: taken, place).
SUFFIX = ".taken"


def command(docker: str, name: str, *paths: str) -> list[str]:
    """Return the command that runs this program; see `main`."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), docker, name, *paths]


def main(docker: str, name: str, *paths: str) -> int:
    """Copy the streams of a container to two files, or both to one; returns an exit code.

    First while it runs, and then what is left: a follower may miss the end of a log.
    """
    code = _copy(docker, ["--follow", name], paths) or _copy(docker, [name], paths)
    if code:
        time.sleep(FAILURE_SECONDS)
    return code


def _copy(docker: str, words: list[str], paths: tuple[str, ...]) -> int:
    following = subprocess.Popen(
        [docker, "logs", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if len(paths) > 1 else subprocess.STDOUT,
    )
    problems: list[OSError] = []

    def copy(stream: IO[bytes] | None, path: str) -> None:
        assert stream is not None
        try:
            (copy_rest if len(paths) > 1 else copy_missing_lines)(stream, path)
        except OSError as error:
            problems.append(error)
            following.kill()

    streams = zip((following.stdout, following.stderr), paths, strict=False)
    copiers = [threading.Thread(target=copy, args=pair) for pair in streams]
    for copier in copiers:
        copier.start()
    for copier in copiers:
        copier.join()
    return following.wait() or bool(problems)


def copy_missing_lines(stream: IO[bytes], path: str) -> None:
    """Append to a file the lines of a stream that it does not have, each as often as they are missing."""
    with open(path, "rb") as file:
        present = Counter(map(hash, file))
    with open(path, "a+b", buffering=0) as log:
        size = log.tell()
        if size and os.pread(log.fileno(), 1, size - 1) != b"\n":
            log.write(b"\n")
        for line in stream:
            if present[hash(line)] > 0:
                present[hash(line)] -= 1
            else:
                while line:
                    line = line[log.write(line) :]


def copy_rest(stream: IO[bytes], path: str) -> None:
    """Append to a file what a stream has beyond the part that the file has already."""
    taken, place = _read_taken(path)
    _skip(stream, taken)
    same, rest = _compare(stream, path, place)
    log = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(log).st_size
        if size > place + same and os.pread(log, 1, size - 1) != b"\n":
            size += os.write(log, b"\n")  # end the line that the lost command has written
        _write_taken(path, taken + same, size)
        while rest or (rest := os.read(stream.fileno(), PIECE)):
            rest = rest[os.write(log, rest) :]
    finally:
        os.close(log)


def _compare(stream: IO[bytes], path: str, place: int) -> tuple[int, bytes]:
    """Compare a stream with a file from a place on.

    Returns:
        how many bytes are the same, to the end of a line unless the whole rest of the file is, and what was
        read of the stream beyond them.
    """
    same, line = 0, b""  # `line`: what is the same after the last end of a line
    with open(path, "rb") as file:
        file.seek(place)
        end = os.fstat(file.fileno()).st_size - place
        while same + len(line) < end:
            piece = os.read(stream.fileno(), min(PIECE, end - same - len(line)))
            known = file.read(len(piece))
            if not piece or piece != known:
                matched = line + piece[: _count_common(piece, known)]
                end_of_line = matched.rfind(b"\n") + 1
                return same + end_of_line, (line + piece)[end_of_line:]
            whole, separator, rest = piece.rpartition(b"\n")
            if separator:
                same, line = same + len(line) + len(whole) + 1, rest
            else:
                line += rest
    return same + len(line), b""


def _skip(stream: IO[bytes], count: int) -> None:
    while count > 0 and (piece := os.read(stream.fileno(), min(PIECE, count))):
        count -= len(piece)


def _count_common(one: bytes, other: bytes) -> int:
    """Return how many bytes at the beginning are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _read_taken(path: str) -> tuple[int, int]:
    try:
        with open(path + SUFFIX, encoding="ascii") as file:
            taken, place = json.load(file)
            return int(taken), int(place)
    except (OSError, ValueError):
        return 0, 0


def _write_taken(path: str, taken: int, place: int) -> None:
    partial = f"{path}{SUFFIX}.new"
    with open(partial, "w", encoding="ascii") as file:
        json.dump([taken, place], file)
    os.replace(partial, path + SUFFIX)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

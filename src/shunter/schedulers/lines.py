"""Log lines: splitting blocks of bytes into lines, merging several replicas, checking queries."""

from __future__ import annotations

import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby, islice

from shunter.errors import UsageError
from shunter.schedulers.responses import LogBlock, LogQuery, Stream

QUEUED_BLOCKS = 256
READ_SIZE = 256 << 10
#: A carriage return ends a line too (a progress bar draws over it), unless a line feed follows.
LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r(?!\n|\Z)|\r\Z|\Z)")
#: An expression that stands for itself.
_LITERAL = re.compile(r"[\w \"'#%&,/:;<=>@`~!-]*", re.ASCII)


class LineSearch:
    """Finds the lines of blocks in which an expression matches somewhere. Threads may share it.

    Raises:
        UsageError: the expression is not valid.
    """

    def __init__(self, regex: str) -> None:
        self._search = compile_regex(regex).search
        self._literal = regex.encode() if _LITERAL.fullmatch(regex) else b""

    def select(self, block: bytes) -> bytes:
        """Return the lines in which the expression matches, their ends included."""
        if self._literal not in block:  # most blocks of a large log: need not be cut into lines
            return b""
        return b"".join(
            line for line in iter_lines(block) if self._search(line.decode("utf-8", "replace").rstrip("\r\n"))
        )


def compile_regex(regex: str) -> re.Pattern[str]:
    """Compile a user's pattern.

    Raises:
        UsageError: it is not a valid regular expression.
    """
    try:
        return re.compile(regex)
    except re.error as error:
        raise UsageError(f"{regex!r} is not a regular expression: {error}") from None


def check_combined(query: LogQuery, scheduler: str, why: str) -> None:
    """Check a query of a log that has stdout and stderr in one stream; ``why`` is the hint that says so.

    Raises:
        UsageError: stdout or stderr alone is asked for, or the pattern is invalid.
    """
    if query.streams not in (None, Stream.COMBINED):
        raise UsageError(f"{scheduler} only supports the COMBINED log stream, not {query.streams}", hint=why)
    if query.regex is not None:
        compile_regex(query.regex)


def check_replicas(
    app_id: str, replicas: Iterable[tuple[str, int]], known: Collection[tuple[str, int]]
) -> None:
    """Check that a job has these replicas.

    Raises:
        UsageError: it does not; the hint lists at most twenty that it has.
    """
    for role, k in replicas:
        if (role, k) not in known:
            existing = ", ".join(f"{name}/{index}" for name, index in islice(known, 20))
            raise UsageError(f"the job {app_id} has no replica {role}/{k}", hint=f"It has {existing}.")


def all_replicas(layout: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return role and index of every replica; a layout has the number of replicas by role."""
    return [(role, k) for role, count in layout for k in range(count)]


class LineFilter:
    """Which lines a query asks for, by pattern and by time.

    Raises:
        UsageError: the pattern is not a regular expression.
    """

    def __init__(self, query: LogQuery) -> None:
        self._search = None if query.regex is None else LineSearch(query.regex)
        self._since_ns = query.since.timestamp() * 1e9 if query.since else float("-inf")
        self._until_ns = query.until.timestamp() * 1e9 if query.until else float("inf")

    def select(self, block: bytes) -> bytes:
        """Return those of a block's lines in which the pattern is found."""
        return block if self._search is None or not block else self._search.select(block)

    def select_at(self, time_ns: float, block: bytes) -> bytes:
        """Return those of a block's lines that are asked for, all of them written at this time."""
        return self.select(block) if self._since_ns <= time_ns < self._until_ns else b""

    def is_past(self, time_ns: float) -> bool:
        """Tell whether no line that is asked for can be written at this time or later."""
        return time_ns >= self._until_ns


def last_lines(
    blocks: Iterable[LogBlock], count: int | None, replicas: Iterable[tuple[str, int]]
) -> Iterator[LogBlock]:
    """Yield the last lines of each replica, a block for each time; without a count, all blocks unchanged."""
    if count is None:
        yield from (block for block in blocks if block.data)
        return
    tails: dict[tuple[str, int], deque[bytes]] = {key: deque(maxlen=count) for key in replicas}
    for block in blocks:
        lines = iter_lines(block.data)
        timed = (TimedLine.at(block.time_ns, line) for line in lines) if block.time_ns else lines
        tails[block.role, block.replica].extend(timed)
    for key, lines_left in tails.items():
        yield from blocks_of(key, lines_left)


def end_of(blocks: Iterable[LogBlock], most_bytes: int) -> bytes:
    """Return the last bytes of one replica's log without keeping more: a line may not fit into memory."""
    chunks: deque[bytes] = deque()
    size = 0
    for block in blocks:
        chunks.append(block.data[-most_bytes:])
        size += len(chunks[-1])
        while size - len(chunks[0]) >= most_bytes:
            size -= len(chunks.popleft())
    return b"".join(chunks)[-most_bytes:]


class TimedLine(bytes):
    """A line, and when it was written, in nanoseconds since the epoch."""

    time_ns: float

    @classmethod
    def at(cls, time_ns: float, data: bytes) -> TimedLine:
        """Return a line that was written at a time."""
        line = cls(data)
        line.time_ns = time_ns
        return line


def blocks_of(key: tuple[str, int], lines: Iterable[bytes]) -> Iterator[LogBlock]:
    """Yield lines of one replica as blocks, one for each time; any other than a `TimedLine` has time 0."""
    for time_ns, group in groupby(lines, lambda line: getattr(line, "time_ns", 0)):
        data = b"".join(group)
        if data:
            yield LogBlock(*key, data, time_ns)


def split_lines(text: str) -> list[str]:
    r"""Split at ``\n``, keeping the line ends. Takes time in proportion to the text."""
    lines = text.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def split_lines_iterator(chunks: Iterable[str]) -> Iterator[str]:
    r"""Cut a stream of texts into lines ending in ``\n``; only the last may lack it."""
    pending: list[str] = []
    for chunk in chunks:
        for piece in split_lines(chunk):
            pending.append(piece)
            if piece.endswith("\n"):
                yield "".join(pending)
                pending = []
    if pending:
        yield "".join(pending)


def iter_lines(data: bytes) -> Iterator[bytes]:
    r"""Cut a block into lines ending in ``\n``, ``\r\n`` or ``\r``; only the last may lack an end."""
    return (match.group() for match in LINE.finditer(data) if match.group())


def start_of_last_lines(read: Callable[[int, int], bytes], count: int, end: int, begin: int = 0) -> int:
    """Return where the last ``count`` lines before ``end`` begin in a file.

    Args:
        read: returns this many bytes of the file, from an offset.
        count: how many lines.
        end: offset of the end.
        begin: offset before which nothing is wanted, whether or not a line begins there.
    """
    place, lines_seen = end, 0
    while place > begin:
        start = max(begin, place - READ_SIZE)
        data = read(place - start, start)
        if place == end and data.endswith(b"\n"):
            data = data[:-1]  # the end of the last line begins no other
        lines = data.count(b"\n")
        if lines_seen + lines >= count:
            return start + len(data.rsplit(b"\n", count - lines_seen)[0]) + 1
        lines_seen += lines
        place = start
    return begin


def blocks_until_ended(
    blocks: queue.Queue[LogBlock | BaseException | None], running: int
) -> Iterator[LogBlock]:
    """Yield what readers in threads put into a queue, until each has put its None or one its exception."""
    while running:
        item = blocks.get()
        if isinstance(item, LogBlock):
            yield item
        elif item is not None:
            raise item
        else:
            running -= 1


def merge_line_iterators(
    iterators: Mapping[tuple[str, int], Iterable[str]], last: int | None = None
) -> Iterator[LogBlock]:
    """Read several line iterators at once, each in a thread, and yield their lines as they come.

    The first error of any of them is raised here, after the lines that came before it.
    """
    if len(iterators) == 1 or last is not None:
        for (role, k), lines in iterators.items():
            for line in lines if last is None else deque(lines, maxlen=last):
                yield LogBlock(role, k, line.encode("utf-8", "surrogateescape"))
        return
    blocks: queue.Queue[LogBlock | BaseException | None] = queue.Queue(QUEUED_BLOCKS)
    stopped = threading.Event()

    def pump(role: str, k: int, lines: Iterable[str]) -> None:
        outcome: BaseException | None = None
        try:
            for line in lines:
                if stopped.is_set():
                    return
                blocks.put(LogBlock(role, k, line.encode("utf-8", "surrogateescape")))
        except BaseException as error:
            outcome = error
        blocks.put(outcome)

    for (role, k), lines in iterators.items():
        threading.Thread(target=pump, args=(role, k, lines), name=f"log-{role}-{k}", daemon=True).start()
    try:
        yield from blocks_until_ended(blocks, len(iterators))
    finally:
        stopped.set()

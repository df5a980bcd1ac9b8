"""The lines of the log: what the driver writes is what the client reads, however it is cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shunter.schedulers.api import LogQuery
from shunter.schedulers.ray_scheduler.logs import ReplicaLines
from shunter.schedulers.ray_scheduler.shipped.replica_actor import LogLines
from shunter.schedulers.ray_scheduler.states import STATE_MARK, state_in

KEY = ("worker", 0)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n", b"ab\n", "ü\n".encode()])
PIECES = st.lists(st.binary(max_size=20) | ENDS, max_size=20)


def written(pieces: list[bytes], stream: str = "out", name: str = "worker/0") -> str:
    """Return what the driver's log has for these pieces of output, as Ray's text mode reads it."""
    lines = LogLines(name, stream)
    text = "".join([*(lines.feed(piece) for piece in pieces), lines.flush()])
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read(pieces: list[str], query: LogQuery | None = None, key: tuple[str, int] = KEY) -> bytes:
    lines = ReplicaLines([key], query or LogQuery())
    blocks = itertools.chain(*(list(lines.feed(piece)) for piece in pieces), lines.finish())
    return b"".join(block.data for block in blocks if (block.role, block.replica) == key)


@given(PIECES, st.integers(1, 50))
def test_every_byte_comes_back(pieces: list[bytes], size: int) -> None:
    text = written(pieces)
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    assert read(cut) == b"".join(pieces)


def test_what_no_replica_wrote_is_left_out_of_our_jobs_and_is_all_of_others():
    text = "2026-11-22 15:28:14,589 INFO job_manager.py -- Runtime env is setting up.\n\n" + written([b"a\n"])
    assert read([text]) == b"a\n"
    foreign = ReplicaLines([("driver", 0)], LogQuery(), is_ours=False)
    assert b"".join(block.data for block in foreign.feed(text)).startswith(b"2026-11-22 15:28:14,589 INFO")


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert isinstance(read([text]), bytes)


def test_the_last_state_counts():
    text = f'{STATE_MARK}{{"state": ""}}\nmore\n{STATE_MARK}{{"state": "FAILED"}}\n'
    assert state_in(text) == {"state": "FAILED"}
    assert state_in("nothing") == {}
    assert state_in(f"{STATE_MARK}{{cut") == {}

from __future__ import annotations

import pytest

from shunter.cli.log_rank import RankFilter, mark_of, processes_of
from shunter.errors import UsageError
from shunter.schedulers.responses import LogBlock
from shunter.specs import AppDef, Role


@pytest.mark.parametrize(
    ("line", "marks"),
    [
        (b"[rank3]: Traceback", (3, None)),
        (b"[default1]:[rank5]: Traceback", (5, 1)),
        (b"[1]:step 3", (None, 1)),
        (b"[1,7]<stdout>: step", (7, None)),
        (b"[10:31:02] step", (None, None)),
        (b"\xff[rank3]: x", (None, None)),
        (b"step [rank3]: x", (None, None)),
    ],
)
def test_marks_of_lines(line: bytes, marks: tuple[int | None, int | None]) -> None:
    assert mark_of(line) == marks


@pytest.mark.parametrize(
    ("role", "count"),
    [
        (Role("r", "", entrypoint="python", args=["train.py"]), 1),
        (Role("r", "", entrypoint="bash", args=["-c", "torchrun --nproc_per_node 4 x.py"]), 4),
        (Role("r", "", entrypoint="torchrun", args=["--nproc-per-node=2", "x.py"]), 2),
        (Role("r", "", entrypoint="torchrun", args=["--nproc_per_node", "gpu", "x.py"]), None),
        (Role("r", "", entrypoint="mpirun", args=["x"]), None),
        (Role("r", "", metadata={"train": {"distribution": {"processes_per_host": 3}}}), 3),
    ],
)
def test_processes_of_a_replica(role: Role, count: int | None) -> None:
    assert processes_of(role) == count


def shown(rank: int, nproc: str, blocks: list[LogBlock]) -> tuple[list[tuple[str, int]], bytes, int]:
    roles = [
        Role("head", "", entrypoint="python"),
        Role("trainer", "", entrypoint="torchrun", args=["--nproc_per_node", nproc], num_replicas=2),
    ]
    made = RankFilter(rank, [("head", 0), ("trainer", 0), ("trainer", 1)], AppDef("a", roles))
    data = b"".join(block.data for block in made.select(blocks))
    return made.replicas, data, made.unmarked


def test_ranks_go_on_over_roles_replicas_and_their_processes() -> None:
    block = LogBlock("trainer", 1, b"[0]:a\n[1]:b\nplain\n[rank3]: c\r\n[1]:[rank4]: d", 5)
    assert shown(0, "2", [LogBlock("head", 0, b"x\n")]) == ([("head", 0)], b"x\n", 0)
    replicas, data, unmarked = shown(4, "2", [block])
    assert replicas == [("trainer", 1)]
    assert data == b"[1]:b\n[1]:[rank4]: d"
    assert unmarked == 1
    with pytest.raises(UsageError, match="no rank 5"):
        shown(5, "2", [])


def test_marks_alone_tell_where_the_number_of_processes_is_not_known() -> None:
    replicas, data, _ = shown(3, "gpu", [LogBlock("trainer", 1, b"[0]:a\n[rank3]: c\n")])
    assert replicas == [("head", 0), ("trainer", 0), ("trainer", 1)]
    assert data == b"[rank3]: c\n"

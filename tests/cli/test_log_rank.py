from __future__ import annotations

import pytest

from shunter.cli.log_sources import RankFilter
from shunter.errors import UsageError
from shunter.schedulers.responses import LogBlock
from shunter.specs import AppDef, Role


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

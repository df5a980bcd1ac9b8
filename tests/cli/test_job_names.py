from __future__ import annotations

import pytest

from shunter.cli.job_names import parse_replicas, select_replicas, split_target
from shunter.errors import UsageError

REPLICAS = [("trainer", 0), ("trainer", 1), ("trainer", 2), ("reader", 0)]


@pytest.mark.parametrize(
    ("text", "job", "wanted"),
    [
        ("", "", []),
        ("-", "-", []),
        ("train-x", "train-x", []),
        ("train-x/trainer", "train-x", [("trainer", None)]),
        ("train-x/trainer/0,1", "train-x", [("trainer", {0, 1})]),
        ("local://s/app", "local://s/app", []),
        ("local:///app", "local:///app", []),
        ("local://s/app/trainer", "local://s/app", [("trainer", None)]),
        ("local://s/app/trainer/0-2", "local://s/app", [("trainer", {0, 1, 2})]),
        ("/trainer/1", "", [("trainer", {1})]),
        ("a/b/c/d", "a/b/c/d", []),
        ("batch://s/a/queue/x/id", "batch://s/a/queue/x/id", []),
    ],
)
def test_targets(text: str, job: str, wanted: list[tuple[str, set[int] | None]]) -> None:
    assert split_target(text) == (job, wanted)


@pytest.mark.parametrize(
    "text", ["", "/0", "trainer/", "trainer/x", "trainer/1-", "trainer/-1", "trainer/0,,1", "a/b/c"]
)
def test_what_names_no_replicas(text: str) -> None:
    with pytest.raises(UsageError, match="does not name replicas"):
        parse_replicas(text)


def test_unknown_role_and_replica() -> None:
    with pytest.raises(UsageError, match="no role 'trianer'") as caught:
        select_replicas(REPLICAS, [parse_replicas("trianer")])
    assert "trainer" in caught.value.hint
    with pytest.raises(UsageError, match="no replica 3"):
        select_replicas(REPLICAS, [parse_replicas("trainer/0-3")])

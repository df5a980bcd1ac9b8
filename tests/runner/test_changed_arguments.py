"""Which words of a job's arguments others replace."""

from __future__ import annotations

import pytest

from shunter.errors import UsageError
from shunter.runner.changed_arguments import changed


@pytest.mark.parametrize(
    ("old", "changes", "new"),
    [
        ("--lr 1 --seed 3", "--lr 2", "--lr 2 --seed 3"),
        ("--lr=1 --seed 3", "--lr 2", "--lr 2 --seed 3"),
        ("--lr 1 data.csv", "--lr=2", "--lr=2 data.csv"),
        ("--seed 3", "--lr 2 --fast", "--seed 3 --lr 2 --fast"),
        ("--fast x", "--fast", "--fast x"),
        ("--lr -1 x=3", "--lr -2", "--lr -2 x=3"),
        ("lr=1 +model.depth=3 ~x", "lr=2 model.depth=4", "lr=2 model.depth=4 ~x"),
        ("--sizes 1 2 3", "--sizes 4 5 6", "--sizes 4 5 6"),
        ("--sizes 1 2", "--sizes 4 5 6", "--sizes 4 5 6"),
        ("-n 1 -v", "-n 2", "-n 2 -v"),
        ("", "--lr 2", "--lr 2"),
        ("a b", "--lr 2", "a b --lr 2"),
    ],
)
def test_arguments_are_replaced_or_added(old: str, changes: str, new: str) -> None:
    assert changed(old.split(), changes.split()) == new.split()


@pytest.mark.parametrize(
    ("old", "changes", "message"),
    [
        ("--sizes 1 2 3", "--sizes 4", "cannot tell which words of --sizes 1 2 3"),
        ("--lr 1 data.csv", "--lr 2", "cannot tell which words of --lr 1 data.csv"),
        ("--set a --set b", "--set c", "--set is 2 times among the arguments"),
        ("1 2", "3", "cannot tell which argument '3' is to replace"),
    ],
)
def test_what_could_mean_two_things_is_refused(old: str, changes: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        changed(old.split(), changes.split())

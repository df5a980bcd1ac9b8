"""The comparison of documents with real output tells a difference from a variable part."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import COMMAND, FILE, PYTHON, read_steps
from tests.docs.compare import Ids, differences
from tests.docs.terminal import Terminal, screen

ONE, TWO, THREE = "echo-kkcwkdytz8", "echo-wb2yr724m3", "echo-xq47mmcq22"


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        (["done after 0.1 s"], ["done after 12 s"]),
        (["at 2026-11-21 16:17:33"], ["at 2027-01-02 03:04:05"]),
        (["first", "...", "last"], ["first", "last"]),
        (["first", "...", "last"], ["first", "a", "b", "last"]),
        (["r/0 a", "r/1 a"], ["r/1 a", "r/0 a"]),
        ([f"x://s/{ONE}  RUNNING"], [f"x://s/{TWO}    PENDING"]),
    ],
)
def test_what_varies_is_left_out(shown: list[str], real: list[str]) -> None:
    assert not differences(shown, real, Ids())


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        (["hello"], ["hallo"]),
        (["hello"], ["hello", "there"]),
        (["hello", "there"], ["hello"]),
        (["r/0 a", "r/0 b"], ["r/0 b", "r/0 a"]),
        (["RUNNING"], ["FAILED"]),
        (["first", "...", "last"], ["first", "a"]),
        ([f"{ONE} {ONE}"], [f"{TWO} {THREE}"]),
        ([f"{ONE} {TWO}"], [f"{THREE} {THREE}"]),
    ],
)
def test_what_differs_is_reported(shown: list[str], real: list[str]) -> None:
    assert differences(shown, real, Ids())


def test_ids_stand_for_the_same_job_throughout() -> None:
    ids = Ids()
    assert not differences([f"started {ONE}"], [f"started {TWO}"], ids)
    assert ids.translate(f"shunter status {ONE}") == f"shunter status {TWO}"
    assert ids.translate("shunter status echo-kkcw") == "shunter status echo-wb2y"
    assert not differences([f"ended {ONE}"], [f"ended {TWO}"], ids)
    assert differences([f"ended {ONE}"], [f"ended {THREE}"], ids)


def test_steps_of_a_document(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "```console\n$ one \\\n> two\nshown\n$ three\n```\n"
        "```toml\n# shunter.toml\n[run]\n```\n```python\nx = 1\n```\n```text\n$ no command\n```\n"
    )
    steps = read_steps(document)
    assert [step.kind for step in steps] == [COMMAND, COMMAND, FILE, PYTHON]
    assert steps[0].text == "one \\\ntwo"
    assert (steps[0].line, steps[0].shown, steps[1].shown) == (2, ["shown"], [])
    assert (steps[2].name, steps[2].text) == ("shunter.toml", "# shunter.toml\n[run]\n")


def test_terminal_keeps_status_and_directory(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    terminal = Terminal(tmp_path, {"PATH": "/usr/bin:/bin"})
    try:
        assert terminal.run("cd below; printf 'a\\nb'; false") == (1, ["a", "b"])
        assert terminal.run("echo $?; basename $PWD; test -t 1") == (0, ["1", "below"])
        assert terminal.run("echo 'not closed")[0] != 0
        assert terminal.run("echo out; echo err >&2") == (0, ["out", "err"])
    finally:
        terminal.close()


def test_lines_that_were_drawn_over_are_gone() -> None:
    assert screen("kept\nold 1\nold 2\n\x1b[2Fnew\x1b[K\n\x1b[J") == ["kept", "new"]
    assert screen("10%\r20%\rdone\n") == ["done"]

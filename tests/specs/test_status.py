from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.errors import AppStatusError
from shunter.specs import (
    AppState,
    AppStatus,
    ReplicaState,
    ReplicaStatus,
    RoleStatus,
    is_started,
    is_terminal,
)
from shunter.specs.status import error_message

floats = st.none() | st.floats(0, 1e10)
replicas = st.builds(
    ReplicaStatus,
    st.integers(0),
    st.sampled_from(AppState),
    st.text(max_size=5),
    st.text(max_size=5),
    st.text(max_size=5),
    exit_code=st.none() | st.integers(),
    reason=st.text(max_size=5),
    restarts=st.integers(0),
    started_at=floats,
    ended_at=floats,
)
statuses = st.builds(
    AppStatus,
    st.sampled_from(AppState),
    st.integers(-1),
    st.text(max_size=5),
    st.text(max_size=5),
    st.none() | st.text(max_size=5),
    st.lists(st.builds(RoleStatus, st.text(max_size=5), st.lists(replicas, max_size=2)), max_size=2),
)


def test_numbers_and_names_of_states() -> None:
    names = "UNSUBMITTED SUBMITTED PENDING RUNNING SUCCEEDED FAILED CANCELLED UNKNOWN UNREACHABLE SUSPENDED"
    assert " ".join(state.name for state in AppState) == names
    assert [state.value for state in AppState] == list(range(10))
    assert (str(AppState.RUNNING), repr(AppState.RUNNING)) == ("RUNNING", "RUNNING (3)")
    assert ReplicaState is AppState


def test_kinds_of_states() -> None:
    ended = {AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED}
    assert {state for state in AppState if is_terminal(state)} == ended
    assert {state for state in AppState if is_started(state)} == ended | {AppState.RUNNING}
    assert not is_terminal(AppState.UNREACHABLE)
    assert not is_terminal(AppState.SUSPENDED)


@given(statuses)
def test_a_status_survives_json(status: AppStatus) -> None:
    assert AppStatus.from_json(json.loads(json.dumps(status.to_json()))) == status


@given(statuses)
def test_every_status_has_a_text(status: AppStatus) -> None:
    assert status.format().startswith(f"State: {status.state}")


def test_raise_for_status() -> None:
    AppStatus(AppState.SUCCEEDED).raise_for_status()
    for state in set(AppState) - {AppState.SUCCEEDED}:
        status = AppStatus(state, msg="so it is")
        with pytest.raises(AppStatusError, match=f"the job is {state}: so it is") as caught:
            status.raise_for_status()
        assert caught.value.status is status
        assert caught.value.exit_code == 1


def test_roles_can_be_selected() -> None:
    roles = [RoleStatus(name, [ReplicaStatus(0, AppState.RUNNING, name)]) for name in ("a", "b")]
    status = AppStatus(AppState.RUNNING, roles=roles)
    assert [role["role"] for role in status.to_json(["b"])["roles"]] == ["b"]
    assert "Role a:" not in status.format(["b"])
    assert len(status.replicas()) == 2


def test_text_of_a_status() -> None:
    replicas = [
        ReplicaStatus(
            0, AppState.FAILED, "r", "host1", exit_code=137, reason="killed by SIGKILL", restarts=2
        ),
        ReplicaStatus(1, AppState.SUCCEEDED, "r", started_at=100.0, ended_at=165.0),
        ReplicaStatus(2, AppState.CANCELLED, "r"),
        ReplicaStatus(3, AppState.FAILED, "r", exit_code=1),
    ]
    status = AppStatus(
        AppState.FAILED, 1, "a replica failed", ui_url="https://x", roles=[RoleStatus("r", replicas)]
    )
    assert status.format().splitlines() == [
        "State: FAILED",
        "Restarts: 1",
        "Reason: a replica failed",
        "Role r:",
        "  [0] FAILED (exit code 137, restarts 2, on host1, killed by SIGKILL)",
        "  [1] SUCCEEDED (1:05 min)",
        "  [2] CANCELLED (no reason known)",
        "  [3] FAILED (exit code 1)",
        "URL: https://x",
    ]


NESTED = {"message": {"message": "boom", "errorCode": 3, "extraInfo": {"timestamp": "0"}}}


@pytest.mark.parametrize(
    ("text", "message", "code"),
    [
        (json.dumps(NESTED), "boom", 3),
        ("[" * 100_000, "[" * 100_000, None),
        ('{"message": "flat", "errorCode": 4, "extraInfo": {"timestamp": 1}}', "flat", 4),
        ('{"message": "flat", "exitcode": 5}', "flat", 5),
        ("not json", "not json", None),
        ("[1, 2]", "[1, 2]", None),
        ('"text"', "text", None),
        ("null", "None", None),
        ('{"other": 1}', '{"other": 1}', None),
        ('{"message": 5}', "5", None),
        ('{"message": {"extraInfo": "odd"}}', '{"message": {"extraInfo": "odd"}}', None),
    ],
)
def test_error_files_of_every_layout(text: str, message: str, code: int | None) -> None:
    found, info = error_message(text)
    assert (found, info.get("errorCode")) == (message, code)
    replica = ReplicaStatus(0, AppState.FAILED, "r", structured_error_msg=text)
    shown = AppStatus(AppState.FAILED, roles=[RoleStatus("r", [replica])]).format()
    assert message.splitlines()[0][:60] in shown


def test_long_messages_are_folded() -> None:
    text = json.dumps(
        {"message": {"message": "word " * 60 + "\nsecond line", "extraInfo": {"timestamp": "x"}}}
    )
    shown = AppStatus(AppState.FAILED, structured_error_msg=text).format()
    assert max(map(len, shown.splitlines())) <= 80
    assert "error at x:" in shown
    assert "second line" in shown


def test_of_a_report_that_was_cut_off_the_beginning_of_its_message_is_shown() -> None:
    message = "ValueError: " + "\n".join(f'batch {n} \u00e9"' for n in range(100))
    whole = json.dumps({"message": {"message": message, "extraInfo": {"timestamp": "1"}}})
    for end in (len(whole) - 1, len(whole) - 70, 60, 27):
        found, _ = error_message(whole[:end])
        assert found
        assert message.startswith(found)
    shown = AppStatus(AppState.FAILED, structured_error_msg=whole[:-3]).format().splitlines()
    assert "ValueError: batch 0" in "".join(shown)
    assert "... 40 more lines ..." in "".join(shown)
    assert "batch 99" in shown[-1]


@given(
    st.text()
    | st.builds(
        json.dumps,
        st.recursive(
            st.none() | st.text() | st.integers(),
            lambda i: (
                st.lists(i)
                | st.dictionaries(st.sampled_from(["message", "errorCode", "extraInfo", "timestamp"]), i)
            ),
        ),
    )
)
def test_no_error_file_breaks_the_status(text: str) -> None:
    replica = ReplicaStatus(0, AppState.FAILED, "r", structured_error_msg=text)
    assert "FAILED" in AppStatus(AppState.FAILED, roles=[RoleStatus("r", [replica])]).format()


def test_control_characters_of_an_error_file_do_not_reach_the_terminal() -> None:
    failed = ReplicaStatus(
        0, AppState.FAILED, "r", structured_error_msg='{"message": "red \\u001b[31m bell \\u0007"}'
    )
    text = AppStatus(AppState.FAILED, roles=[RoleStatus("r", [failed])]).format()
    assert "red \\x1b[31m bell \\x07" in text
    assert text.replace("\n", "").isprintable()


def test_a_programs_words_do_not_reach_the_terminal_as_controls() -> None:
    replica = ReplicaStatus(0, AppState.FAILED, "a", "h", reason="bell\x07")
    status = AppStatus(AppState.FAILED, msg="red \x1b[31m\nand more", roles=[RoleStatus("a", [replica])])
    text = status.format()
    assert "Reason: red \\x1b[31m\nand more\n" in text
    assert "bell\\x07" in text
    assert "\x1b" not in text

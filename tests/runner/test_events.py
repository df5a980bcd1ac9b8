from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.errors import BackendError
from shunter.runner import Runner, events
from shunter.specs import AppDef, AppState
from tests.runner.fake_scheduler import FakeScheduler


@pytest.fixture
def received() -> Iterator[list[events.Event]]:
    found: list[events.Event] = []
    events.add_handler(found.append, "list")
    yield found
    events.remove_handler(found.append)
    events._failed.clear()


def test_each_call_gives_an_event(runner: Runner, app: AppDef, received: list[events.Event]) -> None:
    handle = runner.run(app, "fake", workspace=".")
    runner.status(handle)
    runner.cancel(handle)
    runner.wait(handle)
    runner.describe(handle)
    list(runner.log_lines(handle, "trainer"))
    runner.list("fake")
    runner.delete(handle)
    assert [event.api for event in received] == [
        "dryrun",
        "schedule",
        "run",
        "status",
        "cancel",
        "wait",
        "describe",
        "log_lines",
        "list",
        "delete",
    ]
    run = received[2]
    assert (run.scheduler, run.session, run.workspace, run.exception_type) == ("fake", "sess", ".", None)
    assert handle.endswith(str(run.app_id))
    assert run.wall_time_usec is not None
    assert run.wall_time_usec > 0
    assert json.loads(json.dumps(run.to_json()))["api"] == "run"


def test_a_failure_is_described_without_secrets(
    runner: Runner, fake: FakeScheduler, app: AppDef, received: list[events.Event]
) -> None:
    fake.fail_schedule = BackendError("refused, token=abcdef")
    with pytest.raises(BackendError):
        runner.run(app, "fake")
    event = received[-1]
    assert event.exception_type == "BackendError"
    assert event.exception_message == "refused, token=<redacted:token>"
    assert event.exception_source_location is not None
    assert event.exception_source_location.startswith("fake_scheduler.py:")


def test_a_failing_receiver_harms_nothing(
    runner: Runner, app: AppDef, received: list[events.Event], capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(event: events.Event) -> None:
        raise RuntimeError("out of ink")

    events.add_handler(broken, "printer")
    try:
        handle = runner.run(app, "fake")
        status = runner.status(handle)
    finally:
        events.remove_handler(broken)
    assert status is not None
    assert status.state is AppState.RUNNING
    assert len(received) == 4
    said = capsys.readouterr().err
    assert said.count("'printer' failed and is not called again: RuntimeError: out of ink") == 1


def test_the_log_of_a_program_that_shows_its_own_messages_gets_no_events(
    runner: Runner, app: AppDef, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner.run(app, "fake")
    assert [each for each in caplog.records if each.name == "shunter.events"] == []
    with caplog.at_level(logging.INFO, "shunter"):
        runner.run(app, "fake")
    assert [each for each in caplog.records if each.name == "shunter.events"]


def test_the_logger_gets_json(runner: Runner, app: AppDef, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "shunter.events"):
        runner.dryrun(app, "fake")
    (record,) = [each for each in caplog.records if each.name == "shunter.events"]
    assert json.loads(record.getMessage())["api"] == "dryrun"


PLUGIN = "def receive(event):\n    print('got', event.api)\n"
PROGRAM = """
from shunter.runner import get_runner
with get_runner() as runner:
    runner.status("local_cwd://s/nope-bcdfghjkmn")
"""


@pytest.mark.parametrize("group", ["shunter.events", "torchx.events"])
@pytest.mark.parametrize("target", ["receiver:receive", "no_such_module:receive"])
def test_entry_points_receive_events(tmp_path: Path, group: str, target: str) -> None:
    info = tmp_path / "receiver-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: receiver\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = {target}\n")
    (tmp_path / "receiver.py").write_text(PLUGIN)
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}){PROGRAM}"],
        capture_output=True,
        text=True,
        check=True,
    )
    if target.startswith("receiver"):
        assert (result.stdout, result.stderr) == ("got status\n", "")
    else:
        assert "'mine' failed" in result.stderr

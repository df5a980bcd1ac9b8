"""What `shunter why` says besides causes: changes, commands to try, scripts under the toolkit."""

from __future__ import annotations

from shunter.runner import get_runner
from shunter.specs import AppDef, Role
from shunter.why.explanation import explain


def run(runner, command, replicas=1, **options):
    """Run a job to its end; returns its handle and status."""
    role = Role("train", image="", entrypoint=command[0], args=command[1:], num_replicas=replicas)
    handle = runner.run(AppDef("train", [role]), "local_cwd", options)
    status = runner.wait(handle, timeout=50)
    assert status is not None
    return handle, status


def test_a_time_limit_is_doubled_by_the_command_to_try():
    with get_runner() as runner:
        handle, status = run(runner, ["sleep", "60"], timeout=1)
        explanation = explain(runner, handle, status)
    assert explanation.failure.cause.name == "timeout"
    assert explanation.try_command == f"shunter rerun {handle.rpartition('/')[2]} -cfg timeout=2"


def test_what_changed_since_the_last_success_is_said():
    with get_runner() as runner:
        good, _ = run(runner, ["sh", "-c", "exit 0"])
        run(runner, ["sh", "-c", "exit 4"])
        handle, status = run(runner, ["sh", "-c", "exit 5"])
        explanation = explain(runner, handle, status)
    assert explanation.last_good == good.rpartition("/")[2]
    assert explanation.changes == ['train: command: ["sh", "-c", "exit 0"] -> ["sh", "-c", "exit 5"]']


def test_a_job_that_succeeded_has_nothing_to_explain():
    with get_runner() as runner:
        handle, status = run(runner, ["true"])
        explanation = explain(runner, handle, status)
    assert (explanation.failure, explanation.waiting, explanation.try_command) == (None, None, "")


def test_a_script_under_the_toolkit(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    monkeypatch.chdir(tmp_path)
    with get_runner() as runner:
        handle = runner.run_component(
            "train.script", ["--script", "train.py", "--", "--rate", "1"], "local_cwd"
        )
        failure = explain(runner, handle, runner.wait(handle, timeout=50)).failure
    assert failure.cause.name == "usage"
    assert failure.evidence == "train.py: error: unrecognized arguments: --rate 1"


def test_a_line_longer_than_memory_is_read_from_near_its_end(tmp_path, monkeypatch):
    """A program may leave a hole of gigabytes in its output; a traceback follows it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(
        "import os\n"
        "os.ftruncate(2, 1 << 40)\n"
        "os.lseek(2, 0, os.SEEK_END)\n"
        "os.write(2, b'\\nerror: --password hunter2hunter2 was refused\\n')\n"
        "raise SystemExit(3)\n"
    )
    with get_runner() as runner:
        handle = runner.run(AppDef("j", [Role("r", "", entrypoint="python", args=["t.py"])]), "local_cwd")
        failure = explain(runner, handle, runner.wait(handle)).failure
    assert failure.evidence == "error: --password <redacted:password> was refused"
    assert failure.log[-1] == failure.evidence

"""What `trainyard why` says of jobs that fail for real on this machine."""

from __future__ import annotations

import pytest

from tests.diagnosis.ways_to_fail import COMMAND, WAYS, command_of
from trainyard.runner import get_runner
from trainyard.runner.explanation import explain
from trainyard.specs import AppDef, Role
from trainyard.specs.status import AppState


def run(runner, command, replicas=1, **options):
    """Run a job to its end; returns its handle and status."""
    role = Role("train", image="", entrypoint=command[0], args=command[1:], num_replicas=replicas)
    handle = runner.run(AppDef("train", [role]), "local_cwd", options)
    status = runner.wait(handle, timeout=50)
    assert status is not None
    return handle, status


# a command that cannot be run is refused before the job is submitted
@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.kind != COMMAND])
def test_the_cause_and_the_replica_are_named(name):
    way = WAYS[name]
    with get_runner() as runner:
        handle, status = run(runner, command_of(way), way.replicas)
        assert status.state == AppState.FAILED
        failure = explain(runner, handle, status).failure
    assert failure.cause.name == way.cause, failure
    assert failure.replica.id == way.replica
    assert failure.rank == way.rank
    assert way.evidence in failure.evidence


def test_a_time_limit_is_doubled_by_the_command_to_try():
    with get_runner() as runner:
        handle, status = run(runner, ["sleep", "60"], timeout=1)
        explanation = explain(runner, handle, status)
    assert explanation.failure.cause.name == "timeout"
    assert explanation.try_command == f"trainyard rerun {handle.rpartition('/')[2]} -cfg timeout=2"


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

"""Jobs that queue for slots of this machine: each is given to one at a time, in order, and never lost."""

import json
import os
import re

import pytest

from shunter.diagnosis.waiting import explain_waiting
from shunter.errors import BackendError, ConfigError, UsageError
from shunter.specs import AppDef, AppState, Resource
from shunter.system.identity import myself
from tests.schedulers.local.conftest import members, role, wait_until

ONE_GPU = Resource(cpu=1, gpu=1, memMB=-1)
ALL_GPUS = Resource(cpu=1, gpu=2, memMB=-1)
#: Writes which GPUs it has, and runs until there is a file.
HOLD = 'echo "gpus=$CUDA_VISIBLE_DEVICES"; while [ ! -e "{gate}" ]; do sleep 0.02; done'


@pytest.fixture(autouse=True)
def slots_dir(tmp_path, monkeypatch):
    folder = tmp_path / "slots"
    monkeypatch.setenv("SHUNTER_SLOTS_DIR", str(folder))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    return folder


@pytest.fixture
def hold(jobs, tmp_path):
    """Submit a job that holds slots until its gate, a file, is made."""

    def submit(name, resource=ONE_GPU, **fields):
        gate = tmp_path / f"gate-{name}"
        cfg = {"slots": "64", **fields.pop("cfg", {})}
        return jobs.submit(role(HOLD.format(gate=gate), resource=resource, **fields), **cfg), gate

    return submit


def tickets(folder):
    return [name for name in os.listdir(folder) if name.endswith(".ticket")]


def waiting(jobs, app_id):
    """Wait until a job waits for slots; returns its description."""
    wait_until(lambda: "waits for" in jobs.scheduler.describe(app_id).msg, f"the waiting of {app_id}")
    return jobs.scheduler.describe(app_id)


def test_gpus_are_given_to_one_job_at_a_time_and_go_to_the_next_at_its_end(jobs, hold, slots_dir):
    first, first_gate = hold("first")
    assert jobs.wait_for_line(first) == "gpus=4\n"
    second, second_gate = hold("second")
    assert jobs.wait_for_line(second) == "gpus=7\n"
    third, _ = hold("third", ALL_GPUS, cfg={"timeout": 60})
    found = waiting(jobs, third)
    assert found.state == AppState.PENDING
    assert found.msg == f"waits for 2 of 2 GPUs (0 free); held by {first}, {second}"
    assert explain_waiting(found.to_status()).kind == "no_capacity"
    first_gate.touch()
    jobs.end_of(first)
    wait_until(lambda: "1 free" in jobs.scheduler.describe(third).msg, "the news of a free GPU")
    second_gate.touch()
    jobs.end_of(second)
    assert jobs.wait_for_line(third) == "gpus=4,7\n"
    jobs.scheduler.cancel(third)
    assert jobs.end_of(third).state == AppState.CANCELLED
    assert tickets(slots_dir) == []


def test_later_jobs_do_not_overtake_but_use_free_slots(jobs, hold):
    first, _ = hold("first")
    jobs.wait_for_line(first)
    both, _ = hold("both", ALL_GPUS)
    waiting(jobs, both)
    late, _ = hold("late")
    assert waiting(jobs, late).msg == f"waits for 1 of 2 GPUs (1 free); held by {first}; behind {both}"
    no_gpu, _ = hold("none", Resource(cpu=1, gpu=0, memMB=-1))
    assert jobs.wait_for_line(no_gpu) == "gpus=\n"
    jobs.scheduler.cancel(both)
    assert jobs.end_of(both).state == AppState.CANCELLED
    assert jobs.wait_for_line(late) == "gpus=7\n"
    for app_id in (first, late, no_gpu):
        jobs.scheduler.cancel(app_id)


def test_a_killed_job_holds_nothing(jobs, hold, slots_dir):
    first, _ = hold("first", ALL_GPUS)
    jobs.wait_for_line(first)
    second, gate = hold("second", ALL_GPUS)
    waiting(jobs, second)
    jobs.kill_supervisor(first)
    assert jobs.wait_for_line(second) == "gpus=4,7\n"
    assert members(first) == []  # nothing uses the GPUs of the killed one any more
    gate.touch()
    assert jobs.end_of(second).state == AppState.SUCCEEDED
    assert jobs.scheduler.describe(first).state == AppState.FAILED
    assert tickets(slots_dir) == []


def test_a_job_killed_while_waiting_does_not_block_others(jobs, hold):
    first, gate = hold("first")
    jobs.wait_for_line(first)
    both, _ = hold("both", ALL_GPUS)
    waiting(jobs, both)
    late, late_gate = hold("late")
    waiting(jobs, late)
    jobs.kill_supervisor(both)
    assert jobs.wait_for_line(late) == "gpus=7\n"
    for each in (gate, late_gate):
        each.touch()


@pytest.mark.slow
def test_many_jobs_at_once_never_share_a_slot(jobs, tmp_path):
    """Each takes a lock that nobody else may have; it fails if the slot is not its alone."""
    inside = tmp_path / "inside"
    script = f'mkdir "{inside}.$CUDA_VISIBLE_DEVICES" || exit 9; rmdir "{inside}.$CUDA_VISIBLE_DEVICES"'
    ids = [jobs.submit(role(script, resource=ONE_GPU), slots="64") for _ in range(8)]
    assert {jobs.end_of(app_id).state for app_id in ids} == {AppState.SUCCEEDED}


def test_an_array_takes_slots_for_each_replica(jobs, tmp_path):
    inside = tmp_path / "inside"
    script = f'mkdir "{inside}.$CUDA_VISIBLE_DEVICES" || exit 9; rmdir "{inside}.$CUDA_VISIBLE_DEVICES"'
    _, found = jobs.run(role(script, resource=ONE_GPU, num_replicas=5), slots="64", array=True)
    assert found.state == AppState.SUCCEEDED


def test_an_array_runs_some_at_a_time_and_goes_on_after_a_failure(jobs, tmp_path):
    script = (
        f'mkdir "{tmp_path}/inside" || exit 9; [ ${{replica_id}} != 1 ] || code=3; '
        f'rmdir "{tmp_path}/inside"; exit ${{code:-0}}'
    )
    _, found = jobs.run(role(script, num_replicas=4), array=True, max_running=1)
    assert [each.exit_code for each in found.roles_statuses[0].replicas] == [0, 3, 0, 0]
    _, found = jobs.run(role(script, num_replicas=4), array=True, max_running=1, fail_fast=True)
    assert [each.state.name for each in found.roles_statuses[0].replicas] == [
        "SUCCEEDED",
        "FAILED",
        "CANCELLED",
        "CANCELLED",
    ]


def test_single_replicas_of_an_array_are_cancelled_and_the_others_go_on(jobs, hold):
    app_id, gate = hold("array", ALL_GPUS, num_replicas=4, cfg={"array": True})
    jobs.wait_for_line(app_id)
    waiting(jobs, app_id)  # the next one has asked for its slots
    with pytest.raises(UsageError, match="no replica r/4"):
        jobs.scheduler.cancel_replicas(app_id, [("r", 1), ("r", 4)])
    jobs.scheduler.cancel_replicas(app_id, [("r", 0), ("r", 1)])
    jobs.scheduler.cancel_replicas(app_id, [("r", 3)])
    wait_until(lambda: jobs.log(app_id, k=2), "the start of the third replica")
    gate.touch()
    found = jobs.end_of(app_id)
    states = [each.state.name for each in found.roles_statuses[0].replicas]
    assert states == ["CANCELLED", "CANCELLED", "SUCCEEDED", "CANCELLED"]
    assert found.state == AppState.CANCELLED
    assert re.fullmatch(r"r/1: cancelled by \S+ \(and 2 more cancelled\)", found.msg)
    assert (jobs.log(app_id, k=0), jobs.log(app_id, k=1)) == (["gpus=4,7\n"], [])
    jobs.scheduler.cancel_replicas(app_id, [("r", 2)])  # it has ended
    assert jobs.scheduler.describe(app_id).roles_statuses[0].replicas[2].state == AppState.SUCCEEDED


def test_replicas_that_work_together_are_cancelled_together(jobs, hold):
    app_id, _ = hold("pair", num_replicas=2)
    with pytest.raises(ConfigError, match="its replicas work together"):
        jobs.scheduler.cancel_replicas(app_id, [("r", 1)])


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"slots": "2"}, "can never start: it asks for 3 CPUs, but slots=2 has only 2"),
        ({"slots": "64:1"}, "can never start: it asks for 3 GPUs, but slots=64:1 has only 1"),
        ({"slots": "some"}, "slots must be .* not 'some'"),
        ({"max_running": 2}, "max_running is for arrays"),
        ({"array": True, "max_running": 0}, "at least 1"),
    ],
)
def test_what_can_never_start_is_refused(jobs, cfg, message):
    app = AppDef("job", [role("true", resource=ONE_GPU, num_replicas=3)])
    with pytest.raises(ConfigError, match=message):
        jobs.scheduler.submit_dryrun(app, cfg)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_a_ticket_or_a_directory_of_another_user(jobs, hold, slots_dir):
    slots_dir.mkdir()
    job = {"app_id": "a", "job_dir": "/nowhere", "supervisor": list(myself()), "cpus": 0, "gpus": 2}
    forged = slots_dir / "000000000001-1.ticket"
    forged.write_text(json.dumps({**job, "granted": ["4", "7"]}))
    os.chown(forged, 65534, 65534)
    app_id, gate = hold("first")
    assert jobs.wait_for_line(app_id) == "gpus=4\n"
    gate.touch()
    jobs.end_of(app_id)
    os.chown(slots_dir, 65534, 65534)
    with pytest.raises(BackendError, match="slots: it belongs to another user"):
        hold("second")

"""What Slurm prints, as values. ``recorded/*`` are from Slurm 22.05.8."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.schedulers.slurm_scheduler import doctor, observe, rules
from shunter.schedulers.slurm_scheduler.reasons import reason_of, state_of
from shunter.specs import AppState, is_terminal

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def by_name(name: str) -> dict:
    return {job.app_id: job for job in observe.jobs_from_text(recorded(name)).values()}


def test_the_queue():
    jobs = by_name("squeue-22.05.txt")
    gang = jobs["one-b2b2b2b2b2"]
    assert (gang.native_id, gang.state, gang.hosts) == ("41", AppState.RUNNING, ["n1", "n2"])
    assert (gang.submitted_at, gang.started_at, gang.ended_at) == (1795362642, 1795362643, None)
    array = jobs["a|b, c"]
    assert (array.native_id, array.state) == ("42", AppState.RUNNING)
    assert {task: replica.state.name for task, replica in array.replicas.items()} == {
        0: "RUNNING",
        1: "RUNNING",
        **dict.fromkeys((2, 3, 4, 5), "PENDING"),
    }
    assert (array.replicas[1].raw_id, array.replicas[1].hosts) == ("51", ["n3"])
    assert "throttle" in array.replicas[3].reason
    het = jobs["het"]
    assert (het.native_id, het.hosts, [part.component for part in het.parts]) == ("47", ["n1", "n2"], [0, 1])
    assert jobs["failed"].state == jobs["killed"].state == AppState.FAILED
    assert jobs["gone"].state == AppState.CANCELLED
    assert jobs["never"].reason.startswith("cannot start: PartitionNodeLimit")
    assert "not available" in jobs["notavail"].reason


def test_accounting():
    jobs = observe.jobs_from_text(recorded("sacct-22.05.txt"))
    assert (jobs["43"].state, jobs["43"].exit_code) == (AppState.FAILED, 3)
    assert (jobs["44"].state, jobs["44"].exit_code) == (AppState.FAILED, 137)
    assert (jobs["1"].state, jobs["1"].native_state) == (AppState.CANCELLED, "CANCELLED")
    assert jobs["42"].app_id == "a|b, c"
    assert jobs["22"].hosts == ["n1", "n2", "n3", "n4"]
    assert [replica.state.name for replica in jobs["24"].replicas.values()] == ["SUCCEEDED"] * 5


def test_an_output_that_is_cut_off_loses_jobs_but_ends_none():
    text = recorded("squeue-22.05.txt")
    for end in range(0, len(text), 7):
        for job in observe.jobs_from_text(text[:end]).values():
            if job.app_id == "one-b2b2b2b2b2":
                assert job.state == AppState.RUNNING


@pytest.mark.parametrize(
    ("said", "state", "native"),
    [
        ("CANCELLED by 1001", "CANCELLED", "CANCELLED"),
        ("COMPLETING", "RUNNING", "COMPLETING"),
        ("STAGE_OUT", "RUNNING", "STAGE_OUT"),
        ("RECONFIG_FAIL", "UNKNOWN", "RECONFIG_FAIL"),
        ("REVOKED", "UNKNOWN", "REVOKED"),
        ("NEW_STATE", "UNKNOWN", "NEW_STATE"),
    ],
)
def test_states(said, state, native):
    assert state_of(said) == (AppState[state], native)


@given(st.text())
def test_a_state_that_is_not_known_is_open(word):
    state, _ = state_of(word)
    assert not is_terminal(state) or word.strip().upper().startswith(
        ("CA", "CO", "F", "T", "N", "P", "B", "D", "O")
    )


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("PENDING", "Resources", "waiting: Resources (the nodes that it needs are busy)"),
        (
            "PENDING",
            "(ReqNodeNotAvail, UnavailableNodes:n[1-3],n7)",
            "waiting: ReqNodeNotAvail, UnavailableNodes:n[1-3],n7 (nodes that it needs are not available)",
        ),
        (
            "PENDING",
            "QOSMaxGRESPerUser",
            "waiting: QOSMaxGRESPerUser (a limit of its account or QoS is reached)",
        ),
        (
            "PENDING",
            "AssocGrpCPUMinutesLimit",
            "waiting: AssocGrpCPUMinutesLimit (a limit of its account or QoS is reached)",
        ),
        ("PENDING", "None", "waiting: the scheduler has not looked at it yet"),
        ("PENDING", "Moon phase, waning", "waiting: Moon phase, waning"),
        (
            "PENDING",
            "DependencyNeverSatisfied",
            "cannot start: DependencyNeverSatisfied (a job that it waits for did not end as required)",
        ),
        ("TIMEOUT", "TimeLimit", "the time limit was reached"),
        ("NODE_FAIL", "NodeDown", "a node failed"),
        ("FAILED", "NonZeroExitCode", ""),
        ("RUNNING", "None", ""),
        ("OUT_OF_MEMORY", "OutOfMemory", "out of memory"),
    ],
)
def test_reasons(state, reason, text):
    assert reason_of(state, reason) == text


def test_partitions_and_what_can_never_start():
    found = observe.partitions_from_text(recorded("sinfo-22.05.txt"))
    assert rules.partitions_of({}, found) == ["cpu"]
    assert {item.partition: item.gpus for item in found}["gpu"] == 4

    def problem(count=1, cpus=1, gpus=0, memory=100, partition=None, time=None) -> str:
        group = {"count": count, "cpus": cpus, "gpus": gpus, "memory": memory}
        return rules.impossible(found, {"partition": partition, "time": time, "nodes": [group]})

    assert problem() == problem(count=4) == problem(partition="gpu,cpu", gpus=4) == ""
    assert "needs 9 nodes" in problem(count=9)
    assert "has only 2" in problem(count=3, gpus=1)
    assert "no node of the partition gpu has" in problem(gpus=9, partition="gpu")
    assert "no partition 'gpuu'" in problem(partition="gpuu")
    assert "longer than the partition cpu allows" in problem(time="3:00:00")
    assert problem(time="3:00:00", partition="gpu") == ""
    assert rules.has_no_limit(found, {"partition": "forever"}) == "forever"
    assert rules.has_no_limit(found, {"partition": "forever", "time": "60"}) == ""
    assert rules.impossible([], {"partition": "x", "nodes": []}) == ""  # nothing is known


@pytest.mark.parametrize(
    ("states", "up"),
    [
        (("idle", "mixed"), 2),
        (("completing", "allocated"), 2),  # as 22.05 said while a job was ending
        (("planned", "mixed-"), 2),
        (("idle~", "powering_up"), 2),
        (("drained", "idle"), 1),
        (("down*", "maint"), 0),
    ],
)
def test_the_doctor_counts_nodes_that_are_up(states, up):
    line = "gpu|up|1-00:00:00|1:00:00|1|8|16000|gpu:h100:4|"
    found = observe.partitions_from_text("".join(f"{line}{state}\n" for state in states))
    [check] = doctor._partition(found, {"partition": "gpu"})
    assert check.text.startswith(f"gpu: {up} of 2 nodes are up")
    assert check.ok == (up > 0)

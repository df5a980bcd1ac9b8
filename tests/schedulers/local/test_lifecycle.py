"""How local jobs live and end: retries, signals, limits, and what happens when their supervisor is killed."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.api import Stream
from shunter.schedulers.supervisor import documents, job_directory
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs import NONE, AppState, RetryPolicy
from shunter.system.identity import Process, identify

from .conftest import linux_only, members, role, wait_until

FAMILY = "sleep 300 & setsid sleep 300 & echo up; sleep 300"


# ---- the supervisor is killed


def test_replicas_die_with_their_supervisor(jobs):
    app_id = jobs.submit(role(FAMILY, num_replicas=2))
    jobs.wait_for_line(app_id, k=0)
    jobs.wait_for_line(app_id, k=1)
    assert len(members(app_id)) >= 6
    jobs.kill_supervisor(app_id)
    response = jobs.end_of(app_id)
    assert response.state == AppState.FAILED
    assert "supervisor was killed" in response.msg
    assert {r.state for r in response.to_status().replicas()} == {AppState.FAILED}
    assert members(app_id) == []
    assert response == jobs.scheduler.describe(app_id)


@linux_only
def test_replicas_end_before_anybody_looks(jobs):
    app_id = jobs.submit(role("echo up; exec sleep 300", num_replicas=2))
    jobs.wait_for_line(app_id, k=0)
    jobs.wait_for_line(app_id, k=1)
    assert len(members(app_id)) == 2
    jobs.kill_supervisor(app_id)
    wait_until(lambda: members(app_id) == [], "the end of the replicas")
    assert jobs.state(app_id)["state"] == "RUNNING"
    assert jobs.end_of(app_id).state == AppState.FAILED


@linux_only
@pytest.mark.parametrize(
    ("script", "count"),
    [
        ("env -i {} & echo up; wait", 1),
        ("(env -i {} &); echo up; sleep 300", 1),
        ("env -i setsid {} & echo up; exec env -i {}", 2),
    ],
)
def test_processes_without_the_jobs_environment_are_ended_by_the_next_look(jobs, script, count, tmp_path):
    child, pids = tmp_path / "child", tmp_path / "pids"
    child.write_text(f"#!/bin/sh\necho $$ >> {pids}; exec sleep 300\n")
    child.chmod(0o755)
    app_id = jobs.submit(role(script.format(child, child)))
    jobs.wait_for_line(app_id)
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == count, "the children")
    jobs.kill_supervisor(app_id)
    assert jobs.end_of(app_id).state == AppState.FAILED
    wait_until(lambda: not any(identify(int(pid)) for pid in pids.read_text().split()), "their end")


def test_stopped_supervisor_is_named_and_continued_by_a_cancellation(jobs):
    app_id = jobs.submit(role("echo up; exec sleep 300"))
    jobs.wait_for_line(app_id)
    supervisor = jobs.state(app_id)["supervisor"][0]
    os.kill(supervisor, signal.SIGSTOP)
    wait_until(lambda: "stopped" in jobs.scheduler.describe(app_id).msg, "word of it")
    assert f"kill -CONT {supervisor}" in jobs.scheduler.describe(app_id).msg
    jobs.scheduler.cancel(app_id)
    assert jobs.end_of(app_id).state == AppState.CANCELLED


def edit_state(app_id: str, **changes) -> None:
    job = JobDirectory.of(app_id)
    job.write_state({**job.read_state(), **changes})


def freeze(jobs, app_id: str) -> None:
    """Kill everything of a job at once, leaving its state as it was."""
    before = jobs.state(app_id)
    jobs.kill_supervisor(app_id)
    assert jobs.end_of(app_id).state == AppState.FAILED
    JobDirectory.of(app_id).write_state(before)


def test_reboot_fails_the_job(jobs):
    app_id = jobs.submit(role("echo up; exec sleep 300"))
    jobs.wait_for_line(app_id)
    freeze(jobs, app_id)
    edit_state(app_id, boot_id="another-boot")
    job = JobDirectory.of(app_id)
    for path in (job.file("job.json"), job.file("state.json"), *Path(job.logs()).rglob("*.log")):
        os.utime(path, (1000, 1000))
    os.utime(Path(job.logs(), "r", "0", "stdout.log"), (2000, 2000))
    response = jobs.scheduler.describe(app_id)
    assert response.state == AppState.FAILED
    assert "machine went down" in response.msg
    assert response.ended_at == 2000, "the last sign of it, and not the time of this look"


def test_job_of_another_machine_is_unreachable_not_failed(jobs):
    app_id = jobs.submit(role("echo up; exec sleep 300"))
    jobs.wait_for_line(app_id)
    freeze(jobs, app_id)
    edit_state(app_id, host="elsewhere", boot_id="its-boot")
    response = jobs.scheduler.describe(app_id)
    assert response.state == AppState.UNREACHABLE
    assert "elsewhere" in response.msg
    edit_state(app_id, state="SUCCEEDED")
    assert jobs.scheduler.describe(app_id).state == AppState.SUCCEEDED


def test_submission_that_was_interrupted(jobs):
    app_id, _ = jobs.run(role("exit 0"))
    job = JobDirectory.of(app_id)
    supervisor = Process.from_json(job.read_state()["supervisor"])
    wait_until(lambda: not supervisor.is_alive(), "the supervisor's end, which follows that of the job")
    os.unlink(job.file("state.json"))
    document = job.read_request()
    documents.write_json(
        job.file("job.json"), {**document, "submitter": [document["submitter"][0], 1, "a-boot"]}
    )
    response = jobs.scheduler.describe(app_id)
    assert response.state == AppState.FAILED
    assert "interrupted" in response.msg


def test_job_outlives_the_process_and_session_that_submitted_it(jobs, tmp_path):
    script = (
        "import sys, os, signal\n"
        "from shunter.schedulers.local_scheduler.scheduler import create_scheduler\n"
        "from shunter.specs import AppDef, Role\n"
        "app = AppDef('job', [Role('r', '', entrypoint='sh', args=['-c', 'echo up; exec sleep 300'])])\n"
        "print(create_scheduler('test').submit(app, {}), flush=True)\n"
        "os.killpg(0, signal.SIGKILL)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, start_new_session=True, check=False
    )
    assert result.returncode == -signal.SIGKILL
    app_id = result.stdout.strip()
    assert jobs.wait_for_line(app_id) == "up\n"
    assert jobs.scheduler.describe(app_id).state == AppState.RUNNING
    jobs.scheduler.cancel(app_id)
    assert jobs.end_of(app_id).state == AppState.CANCELLED


# ---- ends


def test_what_a_replica_leaves_behind_is_ended(jobs):
    app_id, response = jobs.run(role("sleep 300 & setsid sleep 300 & exit 0"))
    assert response.state == AppState.SUCCEEDED
    wait_until(lambda: members(app_id) == [], "the end of what it left")


def test_stubborn_replica_is_killed_after_its_grace(jobs):
    app_id = jobs.submit(role("trap '' TERM; echo up; while :; do sleep 300; done"), grace_period=0.2)
    jobs.wait_for_line(app_id)
    jobs.scheduler.cancel(app_id)
    response = jobs.end_of(app_id)
    assert response.state == AppState.CANCELLED
    assert [r.exit_code for r in response.to_status().replicas()] == [137]
    assert members(app_id) == []


def test_replica_may_clean_up_when_cancelled(jobs):
    app_id = jobs.submit(role("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    jobs.wait_for_line(app_id)
    jobs.scheduler.cancel(app_id)
    response = jobs.end_of(app_id)
    assert response.state == AppState.CANCELLED
    assert "cancelled by" in response.msg
    lines = jobs.log(app_id, streams=Stream.STDOUT)
    assert (lines[0], lines[-1]) == ("up\n", "saved\n")


def test_cancel_where_nothing_can_be_written(jobs, monkeypatch):
    app_id = jobs.submit(role("echo up; exec sleep 300"))
    jobs.wait_for_line(app_id)

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(job_directory, "write_json", full)
    jobs.scheduler.cancel(app_id)
    response = jobs.end_of(app_id)
    assert (response.state, response.msg) == (AppState.CANCELLED, "cancelled")


def test_timeout(jobs):
    _, response = jobs.run(role("exec sleep 300"), timeout="0.2")
    assert response.state == AppState.FAILED
    assert "time limit of 0.2 s" in response.msg


@pytest.mark.parametrize("name", ["KILL", "SEGV", "TERM"])
def test_signals_are_named(jobs, name):
    _, response = jobs.run(role(f"kill -s {name} $$$$"))
    replica = response.to_status().replicas()[0]
    assert response.state == AppState.FAILED
    assert f"SIG{name}" in response.msg
    assert replica.exit_code == 128 + signal.Signals[f"SIG{name}"]


MEMORY_CGROUP = Path("/sys/fs/cgroup/memory")


@linux_only
@pytest.mark.skipif(not os.access(MEMORY_CGROUP / "tasks", os.W_OK), reason="no writable memory cgroup (v1)")
def test_out_of_memory_is_distinguished_from_a_kill(jobs, tmp_path):
    group = MEMORY_CGROUP / f"shunter-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        script = f"echo $$$$ > {group}/cgroup.procs; exec {sys.executable} -c 'len(bytes(1 << 20) * 1024)'"
        _, response = jobs.run(role(script))
        assert response.state == AppState.FAILED
        assert "out of memory" in response.msg
        assert response.to_status().replicas()[0].exit_code == 137
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "an empty cgroup")
        group.rmdir()


# ---- errors that replicas report

NESTED = {
    "message": {"message": "ValueError: bad lr", "errorCode": 1, "extraInfo": {"timestamp": "1700000000"}}
}
FLAT = {"message": "ValueError: bad lr", "timestamp": "1700000000"}


@pytest.mark.parametrize("content", [NESTED, FLAT])
def test_error_file_becomes_the_structured_error(jobs, content):
    text = json.dumps(content)
    _, response = jobs.run(role(f"echo '{text}' > $TORCHELASTIC_ERROR_FILE; exit 1"))
    assert json.loads(response.structured_error_msg) == content
    assert "ValueError: bad lr" in response.to_status().format()


def test_error_file_of_an_earlier_attempt_is_not_shown(jobs):
    script = 'if [ ! -e "$TORCHELASTIC_ERROR_FILE.0" ]; then echo x > $TORCHELASTIC_ERROR_FILE; fi; exit 1'
    _, response = jobs.run(role(script, max_retries=1))
    assert response.structured_error_msg == NONE


# ---- retry policies


def attempts(jobs, app_id, name, k):
    return len(jobs.log(app_id, name, k))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RetryPolicy.REPLICA, {"bad": [2, 1], "peer": [1]}),
        (RetryPolicy.ROLE, {"bad": [2, 2], "peer": [1]}),
        (RetryPolicy.APPLICATION, {"bad": [2, 2], "peer": [2]}),
    ],
)
def test_what_is_restarted(jobs, tmp_path, policy, expected):
    gate = tmp_path / "second"
    wait = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    script = (
        f'echo attempt; [ "${{replica_id}}" = 1 ] && {{ touch {tmp_path}/up-1; {wait}; exit 0; }}; '
        f"[ -e {gate} ] || {{ until [ -e {tmp_path}/up-1 ] && [ -e {tmp_path}/up-2 ]; do sleep 0.02; done; "
        f"touch {gate}; exit 1; }}"
    )
    bad = role(script, name="bad", num_replicas=2, max_retries=3, retry_policy=policy)
    peer = role(f"echo attempt; touch {tmp_path}/up-2; {wait}; sleep 1", name="peer")
    app_id, response = jobs.run(bad, peer)
    assert response.state == AppState.SUCCEEDED
    got = {name: [attempts(jobs, app_id, name, k) for k in range(len(n))] for name, n in expected.items()}
    assert got == expected
    assert response.num_restarts == 1
    failed = next(r for r in response.to_status().replicas() if (r.role, r.id) == ("bad", 0))
    [first] = failed.earlier
    assert (first.number, first.exit_code, first.reason) == (0, 1, "exit code 1")
    assert first.started_at < first.ended_at <= failed.started_at
    assert first.log_position == "0.0.0"


def test_more_replicas_than_a_process_may_have_files_open(jobs):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1000:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        app_id, response = jobs.run(role('echo "${replica_id}"', num_replicas=150))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert response.state == AppState.SUCCEEDED
    assert [jobs.log(app_id, k=k) for k in (0, 149)] == [["0\n"], ["149\n"]]


def test_peers_go_on_after_a_failure(jobs):
    app_id, response = jobs.run(role("exit 3", name="bad"), role("sleep 0.3; echo done", name="good"))
    assert response.state == AppState.FAILED
    assert "bad/0: exit code 3" in response.msg
    assert jobs.log(app_id, "good") == ["done\n"]


def test_fail_fast_stops_the_peers(jobs):
    _, response = jobs.run(role("exit 3", name="bad"), role("exec sleep 300", name="good"), fail_fast=True)
    states = {r.role: (r.state, r.reason) for r in response.to_status().replicas()}
    assert response.state == AppState.FAILED
    assert states["good"] == (AppState.CANCELLED, "stopped because bad/0 failed")


# ---- what is refused before anything starts


@pytest.mark.parametrize("program", ["no-such-program", "./missing", "/etc", "/etc/passwd"])
def test_program_that_cannot_be_run(jobs, program):
    wrong = role("")
    wrong.entrypoint = program
    with pytest.raises(ConfigError, match=program):
        jobs.submit(wrong)
    assert jobs.scheduler.list() == []


@pytest.mark.parametrize(
    "cfg",
    [
        {"timeout": 0},
        {"grace_period": -1},
        {"timeout": "soon"},
        {"timeout": "nan"},
        {"timeout": "inf"},
        {"grace_period": "inf"},
    ],
)
def test_option_out_of_range(jobs, cfg):
    with pytest.raises(ConfigError):
        jobs.submit(role("exit 0"), **cfg)


def test_program_that_vanishes_before_a_retry(jobs, tmp_path):
    program = tmp_path / "once"
    program.write_text("#!/bin/sh\necho ran; rm $0; exit 1\n")
    program.chmod(0o755)
    vanishing = role("", max_retries=5)
    vanishing.entrypoint, vanishing.args = str(program), []
    app_id, response = jobs.run(vanishing)
    assert response.state == AppState.FAILED
    assert "no such program" in response.msg
    assert jobs.log(app_id) == ["ran\n"]

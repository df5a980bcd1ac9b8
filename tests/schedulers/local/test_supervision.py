"""Local jobs that are looked after: told at their end, retried by class of failure, found when they hang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shunter._toolkit import stack_dump
from shunter.errors import ConfigError
from shunter.schedulers.supervisor import outbox
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs import AppState, RetryPolicy
from tests.receiver import receiving

from .conftest import PATIENCE, linux_only, role, wait_until

OUT_OF_MEMORY = "echo 'MemoryError: no more' >&2; exit 1"
EXCEPTION = "printf 'Traceback (most recent call last):\\n  File\\nValueError: bad\\n' >&2; exit 1"


def replica_of(response):
    return response.to_status().replicas()[0]


# ---- told at the end


def test_all_are_told_once_after_the_end(jobs, tmp_path):
    with receiving() as receiver:
        told = tmp_path / "told"
        app_id, end = jobs.run(
            role(EXCEPTION), notify=[receiver.url, f"cat >{told}.new; mv {told}.new {told}"]
        )
        [message] = receiver.wait_for(1)
        wait_until(told.exists, "the command's end")
        folder = Path(JobDirectory.of(app_id).path)
        wait_until((folder / outbox.SETTLED).exists, "the end of the sender")
        jobs.scheduler.describe(app_id)
        assert len(receiver.received) == 1
    assert end.state == AppState.FAILED
    assert message["state"] == "FAILED"
    assert message["job"] == app_id
    assert message["cause"]["name"] == "exception"
    assert message["cause"]["evidence"] == "ValueError: bad"
    assert message["ended_at"] >= message["started_at"]


def test_what_cannot_be_told_changes_nothing(jobs):
    app_id, end = jobs.run(role("exit 0"), notify=["exit 4"])
    folder = Path(JobDirectory.of(app_id).path)
    text = "exit 4 was not notified: it ended with exit code 4"
    log = folder / outbox.LOG
    wait_until(lambda: log.exists() and text in log.read_text(), "the sender's last words")
    assert (folder / outbox.SETTLED).exists()
    assert (end.state, end.msg) == (AppState.SUCCEEDED, "<NONE>")


def test_the_next_look_notifies_of_a_killed_supervisor(jobs):
    with receiving() as receiver:
        app_id = jobs.submit(role("echo up; sleep 300"), notify=[receiver.url])
        jobs.wait_for_line(app_id)
        jobs.kill_supervisor(app_id)
        assert jobs.end_of(app_id).state == AppState.FAILED
        [message] = receiver.wait_for(1)
        wait_until(Path(JobDirectory.of(app_id).file(outbox.SETTLED)).exists, "the end of the sender")
        assert len(receiver.received) == 1
    assert message["state"] == "FAILED"
    assert message["cause"]["name"] == "supervisor"


def test_the_next_look_tells_what_a_killed_sender_has_not(jobs, monkeypatch):
    app_id, _ = jobs.run(role("exit 0"))
    with receiving() as receiver:
        folder = JobDirectory.of(app_id).path
        outbox.prepare(folder, f"local_cwd://test/{app_id}", [receiver.url], "")
        jobs.scheduler.describe(app_id)
        [message] = receiver.wait_for(1)
        wait_until(Path(folder, outbox.SETTLED).exists, "the end of the sender")
    assert message["state"] == "SUCCEEDED"


@pytest.mark.parametrize(
    "target",
    ["http://", "https:///path", "http://h:99999/", "http://h:x/", "file:///etc/passwd", "env:HOOK", " "],
)
def test_targets_that_cannot_be_told_are_refused(jobs, target):
    with pytest.raises(ConfigError, match="notify"):
        jobs.submit(role("exit 0"), notify=[target])


def test_the_secret_is_in_no_dry_run_and_gone_at_the_end(jobs):
    info = jobs.scheduler.submit_dryrun(
        _app(role("exit 0")), {"notify": ["exit 0"], "notify_secret": "hush-hush-1"}
    )
    assert "hush-hush-1" not in str(info.request)
    app_id, _ = jobs.run(role("exit 0"), notify=["exit 0"], notify_secret="hush-hush-1")
    folder = Path(JobDirectory.of(app_id).path)
    wait_until((folder / outbox.SETTLED).exists, "the end of the sender")
    assert [
        path for path in folder.rglob("*") if path.is_file() and b"hush-hush-1" in path.read_bytes()
    ] == []


def _app(*roles):
    from shunter.specs import AppDef

    return AppDef("job", list(roles))


# ---- retries by class


def test_what_the_program_is_at_fault_for_is_not_retried(jobs):
    _, end = jobs.run(role(EXCEPTION, max_retries=5), retry={"exception": "0"})
    assert replica_of(end).restarts == 0
    [note] = replica_of(end).notes
    assert note.startswith("it raised an exception (ValueError: bad); not restarted: exception")


@pytest.mark.parametrize("policy", list(RetryPolicy))
def test_each_class_has_its_own_number(jobs, tmp_path, policy):
    # fails twice for lack of memory, then once for another reason, then it succeeds
    script = (
        f"echo x >>{tmp_path}/runs; case $(wc -l <{tmp_path}/runs) in 1|2) {OUT_OF_MEMORY} ;; "
        "3) echo odd; exit 9 ;; esac"
    )
    _, end = jobs.run(role(script, max_retries=1, retry_policy=policy), retry={"oom": "2", "exception": "0"})
    assert end.state == AppState.SUCCEEDED, replica_of(end)
    assert replica_of(end).restarts == 3
    assert [note.rpartition("restarted: ")[2] for note in replica_of(end).notes] == [
        "oom: retry 1 of 2",
        "oom: retry 2 of 2",
    ]


def test_the_number_is_a_limit(jobs):
    _, end = jobs.run(role(OUT_OF_MEMORY), retry={"oom": "1"})
    assert end.state == AppState.FAILED
    assert replica_of(end).restarts == 1
    assert replica_of(end).notes[-1].endswith("not restarted: oom: 1 of 1 retries are used up")


def test_only_the_present_attempt_is_looked_at(jobs, tmp_path):
    script = f"if mkdir {tmp_path}/once; then {OUT_OF_MEMORY}; fi; echo odd; exit 9"
    _, end = jobs.run(role(script), retry={"oom": "5"})
    assert replica_of(end).restarts == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ooom": "2"}, "Did you mean"),
        ({"oom": "two"}, "not a whole number"),
        ({"oom": "2:lots"}, "not a size"),
        ({"node": "2:4G"}, "only oom takes a size"),
    ],
)
def test_rules_that_cannot_be_read_are_refused(jobs, given, words):
    with pytest.raises(ConfigError, match=words):
        jobs.submit(role("exit 0"), retry=given)


def test_rules_without_effect_are_named(jobs):
    info = jobs.scheduler.submit_dryrun(_app(role("exit 0")), {"retry": {"node": "3", "oom": "2:64G"}})
    assert len(info.request.warnings) == 2
    assert "retry node" in info.request.warnings[0]
    assert "the size in retry oom" in info.request.warnings[1]


# ---- hangs


@linux_only
def test_a_replica_that_hangs_is_marked_and_may_go_on(jobs, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    app_id = jobs.submit(role(f"echo up; read line <{tmp_path}/pipe"), hang_timeout=0.4)
    wait_until(lambda: replica_of(jobs.scheduler.describe(app_id)).notes, "the mark")
    replica = replica_of(jobs.scheduler.describe(app_id))
    assert (replica.state, "it hangs" in replica.reason) == (AppState.RUNNING, True)
    (tmp_path / "pipe").write_text("go on\n")
    end = jobs.end_of(app_id)
    assert end.state == AppState.SUCCEEDED
    log = "".join(jobs.log(app_id))
    assert "shunter: no output for 0.4 s and no GPU activity; the stacks of its process:" in log
    assert "shunter: end of the stacks" in log


@linux_only
def test_a_job_that_hangs_is_stopped_if_that_is_asked_for(jobs):
    _, end = jobs.run(role("sleep 300", num_replicas=2), hang_timeout=0.4, on_hang="stop")
    assert end.state == AppState.FAILED
    assert "because it hung" in end.msg


STUCK = """\
import sys, time
def waits_for_ever():
    print("ready", flush=True)
    time.sleep(300)
waits_for_ever()
"""


@linux_only
def test_python_shows_where_it_is(tmp_path):
    (tmp_path / stack_dump.HANDLER_FILE).write_text(stack_dump.HANDLER)
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('the next one too', flush=True)")
    log = tmp_path / "log"
    env = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{other}",
        stack_dump.VARIABLE: str(int(stack_dump.SIGNAL)),
        "PATH": "/nowhere",  # no py-spy
    }
    with log.open("ab") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-c", STUCK], env=env, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert child.stdout.readline() == "the next one too\n"
        assert child.stdout.readline() == "ready\n"
        command = [sys.executable, stack_dump.__file__, "dump", str(child.pid), str(log), "headline"]
        assert subprocess.run(command, env=env, timeout=PATIENCE).returncode == stack_dump.DUMPED
    finally:
        child.kill()
        child.communicate()
    assert "shunter: headline" in log.read_text()
    assert "in waits_for_ever" in log.read_text()


@linux_only
def test_py_spy_shows_where_python_is_without_its_help(tmp_path):
    """The program has no handler for the signal."""
    log = tmp_path / "log"
    child = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        assert not stack_dump.listens(child.pid)
        command = [sys.executable, stack_dump.__file__, "dump", str(child.pid), str(log), "headline"]
        env = {**os.environ, "PATH": str(Path(sys.prefix, "bin"))}
        assert subprocess.run(command, env=env, timeout=PATIENCE).returncode == stack_dump.DUMPED
    finally:
        child.kill()
        child.communicate()
    assert "waits_for_ever (<string>:4)" in log.read_text()


def test_a_gpu_at_work_is_a_sign_of_life(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\ncase "$*" in *--id=1*) echo 0 ;; *) printf "0\\n37\\n" ;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert stack_dump.gpu_at_work(None)
    assert not stack_dump.gpu_at_work("1")
    assert not stack_dump.gpu_at_work("")

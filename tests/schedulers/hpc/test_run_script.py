"""`run.sh` by itself, as nodes run it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from shunter.schedulers.hpc import shared_folder
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.observe import state_by_records
from shunter.schedulers.hpc.storage import Storage
from tests.schedulers.hpc.conftest import children_of, command_of, wait_until

SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]


class Folder:
    """A job's folder with one role ``r``, whose program is a script of the shell."""

    def __init__(self, path: Path, shell: list[str]) -> None:
        self.path = path / "jobs" / "app"
        self.shell = shell
        for name in ("state", "logs", "roles"):
            (self.path / name).mkdir(parents=True)
        (self.path / "run.sh").write_bytes(shared_folder.shell_script("run.sh"))
        (self.path / "layout").write_text("r 2\nother 3\n")
        (self.path / "job.json").write_text('{"layout": [["r", 2], ["other", 3]], "chain": 2}')

    def program(self, script: str, role: str = "r") -> None:
        (self.path / "program").write_text(script)
        self.role(f"cd {self.path} || exit 72\nset -- sh program one 'two  three'\n", role)

    def role(self, text: str, role: str = "r") -> None:
        (self.path / "roles" / f"{role}.sh").write_text(text)

    def start(self, *words: str, start_new_session: bool = False, **env: str) -> subprocess.Popen[bytes]:
        command = [*self.shell, str(self.path / "run.sh"), *words]
        return subprocess.Popen(
            command, env={**os.environ, **env}, stderr=subprocess.PIPE, start_new_session=start_new_session
        )

    def run(self, *words: str, **env: str) -> int:
        process = self.start(*words, **env)
        _, errors = process.communicate(timeout=50)
        assert not errors, errors
        return process.returncode

    def around(self, *words: str) -> list[str]:
        """Return the words that run replica 0 within a job."""
        return ["job", *words, "--", *self.shell, str(self.path / "run.sh"), "replica", "r", "0"]

    def seen(self):
        return shared_folder.read_jobs(Storage(Commands()), str(self.path.parents[1]), ["app"])["app"]

    def text(self, name: str) -> str:
        path = self.path / name
        return path.read_text() if path.exists() else ""


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def folder(request, tmp_path):
    return Folder(tmp_path, request.param)


def test_a_replica_leaves_records_logs_and_an_index(folder):
    folder.program('echo "$1|$2|$SHUNTER_REPLICA|$SHUNTER_ATTEMPT|$TORCHX_RANK0_HOST"; echo oops >&2; exit 7')
    assert folder.run("replica", "r", "NUMBER-1", NUMBER="2", SHUNTER_RANK0="first") == 7
    assert folder.text("logs/r-1/0.out") == "one|two  three|1|0|first\n"
    assert folder.text("logs/r-1/0.err") == "oops\n"
    record = folder.seen().replicas["r", 1]
    assert (record.code, record.why, record.attempt) == (7, "ended", 0)
    assert record.host == os.uname().nodename
    assert record.started_at <= record.ended_at <= time.time()
    time_ns, out, err = folder.text("logs/r-1/0.idx").splitlines()[-1].split()
    assert (int(out), int(err)) == (25, 5)
    assert abs(int(time_ns) / 1e9 - record.ended_at) < 5


def test_each_attempt_has_its_log(folder):
    folder.program('echo "attempt $SHUNTER_ATTEMPT"; [ "$SHUNTER_ATTEMPT" = 2 ]')
    assert folder.run(*folder.around("--retries", "5")) == 0
    assert [folder.text(f"logs/r-0/{number}.out") for number in range(4)] == [
        "attempt 0\n", "attempt 1\n", "attempt 2\n", "",
    ]  # fmt: skip
    assert folder.seen().attempts == 3
    assert folder.seen().submission.code == 0


def test_what_comes_after_a_restart_is_another_attempt(folder):
    folder.program("exit 1")
    assert folder.run(*folder.around()) == 1
    folder.program("echo again")
    assert folder.run(*folder.around()) == 0
    assert folder.text("logs/r-0/1.out") == "again\n"


SAVING = 'trap "echo saved; exit 0" TERM; echo ready; while :; do sleep 0.1; done'


def start_saving(folder, *words, **env):
    folder.program(SAVING)
    process = folder.start(*(words or folder.around()), **env)
    wait_until(lambda: "ready" in folder.text("logs/r-0/0.out"), "the program is ready")
    return process


@pytest.mark.parametrize(("name", "why", "code"), [("TERM", "stopped", 0), ("USR1", "time-limit", 124)])
def test_a_signal_to_the_batch_script_reaches_the_program(folder, name, why, code):
    process = start_saving(folder)
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.wait(50) in (code, 143)  # a stop ends the command that starts the replicas at once
    process.stderr.close()
    wait_until(lambda: folder.seen().replicas["r", 0].code is not None, "the end of the replica")
    assert folder.text("logs/r-0/0.out") == "ready\nsaved\n"
    assert folder.seen().replicas["r", 0].why == why
    assert folder.seen().submission.why == why


def test_a_signal_to_a_replica_reaches_its_program(folder):
    process = start_saving(folder, "replica", "r", "0")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0
    assert folder.text("logs/r-0/0.out") == "ready\nsaved\n"
    assert folder.seen().replicas["r", 0].why == "stopped"


def test_signals_that_warn_of_the_limit_are_the_clusters(folder):
    process = start_saving(folder, "replica", "r", "0", SHUNTER_WARNING_SIGNALS="XCPU")
    process.send_signal(signal.SIGXCPU)
    process.communicate()
    assert process.returncode == 124
    assert folder.seen().replicas["r", 0].why == "time-limit"


def test_a_program_is_not_started_after_a_stop(folder):
    folder.program("echo too much")
    (folder.path / "state" / ".stop.r-0.0").touch()  # what a stop leaves before it signals
    assert folder.run("replica", "r", "0") == 143
    assert folder.text("logs/r-0/0.out") == ""
    assert folder.seen().replicas["r", 0].code == 143


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TERM", "USR1"])
def test_no_moment_is_bad_for_a_signal(folder, name):
    for number in range(40):
        job = Folder(folder.path.parents[1] / str(number), folder.shell)
        job.program(SAVING)
        process = job.start("replica", "r", "0")
        time.sleep(number * 0.001)  # not to wait for anything: the moment of the signal is what varies
        process.send_signal(getattr(signal, f"SIG{name}"))
        process.communicate(timeout=50)
        code, out = process.returncode, job.text("logs/r-0/0.out")
        if out:  # the trap is set before it says that it is ready
            assert (code, out.removeprefix("ready\n")) == (124 if name == "USR1" else 0, "saved\n")
        else:
            assert code in (143, -getattr(signal, f"SIG{name}"))


def test_nothing_that_a_replica_leaves_running_holds_its_stderr(folder):
    process = start_saving(folder, "replica", "r", "0")
    wait_until(lambda: index_keepers(process.pid), "what keeps the index")
    (keeper,) = index_keepers(process.pid)
    os.kill(keeper, signal.SIGSTOP)
    stat = Path(f"/proc/{keeper}/stat")
    wait_until(lambda: stat.read_text().split()[2] == "T", "it has stopped")  # a SIGTERM could overtake it
    try:
        process.terminate()
        assert process.communicate(timeout=50)[1] == b""
    finally:
        os.kill(keeper, signal.SIGCONT)
    wait_until(lambda: not command_of(keeper), "the end of what keeps the index")


def test_a_program_ends_with_a_script_that_is_killed_with_its_process_group(folder):
    folder.program("trap '' HUP TERM; sleep 600 & echo $$ $! >pids; wait")
    process = folder.start("replica", "r", "0", start_new_session=True)
    wait_until(lambda: len(folder.text("pids").split()) == 2, "the program")
    wait_until(lambda: index_keepers(process.pid), "what keeps the index")
    keepers = index_keepers(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=50)
    left = [*map(int, folder.text("pids").split()), *keepers]
    wait_until(lambda: not any(map(command_of, left)), "the end of the program")
    assert folder.text("state/r-0.0.exit") == ""


def index_keepers(pid: int) -> list[int]:
    """Return what keeps the index of the replica that this process runs, once it has a session of its own."""
    found = [child for child in children_of(pid) if " index " in command_of(child)]
    return [child for child in found if session_of(child) == child]


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def test_a_folder_that_is_missing_is_the_reason(folder, tmp_path):
    folder.program("echo too much")
    folder.role(f"cd {tmp_path}/gone 2>/dev/null || no_folder {tmp_path}/gone\nset -- sh program\n")
    assert folder.run("replica", "r", "0") == 72
    words = f"the folder {tmp_path}/gone does not exist on node {os.uname().nodename}"
    assert folder.text("logs/r-0/0.err") == f"shunter: {words}\n"
    assert folder.seen().replicas["r", 0].reason == words


def test_a_signal_reaches_all_that_the_program_started(folder):
    folder.program(f"sh -c '{SAVING}' & wait")
    process = folder.start("replica", "r", "0")
    wait_until(lambda: "ready" in folder.text("logs/r-0/0.out"), "the program is ready")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    wait_until(lambda: "saved" in folder.text("logs/r-0/0.out"), "the signal's arrival at the inner program")


def test_the_next_link_goes_on_after_the_time_limit(folder):
    process = start_saving(folder)
    process.send_signal(signal.SIGUSR1)
    process.communicate()
    folder.program("echo going on")
    assert folder.run(*folder.around("--link", "1")) == 0
    assert folder.text("logs/r-0/1.out") == "going on\n"


@pytest.mark.parametrize("code", [0, 3])
def test_the_next_link_does_nothing_after_an_end(folder, code):
    folder.program(f"exit {code}")
    assert folder.run(*folder.around()) == code
    folder.program("echo too much")
    assert folder.run(*folder.around("--link", "1")) == code  # what waits for the last link's success sees it
    assert folder.text("logs/r-0/1.out") == ""


def test_the_next_link_goes_on_after_a_death_without_a_record(folder):
    process = start_saving(folder)
    process.kill()
    process.wait()
    process.stderr.close()
    (folder.path / "state" / "stop.0").write_text("stopped\n")  # ends the replica, which is an orphan now
    wait_until(lambda: folder.seen().replicas["r", 0].code is not None, "the end of the orphan")
    folder.program("echo going on")
    assert folder.run(*folder.around("--link", "1")) == 0
    assert folder.text("logs/r-0/1.out") == "going on\n"


def test_a_cancelled_job_has_no_next_link(folder):
    (folder.path / "cancelled").write_text("me")
    folder.program("echo too much")
    assert folder.run(*folder.around("--link", "1")) == 0
    assert folder.text("logs/r-0/0.out") == ""


def test_a_command_can_be_run_beside_a_replica(folder):
    folder.program(SAVING)
    process = folder.start("replica", "r", "1")
    wait_until(lambda: "ready" in folder.text("logs/r-1/0.out"), "the program is ready")
    folder.role(f"export A='b c'\ncd {folder.path}/logs || exit 72\nset -- false\n")
    command = [*folder.shell, str(folder.path / "run.sh"), "enter", "note", "r", "1"]
    inside = [*command, "sh", "-c", 'echo "$A|$PWD|$SHUNTER_REPLICA|$1"; exit 5', "sh", "x  y"]
    result = subprocess.run(inside, capture_output=True, text=True, check=False)
    assert result.stdout == f"b c|{folder.path}/logs|1|x  y\n"
    assert (result.returncode, folder.text("state/.note")) == (0, "5\n")
    process.terminate()
    process.communicate()


# ---- races


def enter_race(folder, *more: str) -> Path:
    """Let the job take part in a race; returns the path of the lease."""
    lease = folder.path.parents[1] / "races" / "race 1"
    lease.parent.mkdir(exist_ok=True)
    (folder.path / "lease").write_text("".join(f"{line}\n" for line in (lease, "fake://s/app", *more)))
    return lease


def test_the_lease_is_the_jobs_whatever_its_attempts_and_replicas(folder):
    lease = enter_race(folder)
    folder.program('echo ran; [ "$SHUNTER_ATTEMPT" = 1 ]')
    assert folder.run(*folder.around("--retries", "3")) == 0
    assert lease.read_text() == "fake://s/app\n"
    assert folder.run(*folder.around()) == 1  # the queue starts it again
    assert folder.run("replica", "r", "1") == 1
    assert [path.name for path in lease.parent.iterdir()] == ["race 1"]


@pytest.mark.parametrize("start", ["job", "array"])
def test_who_finds_the_lease_taken_runs_nothing(folder, start):
    enter_race(folder).write_text("fake://s/other\n")
    (folder.path / "notify.waiting.json").write_text("{}")
    folder.program("echo ran")
    words = folder.around("--retries", "3") if start == "job" else ["replica", "--retries", "3", "r", "0"]
    assert folder.run(*words) == 1
    assert not list(folder.path.rglob("*.out"))
    seen = folder.seen()
    assert seen.cancellation == "race lost to fake://s/other"
    assert not seen.has_run
    assert state_by_records(seen) is None
    assert not (folder.path / "notify.waiting.json").exists()


def test_a_lease_that_nobody_can_take_is_an_error(folder):
    lease = enter_race(folder)
    lease.parent.rmdir()
    folder.program("echo ran")
    process = folder.start(*folder.around())
    _, errors = process.communicate(timeout=50)
    assert process.returncode == 74
    assert f"the lease of the race, {lease}, cannot be taken" in errors.decode()
    assert not list(folder.path.rglob("*.out"))


def test_the_winner_cancels_its_rivals(folder, tmp_path):
    rival, unsent = tmp_path / "jobs" / "rival", tmp_path / "jobs" / "unsent"
    rival.mkdir()
    unsent.mkdir()
    (rival / "native").write_text("17\n18\n")
    cancel = tmp_path / "cancel"
    cancel.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/said\n')
    cancel.chmod(0o700)
    enter_race(folder, str(unsent), f"{cancel} now", str(rival), f"{cancel} now")
    folder.program("echo ran")
    assert folder.run(*folder.around()) == 0
    assert (rival / "cancelled").read_text() == "race lost to fake://s/app\n"
    wait_until((tmp_path / "said").exists, "the command")
    wait_until(lambda: (tmp_path / "said").read_text() == "now 17 18\n", "its words")
    assert not (unsent / "cancelled").exists()
    assert folder.text("logs/r-0/0.out") == "ran\n"

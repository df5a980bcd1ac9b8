"""Jobs on a queue that is not always there: chains, restarts, absence, and what travels with them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from shunter.components.train import script as train_script
from shunter.errors import BackendError, ConfigError, UnknownAppException, UnreachableError, UsageError
from shunter.runner import Runner
from shunter.runner.preparation import prepare
from shunter.schedulers.api import attempt
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.responses import Dependency, LogQuery, LogRange, Stream
from shunter.specs.app import AppDef, Role
from shunter.specs.status import AppState
from shunter.specs.submission import Submission
from tests.schedulers.hpc.conftest import wait_until
from tests.schedulers.hpc.fake_cluster import QUEUE


def role(script: str, name: str = "r", **fields) -> Role:
    return Role(name, "", entrypoint="sh", args=["-c", script], **fields)


def submit(cluster, script: str, **cfg) -> str:
    return cluster.submit(AppDef("job", [role(script)]), cfg)


def folder_of(cluster, app_id: str) -> str:
    return os.path.join(cluster.default_place().shared, "jobs", app_id)


def calls(queue) -> list[str]:
    return (queue / "calls").read_text().splitlines()


# ---- chains

COUNTING = """
n=0; [ ! -e {at} ] || read -r n <{at}
trap 'echo 35 >{at}; exit 0' TERM
echo from $n
[ $n != 0 ] || {{ sleep 300 & wait; }}
echo done
"""


@pytest.mark.slow
def test_a_chain_is_one_job_that_goes_on_from_its_checkpoint(cluster, queue, tmp_path):
    program = COUNTING.format(at=tmp_path / "at")
    app_id = submit(cluster, program, chain=4, limit=60.0, grace_period=50.0)  # the warning comes after 10 s
    query = LogQuery(should_tail=True, streams=Stream.STDOUT)
    lines = [block.data for block in cluster.log_blocks(app_id, [("r", 0)], query)]
    found = cluster.wait(app_id, 50)
    assert found.state == AppState.SUCCEEDED
    assert b"".join(lines).decode().splitlines() == ["from 0", "from 35", "done"]
    text = [line.rstrip("\n") for line in cluster.log_iter(app_id, "r", streams=Stream.STDOUT)]
    assert text == ["from 0", "from 35", "done"]
    assert calls(queue).count("submit") == 4
    assert found.metadata["native_id"].count(",") == 3
    assert [row.app_id for row in cluster.list()] == [app_id]


def cluster_lines(cluster, app_id):
    return (line.rstrip("\n") for line in cluster.log_iter(app_id, "r"))


def test_a_chain_ends_with_a_failure_of_the_program(cluster, queue):
    app_id = submit(cluster, "echo once; exit 4", chain=3, limit=30.0, grace_period=5.0)
    found = cluster.wait(app_id, 50)
    assert found.state == AppState.FAILED
    assert found.to_status().replicas()[0].exit_code == 4
    wait_until(lambda: all(job.ended_at for job in cluster.query_all(cluster.commands(""), None)), "the end")
    assert cluster.describe(app_id).state == AppState.FAILED
    assert list(cluster_lines(cluster, app_id)) == ["once"]


def test_cancelling_a_chain_cancels_all_of_it_by_one_call(cluster, queue):
    app_id = submit(cluster, "sleep 600", chain=3)
    wait_until(lambda: cluster.describe(app_id).state == AppState.RUNNING, "the start")
    cluster.cancel(app_id)
    found = cluster.wait(app_id, 50)
    assert found.state == AppState.CANCELLED
    assert "cancelled by" in found.msg
    assert calls(queue).count("cancel") == 1
    assert {job.native_state for job in cluster.query_all(cluster.commands(""), None)} == {"CANCELLED"}


# ---- absence


def test_a_job_that_the_queue_forgot_ended_as_its_record_says(cluster, queue):
    app_id = submit(cluster, "exit 3")
    cluster.wait(app_id, 50)
    os.system(f"{QUEUE} purge 1")
    cluster._queries.clear()
    found = cluster.describe(app_id)
    assert found.state == AppState.FAILED
    assert found.to_status().replicas()[0].exit_code == 3


def test_a_job_that_the_queue_forgot_without_a_record_is_not_ended(cluster, queue):
    app_id = submit(cluster, "sleep 600")
    wait_until(lambda: cluster.describe(app_id).state == AppState.RUNNING, "the start")
    os.system(f"{QUEUE} purge 1")
    cluster._queries.clear()
    found = cluster.describe(app_id)
    assert found.state == AppState.UNKNOWN
    assert "left no exit record" in found.msg
    (folder := os.path.join(folder_of(cluster, app_id), "state"))
    with open(os.path.join(folder, "stop.0"), "w") as file:
        file.write("stopped\n")
    wait_until(lambda: cluster.describe(app_id).to_status().replicas()[0].exit_code == 143, "the end")


def test_a_queue_that_is_away_says_nothing_of_jobs(cluster, queue):
    app_id = submit(cluster, "sleep 600")
    wait_until(lambda: cluster.describe(app_id).state == AppState.RUNNING, "the start")
    (queue / "down").touch()
    cluster._queries.clear()
    found = cluster.describe(app_id)
    assert found.state == AppState.UNREACHABLE
    assert "connection refused" in found.msg
    assert found.to_status().replicas()[0].state != AppState.FAILED
    assert cluster.wait(app_id, 0.5).state == AppState.UNREACHABLE
    with pytest.raises(BackendError, match="connection refused"):
        cluster.cancel(app_id)
    with pytest.raises(BackendError, match="connection refused"):
        cluster.list()
    with pytest.raises(UnreachableError, match=r"cannot submit the job here: .*connection refused") as caught:
        submit(cluster, "exit 0")
    assert caught.value.hint.startswith("Nothing was submitted")
    assert os.listdir(os.path.dirname(folder_of(cluster, app_id))) == [app_id]
    with pytest.raises(UnreachableError, match="cannot be seen now"):
        cluster.delete(app_id)
    with Runner(
        "s", {cluster.backend: lambda *_, **__: cluster}
    ) as runner:  # which knows nothing of this job
        handle = f"{cluster.backend}://s/17"
        for look in (runner.describe, runner.replicas):
            with pytest.raises(UnreachableError, match="connection refused"):
                look(handle)
    (queue / "down").unlink()
    cluster._queries.clear()
    cluster.cancel(app_id)
    assert cluster.wait(app_id, 50).state == AppState.CANCELLED


def test_a_submission_without_an_answer_can_be_found(cluster, queue, monkeypatch):
    run = Commands.run

    def without_answer(self, command, **options):
        answer = run(self, command, **options)
        if "submit" in command:
            answer.code, answer.err, answer.out = 1, "error: connection refused; then it timed out", b""
        return answer

    monkeypatch.setattr(Commands, "run", without_answer)
    with pytest.raises(UnreachableError) as caught:
        submit(cluster, "sleep 600")
    assert "may have been submitted" in caught.value.hint
    (found,) = cluster.list()
    cluster.cancel(found.app_id)
    assert cluster.wait(found.app_id, 50).state == AppState.CANCELLED


def test_following_outlives_an_absence_of_the_queue(cluster, queue, tmp_path):
    go = tmp_path / "go"
    app_id = submit(cluster, f"seq 1 100; while [ ! -e {go} ]; do sleep 0.05; done; seq 101 200")
    lines = []
    for block in cluster.log_blocks(app_id, [("r", 0)], LogQuery(should_tail=True)):
        lines += block.data.split()
        if len(lines) == 100 and not go.exists():
            (queue / "down").touch()
            cluster._queries.clear()
            assert cluster.describe(app_id).state == AppState.UNREACHABLE
            go.touch()
        if len(lines) == 200 and (queue / "down").exists():
            (queue / "down").unlink()
    assert lines == [b"%d" % number for number in range(1, 201)]
    assert cluster.wait(app_id, 50).state == AppState.SUCCEEDED


def test_a_refusal_leaves_nothing_behind(cluster, queue):
    with pytest.raises(BackendError, match=r"cannot submit the job here: .*not wanted"):
        cluster.submit(AppDef("refused", [role("exit 0")]), {})
    assert cluster.storage("").names(os.path.join(cluster.default_place().shared, "jobs")) == []


@pytest.mark.parametrize("chain", [1, 2])
def test_a_submission_that_is_interrupted_unseen_by_us_is_cancelled(cluster, queue, monkeypatch, chain):
    """The queue has the job, and its id has not reached us."""
    submit_natively, submitted = cluster.submit_natively, []

    def interrupted(*args):
        submitted.append(submit_natively(*args))
        if len(submitted) == chain:
            raise KeyboardInterrupt
        return submitted[-1]

    monkeypatch.setattr(cluster, "submit_natively", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit(cluster, "sleep 100", chain=chain)
    assert [item.native_state for item in cluster.query_all(cluster.commands(""), None)] == (
        ["CANCELLED"] * chain
    )
    assert cluster.storage("").names(os.path.join(cluster.default_place().shared, "jobs")) == []


def test_an_interrupt_lets_a_program_end_that_must(tmp_path, monkeypatch):
    """Over ssh it would go on anyway, and the queue would be asked too early."""
    import subprocess

    communicate, calls = subprocess.Popen.communicate, []

    def interrupted(process, *args, **kwargs):
        calls.append(kwargs)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return communicate(process, *args, **kwargs)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Commands().run(["sh", "-c", f"sleep 0.2; echo sent >{tmp_path}/sent"], finish=60)
    assert (tmp_path / "sent").read_text() == "sent\n"


# ---- restarts


def test_following_goes_on_with_the_next_attempt(cluster, queue, tmp_path):
    go = tmp_path / "go"
    program = f"echo attempt $SHUNTER_ATTEMPT; while [ ! -e {go} ]; do sleep 0.05; done; printf torn; exit 1"
    app_id = cluster.submit(AppDef("job", [role(program, max_retries=2)]), {})
    lines = []
    for block in cluster.log_blocks(app_id, [("r", 0)], LogQuery(should_tail=True)):
        lines += block.data.splitlines(keepends=True)
        go.touch()
    ends = [f"attempt {n}\n".encode() for n in range(3)]
    assert lines == [ends[0], b"torn\n", ends[1], b"torn\n", ends[2], b"torn"]
    found = cluster.wait(app_id, 50)
    assert found.num_restarts == 2
    replica = found.to_status().replicas()[0]
    assert replica.restarts == 2
    assert [(each.number, each.exit_code, each.reason) for each in replica.earlier] == [
        (0, 1, "exit code 1"),
        (1, 1, "exit code 1"),
    ]
    times = [(each.started_at, each.ended_at) for each in (*replica.earlier, replica)]
    assert all(start <= end for start, end in times)
    assert times == sorted(times)
    # parts of its log, by their place in it, over all attempts
    second = cluster.log_part(app_id, "r", 0, LogRange(100, start=replica.earlier[1].log_position))
    assert second.data == b"attempt 1\ntorn"
    assert second.before == len(b"attempt 0\ntorn")
    last = cluster.log_part(app_id, "r", 0, LogRange(100, is_complete=True))
    assert last.data == b"attempt 2\ntorn"
    assert last.size == last.before + len(last.data) == 3 * len(last.data)
    assert cluster.log_part(app_id, "r", 0, LogRange(100, end=last.start)).data == second.data
    with pytest.raises(UsageError, match="no replica"):
        cluster.log_part(app_id, "../logs/r", 0, LogRange(100))


def test_no_link_of_a_chain_starts_after_a_failure_that_it_must_not_follow(cluster, queue, tmp_path):
    first = submit(cluster, f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 1")
    info = cluster.submit_dryrun(AppDef("after", [role("echo ran")]), {"chain": 2})
    cluster._depend_on(info, [Dependency(first)])
    after = cluster.schedule(info)
    (tmp_path / "go").touch()
    assert cluster.wait(after, 50).state == AppState.CANCELLED
    assert [item.native_state for item in cluster.query_all(cluster.commands(""), None)][1:] == (
        ["CANCELLED"] * 2
    )


def test_a_job_waits_for_others(cluster, queue, tmp_path):
    first = submit(cluster, f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 1")
    info = cluster.submit_dryrun(AppDef("after", [role("echo ran")]), {})
    cluster._depend_on(info, [Dependency(first)])
    assert "--after 1" in repr(info)
    after = cluster.schedule(info)
    info = cluster.submit_dryrun(AppDef("any", [role("echo ran")]), {})
    cluster._depend_on(info, [Dependency(first, any_end=True)])
    any_end = cluster.schedule(info)
    assert cluster.describe(after).state == AppState.PENDING
    (tmp_path / "go").touch()
    assert cluster.wait(after, 50).state == AppState.CANCELLED
    assert cluster.wait(any_end, 50).state == AppState.SUCCEEDED
    with pytest.raises(UnknownAppException):
        cluster._depend_on(info, [Dependency("no-such-job")])


# ---- what travels


def test_secrets_are_neither_in_the_script_nor_shown(cluster, queue):
    secret = "hunter2hunter2"
    app = AppDef("job", [role('test "$API_TOKEN" = ' + secret + "-", env={"API_TOKEN": secret + "-"})])
    app.roles[0].args[1] = 'echo "${API_TOKEN}"'
    info = cluster.submit_dryrun(app, {"env": {"MORE": "a b", "DB_PASSWORD": "sesame sesame"}})
    assert secret not in repr(info)
    assert "sesame" not in repr(info)
    assert "export MORE='a b'" in repr(info)
    app_id = cluster.schedule(info)
    cluster.wait(app_id, 50)
    assert list(cluster.log_iter(app_id, "r")) == [secret + "-\n"]
    folder = folder_of(cluster, app_id)
    for name in ("script", "job.json", "run.sh"):
        with open(os.path.join(folder, name)) as file:
            assert secret not in file.read()
    assert os.stat(os.path.join(folder, "roles", "r.sh")).st_mode & 0o777 == 0o600
    assert os.stat(folder).st_mode & 0o777 == 0o700


def test_a_dry_run_shows_no_line_of_a_secret_of_several_lines(cluster):
    env = {"DB_PASSWORD": "sesame\nopen it's\nsesame", "PLAIN": "one\ntwo"}
    shown = str(cluster.submit_dryrun(AppDef("job", [role("exit 0", env=env)]), {}))
    assert "sesame" not in shown
    assert "open it" not in shown
    assert "export PLAIN='one\ntwo'\n" in shown
    assert "export DB_PASSWORD=<redacted>\n" in shown


@pytest.mark.parametrize(
    ("cfg", "problem"),
    [
        ({"chain": 0}, "chain=0 must be at least 1"),
        ({"chain": 99_999_999_999}, "chain=99999999999 is more than 1,000"),
        ({"grace_period": -1.0}, "grace_period=-1"),
        ({"env": {"A B": "x"}}, "'A B' is not a valid variable name"),
        ({"host": "far", "shared_dir": "here"}, "shared_dir='here' is not an absolute path"),
    ],
)
def test_options_that_cannot_be_are_refused(cluster, cfg, problem):
    with pytest.raises(ConfigError, match=problem):
        cluster.submit_dryrun(AppDef("job", [role("exit 0")]), cfg)


def test_a_variable_that_no_shell_can_set_is_refused(cluster):
    with pytest.raises(ConfigError, match=r"a shell cannot set the variable 'A.B'"):
        cluster.submit_dryrun(AppDef("job", [role("exit 0", env={"A.B": "x"})]), {})


def test_jobs_with_the_same_code_share_one_copy(cluster, queue, project):
    (project / "tool.sh").write_text("echo version 1\n")
    app = AppDef("job", [Role("r", "", entrypoint="sh", args=["tool.sh"])])
    first = cluster.submit(app, {}, str(project))
    second = cluster.submit(app, {}, str(project))
    (project / "tool.sh").write_text("echo version 2\n")
    third = cluster.submit(app, {}, str(project))
    texts = []
    for app_id in (first, second, third):
        assert cluster.wait(app_id, 50).state == AppState.SUCCEEDED
        texts += cluster.log_iter(app_id, "r")
    assert texts == ["version 1\n", "version 1\n", "version 2\n"]
    shared = cluster.default_place().shared
    assert len(cluster.storage("").names(os.path.join(shared, "code"))) == 2
    assert [attempt(cluster.delete, app_id) for app_id in (first, third)] == [None, None]
    long_ago = time.time() - 10 * 86400
    for name in cluster.storage("").names(os.path.join(shared, "code")):
        os.utime(os.path.join(shared, "code", name), (long_ago, long_ago))
    found = {item.app_id or "code": item for item in cluster.leftovers({}, 0.0)}
    assert sorted(found) == sorted(["code", second])
    assert cluster.remove_leftovers({}, list(found.values())) > 0
    assert cluster.storage("").names(os.path.join(shared, "code")) != []  # the one that `second` had
    assert cluster.describe(second) is None


TRAINING = """
import os, pathlib, sys
data = pathlib.Path(os.environ["SM_CHANNEL_TRAINING"], "data.txt").read_text().strip()
print("data", data, "lr", sys.argv[1:], flush=True)
pathlib.Path(os.environ["SM_MODEL_DIR"], "model.txt").write_text("model of " + data)
if data == "bad":
    sys.exit("cannot learn this")
"""


@pytest.mark.slow
def test_a_training_script_has_its_channels_and_leaves_its_model(cluster, queue, project):
    (project / "train.py").write_text(TRAINING)
    for name in ("good", "bad"):
        (project.parent / name).mkdir()
        (project.parent / name / "data.txt").write_text(name)
    found = {}
    for name in ("good", "bad"):
        app = train_script("--lr", "0.1", script="train.py", channel={"training": str(project.parent / name)})
        info = prepare(cluster, app, Submission(workspace=str(project)), (), {})
        cluster.ship(info)
        app_id = cluster.schedule(info)
        found[name] = cluster.wait(app_id, 50)
        lines = list(cluster.log_iter(app_id, "train"))
        assert f"data {name} lr ['--lr', '0.1']\n" in lines
    assert found["good"].state == AppState.SUCCEEDED
    with open(os.path.join(found["good"].results, "model", "model.txt")) as file:
        assert file.read() == "model of good"
    assert found["bad"].state == AppState.FAILED
    assert "cannot learn this" in found["bad"].structured_error_msg
    app = train_script(script="train.py", channel={"training": "/no/such/data"})
    with pytest.raises(ConfigError, match=r"channel 'training': .* does not exist"):
        prepare(cluster, app, Submission(workspace=str(project)), (), {})


# ---- many


def test_many_jobs_are_described_by_a_constant_number_of_calls(cluster, queue):
    ids = [submit(cluster, "exit 0") for _ in range(3)]
    for app_id in ids:
        cluster.wait(app_id, 50)
    cluster._queries.clear()
    before = len(calls(queue))
    assert all(found.state == AppState.SUCCEEDED for found in cluster.describe_many(ids).values())
    assert len(calls(queue)) == before + 1
    assert {row.app_id for row in cluster.list()} == set(ids)
    assert len(calls(queue)) == before + 2


DAMAGED = (*("[]", "{", '{"layout": 5}', None),)


def test_a_damaged_folder_hides_no_other_job(cluster, queue):
    good = submit(cluster, "exit 0")
    cluster.wait(good, 50)
    for number, content in enumerate(DAMAGED):
        damaged = folder_of(cluster, f"damaged-bcdfghjkm{number}")
        os.mkdir(damaged)
        if content is None:
            os.mkfifo(f"{damaged}/job.json")
        else:
            (Path(damaged) / "job.json").write_text(content)
        assert cluster.describe(os.path.basename(damaged)) is None
    assert [row.app_id for row in cluster.list()] == [good]

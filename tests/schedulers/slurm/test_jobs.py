"""Jobs on a real Slurm beyond the conformance suite: kinds, warnings, chains, waiting, entering, scale."""

import os
import re
import subprocess
import sys
import time

import pytest

from shunter import metrics
from shunter.components.train import script
from shunter.errors import BackendError, ConfigError
from shunter.runner import get_runner, resource_use
from shunter.schedulers.api import Dependency, LogQuery, Stream
from shunter.schedulers.hpc.commands import Commands
from shunter.specs import AppDef, AppState, Resource
from shunter.sweeps import run_sweep
from tests import backends
from tests.dev_sessions import check_on_a_cluster
from tests.web_server_job import PROGRAM, Forwarding

from .conftest import SMALL, Jobs, role

pytestmark = pytest.mark.timeout(240)
TWO_CPUS = Resource(cpu=2, gpu=0, memMB=64)
# Goes on from its checkpoint; a warning makes it write one and end.
RESUMED = """
n=$(cat {path} 2>/dev/null || echo 0)
trap 'echo $n > {path}; echo saved $n; exit 0' TERM
while [ $n -lt {last} ]; do
    n=$((n + 1)); echo step $n
    if [ $n = 3 ]; then echo waits; sleep 300 & wait $!; fi
done
echo finished
"""


@pytest.mark.slow
@pytest.mark.parametrize("resource", [SMALL, TWO_CPUS], ids=["steps of one allocation", "heterogeneous"])
def test_roles_know_their_first_replica(jobs, resource):
    script = 'echo "$(hostname) $TORCHX_RANK0_HOST"'
    app_id, found = jobs.run(role(script, "a", num_replicas=2), role(script, "b", resource=resource))
    assert found.state == AppState.SUCCEEDED, found
    seen = {(name, k): jobs.log(app_id, name, k)[0].split() for name, k in (("a", 0), ("a", 1), ("b", 0))}
    assert len({host for host, _ in seen.values()}) == 3
    assert seen["a", 0][1] == seen["a", 1][1] == seen["a", 0][0]
    assert seen["b", 0][0] == seen["b", 0][1]
    hosts = {(r.role, r.id): r.hostname for r in found.to_status().replicas()}
    assert hosts == {key: host for key, (host, _) in seen.items()}


def test_a_job_has_nothing_secret_of_the_environment_that_it_is_submitted_in(jobs, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    monkeypatch.setenv("NOTE", "two\nlines=x")
    app_id, _ = jobs.run(role("env"))
    names = {line.partition("=")[0] for line in jobs.log(app_id)}
    assert names >= {"PATH", "HOME", "SLURM_JOB_ID", "TORCHX_RANK0_HOST"}
    assert not names & {"AWS_SECRET_ACCESS_KEY", "NOTE"}


def test_jobs_that_slurm_ended_tell_when(jobs, slurm):
    began = time.time()
    killed = jobs.submit(role("echo up; exec sleep 600"))
    jobs.wait_for_line(killed, "up")
    never = jobs.submit(role("exit 0"), sbatch_args=["--begin=now+1hour"])
    jobs.scheduler.cancel(never)
    slurm.run("scancel", "--full", "--signal=KILL", jobs.native_id(killed))
    first, unstarted = (jobs.end_of(app_id).to_status() for app_id in (killed, never))
    assert began <= first.started_at <= first.ended_at <= time.time() + 1
    assert unstarted.started_at is None
    assert began - 1 <= unstarted.ended_at <= time.time() + 1
    for app_id, before in ((killed, first), (never, unstarted)):
        assert jobs.scheduler.describe(app_id).to_status().ended_at == before.ended_at


@pytest.mark.slow
def test_gpus_are_given(jobs):
    gpus = Resource(cpu=1, gpu=2, memMB=64)
    app_id, _ = jobs.run(role("echo gpus=$CUDA_VISIBLE_DEVICES", resource=gpus), partition="gpu")
    assert jobs.log(app_id) == ["gpus=0,1\n"]


@pytest.mark.slow
def test_a_chain_goes_on_from_the_checkpoint_with_one_id_and_one_log(jobs, slurm, tmp_path):
    app_id = jobs.submit(role(RESUMED.format(path=tmp_path / "n", last=5)), chain=3)
    jobs.wait_for_line(app_id, "waits")
    first = jobs.native_id(app_id).split(",")[0]
    # what --signal=B:USR1@... does before the time limit
    slurm.run("scancel", "--batch", "--signal=USR1", first)
    jobs.wait_for_line(app_id, "finished")
    found = jobs.end_of(app_id)
    assert found.state == AppState.SUCCEEDED, found
    lines = [line.strip() for line in jobs.log(app_id, streams=Stream.STDOUT)]
    assert lines == ["step 1", "step 2", "step 3", "waits", "saved 3", "step 4", "step 5", "finished"]
    assert len([row for row in jobs.scheduler.list() if row.app_id == app_id]) == 1
    assert len(found.metadata["native_id"].split(",")) == 3


@pytest.mark.slow
def test_the_time_limit_warns_before_and_is_the_reason(jobs, slurm, tmp_path):
    two, one = (
        jobs.submit(role(RESUMED.format(path=tmp_path / f"n{time}", last=5)), time=time)
        for time in ("2", "1")
    )
    for app_id in (one, two):
        jobs.wait_for_line(app_id, "waits")
    for app_id in (
        one,
        two,
    ):  # Slurm sends signals up to a minute early; for short limits the script sends its own
        found = jobs.end_of(app_id)
        assert found.state == AppState.FAILED
        assert found.msg == "the time limit was reached"
        assert jobs.log(app_id, streams=Stream.STDOUT)[-1] == "saved 3\n"


#: Replica 0 fails when all are up. The others save for longer than Slurm's KillWait of 10 s; some fail then.
SAVING = """
trap 'sleep $((12 * SHUNTER_REPLICA)); echo saved; exit $((1 - SHUNTER_REPLICA % 2))' TERM
touch {up}/$(hostname)
until [ $(ls {up} | wc -l) = {count} ]; do sleep 0.1; done
[ $SHUNTER_REPLICA != 0 ] || [ -n "$OTHER" ] || exit 7
while :; do sleep 0.1; done
"""


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True], ids=["one step", "a step for each role"])
def test_the_peers_of_a_replica_that_fails_get_the_grace_period(jobs, tmp_path, split):
    up = tmp_path / "up"
    up.mkdir()
    script = SAVING.format(up=up, count=4 if split else 3)
    roles = [role(script, num_replicas=2 if split else 3)]
    roles += [role(f"OTHER=1\n{script}", "other", num_replicas=2)] if split else []
    app_id, found = jobs.run(*roles)
    assert found.state == AppState.FAILED
    assert found.msg == "r/0: exit code 7"
    replicas = found.to_status().replicas()
    assert [replica.state for replica in replicas[1:]].count(AppState.FAILED) == 0
    for replica in replicas[1:]:
        assert jobs.log(app_id, replica.role, replica.id, streams=Stream.STDOUT) == ["saved\n"], replica


@pytest.mark.slow
def test_peers_that_do_not_stop_are_killed_after_the_grace_period(jobs):
    script = "trap '' TERM; [ $SHUNTER_REPLICA != 0 ] || { sleep 2; exit 7; }; sleep 300"
    began = time.monotonic()
    _, found = jobs.run(role(script, num_replicas=2), grace_period=3)
    assert found.state == AppState.FAILED
    assert found.msg == "r/0: exit code 7"
    assert 4 < time.monotonic() - began < 60


@pytest.mark.slow
def test_replicas_that_save_before_the_time_limit_do_not_end_each_other(jobs, slurm):
    saving = "sleep $((12 * SHUNTER_REPLICA)); echo saved; exit 0"
    app_id = jobs.submit(role(f"trap '{saving}' TERM; echo up; while :; do sleep 0.1; done", num_replicas=2))
    for k in range(2):
        jobs.wait_for_line(app_id, "up", k=k)
    slurm.run("scancel", "--batch", "--signal=USR1", jobs.native_id(app_id))
    jobs.end_of(app_id)
    logs = [jobs.log(app_id, k=k, streams=Stream.STDOUT) for k in range(2)]
    assert logs == [["up\n", "saved\n"]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["alone", "torchrun", "dist.ddp"])
def test_the_warning_reaches_a_training_script(jobs, slurm, tmp_path, monkeypatch, how):
    from shunter.components.dist import ddp

    if how != "alone":
        backends.need("torch")
        (tmp_path / "bin").mkdir()
        for name, module in (("python", ""), ("torchrun", "-m torch.distributed.run ")):
            program = tmp_path / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {module}"$@"\n')
            program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(
        "import os, signal, sys, time\n"
        "path = os.path.join(os.environ.get('SM_MODEL_DIR', '.'), 'checkpoint')\n"
        "def save(*_):\n"
        "    open(path, 'w').write('x'); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('up', flush=True)\n"
        "time.sleep(300)\n"
    )
    with get_runner("test") as runner:
        size = {"cpu": 1, "memMB": 256}
        if how == "dist.ddp":
            app = ddp(script="train.py", j="1x1", **size)
        else:
            app = script(script="train.py", distribution="none" if how == "alone" else how, **size)
        handle = runner.run(app, "slurm", workspace=str(tmp_path / "code"))
        app_id = handle.rpartition("/")[2]
        jobs.ids.append(app_id)
        name = app.roles[0].name
        jobs.wait_for_line(app_id, "up\n", name)
        slurm.run("scancel", "--batch", "--signal=USR1", jobs.native_id(app_id))
        jobs.end_of(app_id)
    assert any(line.endswith("saved\n") for line in jobs.log(app_id, name))


@pytest.mark.slow
def test_a_job_waits_for_others(jobs):
    def submit_after(script: str, *dependencies: Dependency, **cfg) -> str:
        info = jobs.scheduler.submit_dryrun(AppDef("job", [role(script)]), cfg)
        jobs.scheduler._depend_on(info, list(dependencies))
        jobs.ids.append(jobs.scheduler.schedule(info))
        return jobs.ids[-1]

    bad = jobs.submit(role("sleep 1; exit 1"))
    never = submit_after("echo no", Dependency(bad, False))
    after = submit_after("echo yes", Dependency(bad, True))
    chain = submit_after("echo no", Dependency(bad, False), Dependency(after, True), chain=2)
    assert jobs.end_of(after).state == AppState.SUCCEEDED
    for app_id in (never, chain):
        assert jobs.end_of(app_id).state == AppState.CANCELLED
        assert jobs.log(app_id) == []


@pytest.mark.slow
def test_a_command_runs_beside_a_replica(jobs, slurm):
    app_id = jobs.submit(role("echo up; sleep 300", num_replicas=2))
    array = jobs.submit(role("echo up; sleep 300", num_replicas=2), array=True)
    two_each = jobs.submit(role("echo up; sleep 300", num_replicas=4), replicas_per_node=2)
    other = role("sleep 300", "other", resource=TWO_CPUS)
    shapes = jobs.submit(other, role("echo up; sleep 300", num_replicas=2))
    program = (
        "import sys; from shunter.schedulers.slurm_scheduler.scheduler import create_scheduler\n"
        "s = create_scheduler('test'); sys.exit(s.execute(sys.argv[1], 'r', 1, sys.argv[2:], tty=False))"
    )
    for job in (app_id, array, two_each, shapes):
        jobs.wait_for_line(job, "up", k=1)
        host = jobs.scheduler.describe(job).roles_statuses[-1].replicas[1].hostname
        command = [sys.executable, "-c", program, job, "sh", "-c", "hostname; echo oops >&2; exit 7"]
        done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
        # srun by itself would complain about the exit code
        assert (done.stdout, done.stderr, done.returncode) == (f"{host}\n", "oops\n", 7)


@pytest.mark.slow
def test_what_a_script_uses_comes_back_with_its_log(jobs, tmp_path):
    (tmp_path / "train.py").write_text(
        "import time\ndata = bytearray(b'x') * (80 << 20)\nprint('loss=0.5')\ntime.sleep(11)\n"
    )
    with get_runner("test") as runner:
        app = script(script="train.py", cpu=1, memMB=256)
        handle = runner.run(app, "slurm", workspace=str(tmp_path))
        jobs.ids.append(handle.rpartition("/")[2])
        runner.wait(handle)
        name = app.roles[0].name
        (text,) = resource_use.use_lines(runner, handle)
        found = metrics.read(runner, handle)
        lines = list(runner.log_lines(handle, name))
        (last,) = runner.log_blocks(handle, [(name, 0)], LogQuery(last=1))
    assert re.match(rf"{name}: used \d+ MiB of 256 MiB memory, [\d.]+ of 1 CPUs on average", text)
    assert found["loss"][0].last == 0.5
    assert 80 << 20 < found["system/memory_bytes"][0].last < 256 << 20
    assert not [line for line in lines if "@" in line]
    assert last.data == b"loss=0.5\n"


@pytest.mark.slow
def test_a_port_of_a_node_is_forwarded(jobs):
    app_id = jobs.submit(role(f"exec python3 -c '{PROGRAM}'"))
    port = int(jobs.wait_for_line(app_id, "port ").split()[1])
    with Forwarding(f"slurm://test/{app_id}", port, os.environ) as forwarding:
        forwarding.check()
        jobs.scheduler.cancel(app_id)
        assert "has ended: CANCELLED" in forwarding.said()


@pytest.mark.slow
def test_an_interactive_job_is_entered_and_ends_when_idle(slurm, tmp_path):
    check_on_a_cluster("slurm", tmp_path / "project")


def test_what_can_never_start_is_refused_before(jobs):
    for fields, cfg, words in (
        ({"num_replicas": 9}, {}, "needs 9 nodes with 1 CPUs, 64 MiB, but the partition cpu has only 4"),
        ({"resource": Resource(cpu=99, gpu=0, memMB=1)}, {}, "no node of the partition cpu has 99 CPUs"),
        ({}, {"partition": "gpuu"}, "there is no partition 'gpuu'"),
        ({}, {"time": "1-00"}, "longer than the partition cpu allows"),
        ({}, {"container": "pyxis"}, ""),
    ):
        if "container" in cfg:
            fields = {"image": "busybox"}
            words = "does not know --container-image"
        with pytest.raises(ConfigError, match=words):
            jobs.submit(role("true", **fields), **cfg)


@pytest.mark.parametrize(
    ("cfg", "words", "hint"),
    [
        ({"reservation": "r9"}, "Requested reservation is invalid", "scontrol show reservation"),
        ({"constraint": "infiniband"}, "Invalid feature", "sinfo -o"),
        ({"nodelist": "n77"}, "Invalid node name", "sinfo -N"),
        ({"array": True}, "Invalid job array specification", "MaxArraySize"),
    ],
)
def test_a_refusal_comes_in_slurms_own_words(jobs, cfg, words, hint):
    with pytest.raises(BackendError, match=words) as error:
        jobs.submit(role("true", num_replicas=1002 if "array" in cfg else 1), **cfg)
    assert hint in error.value.hint


def test_a_job_that_waits_says_why(jobs, slurm):
    app_id = jobs.submit(role("true"), partition="closed")
    found = jobs.seen(app_id, lambda found: "Partition" in found.msg)
    assert found.state == AppState.PENDING
    assert "PartitionDown" in found.msg
    slurm.run("scontrol", "hold", jobs.native_id(app_id))
    found = jobs.seen(app_id, lambda found: "JobHeld" in found.msg)
    assert "cannot start" in found.msg


def test_a_folder_that_is_missing_on_the_node_is_the_reason(jobs):
    _, found = jobs.run(role("true"), workdir="/no/such/folder")
    replica = found.roles_statuses[0].replicas[0]
    assert replica.reason == f"the folder /no/such/folder does not exist on node {replica.hostname}"
    assert replica.exit_code == 72
    assert "the folder /no/such/folder does not exist on node" in found.msg


def test_doctor(jobs):
    checks = {check.name: check for check in jobs.scheduler.doctor({"partition": "gpu"})}
    assert checks["controller"].ok
    assert "gpu: 2 of 2 nodes are up" in checks["partition"].text
    assert checks["a job"].ok
    assert checks["accounting"].ok is None
    bad = {check.name: check for check in jobs.scheduler.doctor({"constraint": "x", "partition": "nope"})}
    assert bad["partition"].ok is False
    assert bad["a job"].ok is False


@pytest.fixture
def calls(monkeypatch):
    """The native programs that are run."""
    programs: list[str] = []
    run = Commands.run

    def counted(self, command, **options):
        programs.append(next(word for word in command if word != "env" and "=" not in word))
        return run(self, command, **options)

    monkeypatch.setattr(Commands, "run", counted)
    return programs


@pytest.mark.slow
@pytest.mark.timeout(900)  # a thousand calls of sbatch
def test_a_thousand_jobs_take_as_many_calls_as_ten(calls, own_slurm, monkeypatch):
    jobs = Jobs()
    monkeypatch.setattr(type(jobs.scheduler), "_check_against_cluster", lambda *_: None)
    ids = [jobs.submit(role("true"), sbatch_args=["--begin=now+1hour"]) for _ in range(1000)]
    counts = []
    for some in (ids[:10], ids):
        asking = Jobs().scheduler
        calls.clear()
        states = [found.state for found in asking.describe_many(some).values()]
        assert states == [AppState.PENDING] * len(some)
        asking.list()
        counts.append(sorted(calls))
    assert counts[0] == counts[1]
    assert len([name for name in counts[1] if name != "sh"]) <= 5, counts  # sh reads the shared storage
    calls.clear()
    jobs.scheduler.cancel_many(ids)
    assert calls.count("scancel") == 1
    assert {found.state for found in Jobs().scheduler.describe_many(ids).values()} == {AppState.CANCELLED}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_array_of_200_tasks_is_followed_without_loss(jobs):
    script = "i=0; while [ $i -lt 50 ]; do i=$((i + 1)); echo $SHUNTER_REPLICA.$i; done"
    tiny = Resource(cpu=1, gpu=0, memMB=8)
    app_id = jobs.submit(role(script, num_replicas=200, resource=tiny), array=True, max_running=12)
    replicas = [("r", k) for k in range(200)]
    lines: dict[int, list[str]] = {k: [] for _, k in replicas}
    for block in jobs.scheduler.log_blocks(app_id, replicas, LogQuery(should_tail=True)):
        lines[block.replica] += block.data.decode().splitlines()
    assert lines == {k: [f"{k}.{i}" for i in range(1, 51)] for k in range(200)}
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED


@pytest.mark.slow
def test_single_replicas_of_an_array_are_cancelled(jobs, tmp_path):
    script = f"echo up; while ! [ -e {tmp_path}/go ]; do sleep 0.1; done"
    gang = jobs.submit(role("sleep 300", num_replicas=2))
    app_id = jobs.submit(role(script, num_replicas=4), array=True, max_running=2)
    jobs.wait_for_line(app_id, "up", k=0)
    jobs.wait_for_line(app_id, "up", k=1)
    command = [
        sys.executable,
        "-m",
        "shunter",
        "cancel",
        f"slurm://test/{app_id}/r/1,3",
    ]  # one runs, one waits
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert f"asked r/1, r/3 of slurm://test/{app_id} to stop" in said

    def states(found):
        return [replica.state for replica in found.roles_statuses[0].replicas]

    wanted = [AppState.RUNNING, AppState.CANCELLED, AppState.RUNNING, AppState.CANCELLED]
    jobs.seen(app_id, lambda found: states(found) == wanted)
    (tmp_path / "go").touch()
    found = jobs.end_of(app_id)
    assert found.state == AppState.CANCELLED
    assert found.msg.startswith("r/1 and 1 more: cancelled by ")
    assert states(found) == [AppState.SUCCEEDED, AppState.CANCELLED] * 2
    with pytest.raises(ConfigError, match="is not an array: its replicas work together"):
        jobs.scheduler.cancel_replicas(gang, [("r", 1)])


@pytest.mark.slow
def test_accounting_tells_the_end_of_what_left_no_record(accounted):
    jobs = Jobs()
    app_id = jobs.submit(role("sleep 300"))
    jobs.seen(app_id, lambda found: found.state == AppState.RUNNING)
    native_id = jobs.native_id(app_id)
    accounted.run("scancel", "--signal=KILL", "--full", native_id)
    found = jobs.end_of(app_id)
    assert found.state in (AppState.FAILED, AppState.CANCELLED)
    accounting = jobs.scheduler._accounting(Commands(), "", ["-D", "-j", native_id])
    jobs.seen(app_id, lambda _: jobs.scheduler._accounting(Commands(), "", ["-D", "-j", native_id]))
    assert accounting is not None


def test_accounting_that_is_forbidden_does_no_harm(jobs, slurm, tmp_path, monkeypatch):
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "sacct").write_text("#!/bin/sh\necho 'sacct: error: Access/permission denied' >&2; exit 1\n")
    (fake / "squeue").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo slurm 22.05.8 && exit\n'
        "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n"
    )
    for program in fake.iterdir():
        program.chmod(0o755)
    app_id, _ = jobs.run(role("exit 3"))
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    found = Jobs().scheduler.describe(app_id)  # neither queue nor accounting has it any more
    assert found.state == AppState.FAILED
    assert found.roles_statuses[0].replicas[0].exit_code == 3


@pytest.mark.slow
def test_a_sweep_is_an_array_whose_tasks_have_their_own_arguments(jobs, tmp_path, monkeypatch):
    from shunter.specs.sweep_points import Point

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:]); sys.exit(sys.argv[1] == '2')")
    with get_runner() as runner:
        found = [Point({"n": n}, ["--cpu", "1", "--script", "train.py", "--", n, "a 'b'"]) for n in "123"]
        handle = run_sweep(runner, "train.script", found, "slurm", {**jobs.cfg, "time": "5"}, parallel=2)
        status = runner.wait(handle)
        assert [each.state.name for each in status.replicas()] == ["SUCCEEDED", "FAILED", "SUCCEEDED"], status
        first = [next(iter(runner.log_lines(handle, "train", k, streams=Stream.STDOUT))) for k in range(3)]
        assert first == [f"[{n!r}, \"a 'b'\"]\n" for n in "123"]
        again = runner.rerun(handle, only_failed=True)
        assert [each.state.name for each in runner.wait(again).replicas()] == ["FAILED"]


@pytest.mark.slow
def test_replicas_under_the_toolkit_reach_each_other_by_what_sm_hosts_says(jobs, tmp_path):
    """Nodes that share a machine have the same address, so their hosts get loopback addresses."""

    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(
        "import json, os, socket, time\n"
        "hosts, own = json.loads(os.environ['SM_HOSTS']), os.environ['SM_CURRENT_HOST']\n"
        "if own == hosts[0]:\n"
        "    with socket.create_server((own, 29377)) as server:\n"
        "        print('heard', server.accept()[0].recv(99).decode() == hosts[1], flush=True)\n"
        "else:\n"
        "    deadline = time.monotonic() + 30\n"
        "    while True:\n"
        "        try:\n"
        "            socket.create_connection((hosts[0], 29377)).sendall(own.encode())\n"
        "            break\n"
        "        except OSError:\n"
        "            assert time.monotonic() < deadline\n"
        "            time.sleep(0.05)\n"
    )
    with get_runner("test") as runner:
        app = script(script="train.py", num_replicas=2, cpu=1, memMB=256)
        handle = runner.run(app, "slurm", workspace=str(tmp_path / "code"))
        app_id = handle.rpartition("/")[2]
        jobs.ids.append(app_id)
        assert jobs.end_of(app_id).state == AppState.SUCCEEDED, jobs.log(app_id, app.roles[0].name)
    assert "heard True\n" in jobs.log(app_id, app.roles[0].name)

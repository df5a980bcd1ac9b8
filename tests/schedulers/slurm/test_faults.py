"""What breaks under a job: nodes, links, the controller. The job must not end by it."""

import os
import shutil
import subprocess
import sys
import threading

import pytest

from shunter.errors import ConfigError, UnreachableError
from shunter.specs import AppDef, AppState
from tests import backends
from tests.slurm_cluster import private_cluster

from .conftest import Jobs, role

pytestmark = pytest.mark.timeout(240)

# Counts to 8, one file system entry for each step, and goes on where the last attempt was.
COUNTING = """
echo "attempt $SHUNTER_ATTEMPT on $(hostname) from $(ls {done} | wc -l)"
trap 'echo stopped; exit 1' TERM
while [ "$(ls {done} | wc -l)" -lt 8 ]; do
    touch {done}/$(ls {done} | wc -l)
    echo "step $(ls {done} | wc -l)"
    while [ -e {hold} ] && [ "$(ls {done} | wc -l)" -ge 3 ]; do sleep 0.1; done
done
echo finished
"""


@pytest.fixture
def counting(tmp_path):
    """A script that counts, and the file that holds it at step 3."""
    done, hold = tmp_path / "done", tmp_path / "hold"
    done.mkdir()
    hold.touch()
    return COUNTING.format(done=done, hold=hold), hold


def steps_of(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.startswith("step")]


@pytest.mark.slow
def test_a_node_is_killed_and_the_job_goes_on_elsewhere(own_slurm, counting):
    script, hold = counting
    jobs = Jobs()
    app_id = jobs.submit(role(script))
    jobs.wait_for_line(app_id, "step 3")
    first = jobs.scheduler.describe(app_id).roles_statuses[0].replicas[0].hostname
    own_slurm.kill_node(first)
    hold.unlink()
    states = set()
    own_slurm.declare_down(first)
    jobs.seen(app_id, lambda found: states.add(found.state) or found.state == AppState.SUCCEEDED)
    assert not states & {AppState.FAILED, AppState.CANCELLED}
    lines = jobs.log(app_id)
    assert steps_of(lines) == [f"step {i}" for i in range(1, 9)]
    attempts = [line.split()[3] for line in lines if line.startswith("attempt")]
    assert len(attempts) == 2
    assert attempts[0] == first != attempts[1]
    assert jobs.scheduler.describe(app_id).num_restarts == 1


@pytest.mark.slow
def test_a_link_is_cut_under_two_nodes_that_work_together(monkeypatch, counting):
    backends.need("slurm")
    script, hold = counting
    with private_cluster(credential_seconds=10) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        jobs = Jobs()
        app_id = jobs.submit(role(script, num_replicas=2), nodelist="n3,n4")
        jobs.wait_for_line(app_id, "attempt")
        cluster.cut_link("n4")
        hold.unlink()
        assert jobs.scheduler.describe(app_id).state == AppState.RUNNING
        cluster.declare_down("n4")
        found = jobs.seen(app_id, lambda found: found.state == AppState.PENDING)
        assert "waiting" in found.msg
        cluster.kill_node("n4")
        cluster.start_node("n4")
        assert jobs.end_of(app_id).state == AppState.SUCCEEDED


@pytest.mark.slow
def test_the_controller_is_away_while_a_job_is_followed(own_slurm, tmp_path):
    release = tmp_path / "release"
    wait = f"while [ ! -e {release} ]; do sleep 0.1; done"
    script = f"for i in $(seq 40); do echo line $i; done; {wait}; echo last"
    jobs = Jobs()
    app_id = jobs.submit(role(script))
    jobs.wait_for_line(app_id, "line 40")
    lines: list[str] = []
    reader = threading.Thread(
        target=lambda: lines.extend(jobs.scheduler.log_iter(app_id, "r", should_tail=True)), daemon=True
    )
    reader.start()
    own_slurm.stop_controller()
    found = jobs.seen(app_id, lambda found: found.state == AppState.UNREACHABLE)
    assert "controller" in found.msg
    with pytest.raises(UnreachableError) as error:
        jobs.submit(role("true"))
    assert error.value.exit_code == 4
    release.touch()  # the job ends while nobody can see it
    found = jobs.seen(app_id, lambda found: found.state != AppState.UNREACHABLE)
    assert found.state == AppState.SUCCEEDED
    own_slurm.start_controller()
    reader.join(60)
    assert lines == [*(f"line {i}\n" for i in range(1, 41)), "last\n"]
    jobs.seen(app_id, lambda found: found.state == AppState.SUCCEEDED)


@pytest.mark.slow
def test_the_queue_forgets_jobs_and_their_own_records_tell_their_ends(monkeypatch, tmp_path):
    backends.need("slurm")
    with private_cluster(min_job_age=2) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        jobs = Jobs()
        # neither fails before the other has started
        both = f"until [ -e {tmp_path}/0 ] && [ -e {tmp_path}/1 ]; do sleep 0.1; done"
        fails = f'touch {tmp_path}/"$SHUNTER_REPLICA"; {both}; exit 5'
        good, bad = jobs.submit(role("true")), jobs.submit(role(fails, num_replicas=2))
        array = jobs.submit(role('test "$SHUNTER_REPLICA" != 2', num_replicas=4), array=True)
        waiting = jobs.submit(role("true"), sbatch_args=["--begin=now+1hour"])
        jobs.scheduler.cancel(waiting)
        for app_id in (good, bad, array, waiting):
            jobs.end_of(app_id)

        def is_forgotten() -> bool:
            return not cluster.run("squeue", "-h", "-t", "all")

        jobs.seen(good, lambda _: is_forgotten())
        found = Jobs().scheduler.describe_many([good, bad, array, waiting])
        assert found[good].state == AppState.SUCCEEDED
        assert found[bad].state == AppState.FAILED
        assert found[bad].roles_statuses[0].replicas[0].exit_code in (5, 143)
        assert found[array].state == AppState.FAILED
        assert [replica.exit_code for replica in found[array].roles_statuses[0].replicas] == [0, 0, 1, 0]
        assert found[waiting].state == AppState.CANCELLED


@pytest.mark.slow
def test_requeue_appends_to_the_log(own_slurm, counting):
    jobs = Jobs()
    script, hold = counting
    app_id = jobs.submit(role(script))
    jobs.wait_for_line(app_id, "step 3")
    own_slurm.run("scontrol", "requeue", jobs.native_id(app_id))
    jobs.wait_for_line(app_id, "attempt 1")
    hold.unlink()  # not before: a step cut short would print its line without a number
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED
    lines = jobs.log(app_id)
    assert [line.split()[1] for line in lines if line.startswith("attempt")] == ["0", "1"]
    assert steps_of(lines) == [f"step {i}" for i in range(1, 9)]


#: Submits; the third time it kills its client, before that knows of the job.
DEADLY_SBATCH = """#!/bin/sh
{real} "$@" || exit
echo >>{calls}
[ "$(wc -l <{calls})" != 3 ] || kill -{name} $PPID
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_what_a_client_leaves_that_is_killed_while_it_submits_a_chain(slurm, tmp_path, monkeypatch, name):
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(DEADLY_SBATCH.format(real=shutil.which("sbatch"), calls=tmp_path / "calls", name=name))
    program.chmod(0o755)
    words = ["run", "-s", "slurm", "--workspace", "", "-cfg", "chain=5", "utils.sh", "sleep", "300"]
    path = f"{program.parent}:{os.environ['PATH']}"
    command = [sys.executable, "-m", "shunter", *words]
    client = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, check=False)
    assert client.returncode != 0
    jobs = Jobs()
    [app_id] = os.listdir(os.path.expanduser("~/.shunter/jobs"))
    names = ["squeue", "-h", "-o", "%i", "-n", app_id]
    assert len(slurm.run(*names).split()) == 3
    assert app_id in [row.app_id for row in jobs.scheduler.list()]
    jobs.scheduler.cancel(app_id)
    assert jobs.end_of(app_id).state == AppState.CANCELLED
    assert slurm.run(*names).split() == []


def test_a_configuration_that_does_not_exist_is_reported_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv(
        "SLURM_CONF", str(tmp_path / "gone.conf")
    )  # Slurm's programs would look for it for a minute
    jobs = Jobs()
    with pytest.raises(UnreachableError, match=r"there is no configuration .*gone.conf") as error:
        jobs.submit(role("true"))
    assert "SLURM_CONF" in error.value.hint
    found = jobs.scheduler.describe("job-bcdfghjkmn")
    assert found.state == AppState.UNREACHABLE
    [check] = jobs.scheduler.doctor({})
    assert not check.ok


def test_without_slurm_here_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    jobs = Jobs()
    info = jobs.scheduler.submit_dryrun(AppDef("job", [role("true")]), {})  # a dry run needs no Slurm
    assert "#SBATCH --job-name=" in str(info)
    with pytest.raises(ConfigError, match="there is no program 'sinfo' here") as error:
        jobs.scheduler.schedule(info)
    assert "host=" in error.value.hint
    assert error.value.exit_code == 3

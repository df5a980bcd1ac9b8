"""What follows on the end of a job on a real Slurm: one notification of every end, retries of failures."""

import json
from pathlib import Path

import pytest

from shunter.specs import AppState
from tests import backends, slurm_cluster
from tests.receiver import receiving

from .conftest import Jobs, role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PYTHON = 'python3 -c "import time\ndef waits_for_ever():\n  time.sleep(300)\nwaits_for_ever()"'
#: Needs more memory than its first attempt has.
HUNGRY = 'ulimit -v $((SLURM_MEM_PER_NODE * 1024)); exec python3 -Sc "x = bytearray(60 << 20)"'


def settled(jobs, app_id):
    folder = Path(jobs.scheduler.default_place().shared, "jobs", app_id)
    jobs.seen(app_id, lambda _: (folder / "settled").exists())
    return folder


def test_every_end_is_told_once_and_failures_are_retried_by_class(jobs, slurm):
    with receiving(f"{slurm.net}.1") as receiver:
        notify = {"notify": [receiver.url], "notify_secret": "s3"}
        retry = {"retry": {"oom": "3:1G", "exception": "0", "other": "1"}}
        ends = {
            jobs.submit(role("true"), **notify): "SUCCEEDED",
            jobs.submit(role('test "$SHUNTER_REPLICA" = 0', num_replicas=2), array=True, **notify): "FAILED",
            (cancelled := jobs.submit(role("echo up; sleep 300"), **notify)): "CANCELLED",
            (
                late := jobs.submit(role("trap : TERM; sleep 300 & wait; sleep 300"), time="1", **notify)
            ): "FAILED",
            (raises := jobs.submit(role("python3 -c 'raise ValueError(1)'"), **notify, **retry)): "FAILED",
            (hungry := jobs.submit(role(HUNGRY), **notify, **retry)): "SUCCEEDED",
            (hung := jobs.submit(role(PYTHON), hang_timeout=2.0, on_hang="stop", **notify)): "FAILED",
        }
        jobs.wait_for_line(cancelled, "up")
        jobs.scheduler.cancel(cancelled)
        for app_id in ends:
            jobs.end_of(app_id)
            settled(jobs, app_id)
        received = [json.loads(body) for _, body in receiver.received]
        assert all(headers["webhook-signature"] for headers, _ in receiver.received)
    assert {message["job"]: message["state"] for message in received} == ends
    assert len(received) == len(ends)
    causes = {message["job"]: message["cause"] and message["cause"]["name"] for message in received}
    assert [causes[each] for each in (late, raises, hung)] == ["timeout", "exception", "hung"]
    stacks = "".join(jobs.log(hung))
    assert "in waits_for_ever" in stacks or "waits_for_ever (" in stacks  # the latter is py-spy's
    found = jobs.scheduler.describe(hungry)
    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    [entry] = map(json.loads, (settled(jobs, hungry) / "retries").read_text().splitlines())
    assert "restarted with 128 MB of memory: oom: retry 1 of 3" in entry["text"]
    assert "exception: it must not be retried" in jobs.scheduler.describe(raises).msg
    assert jobs.scheduler.describe(raises).num_restarts == 0


def test_a_node_that_was_lost_is_avoided_and_noted(own_slurm):
    jobs = Jobs()
    script = 'echo "on $(hostname)"; [ "$SHUNTER_ATTEMPT" != 0 ] || sleep 300'
    with receiving(f"{own_slurm.net}.1") as receiver:
        app_id = jobs.submit(role(script), retry={"node": "2", "exception": "0"}, notify=[receiver.url])
        jobs.wait_for_line(app_id, "on ")
        first = jobs.scheduler.describe(app_id).roles_statuses[0].replicas[0].hostname
        own_slurm.kill_node(first)
        own_slurm.declare_down(first)
        found = jobs.seen(app_id, lambda found: found.state == AppState.SUCCEEDED)
        folder = settled(jobs, app_id)
        [message] = receiver.wait_for(1)
    assert (found.num_restarts, message["state"], message["restarts"]) == (1, "SUCCEEDED", 1)
    [entry] = map(json.loads, (folder / "retries").read_text().splitlines())
    assert (entry["class"], entry["avoids"]) == ("node", [first])
    ledger = json.loads((folder.parent.parent / "bad-hosts.json").read_text())
    assert ledger["node"][first]["job"] == app_id
    assert jobs.log(app_id)[-1] != f"on {first}\n"
    [host] = [check for check in jobs.scheduler.doctor({}) if check.name == "host"]
    assert host.text.startswith(f"{first}: 1 x node, last at ")
    assert app_id in host.text
    assert str(folder.parent.parent / "bad-hosts.json") in host.hint


PREEMPTING_AND_BOUNDED = """\
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=low Nodes=n3 PriorityTier=1 MaxTime=60
PartitionName=high Nodes=n3 PriorityTier=9 MaxTime=60
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
"""


def test_slurm_itself_ends_jobs_and_they_are_submitted_again(monkeypatch):
    """For a job of more weight, and over their memory limit."""
    backends.need("slurm")
    with slurm_cluster.private_cluster(more=PREEMPTING_AND_BOUNDED) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        jobs = Jobs()
        script = 'echo up; [ "$SHUNTER_ATTEMPT" != 0 ] || sleep 300'
        fills = "exec python3 -Sc \"import time; x = b'x' * (90 << 20); time.sleep(8)\""
        with receiving(f"{cluster.net}.1") as receiver:
            common = {"notify": [receiver.url]}
            preempted = jobs.submit(
                role(script), partition="low", retry={"preempted": "2", "other": "0"}, **common
            )
            large = jobs.submit(role(fills), partition="gpu", retry={"oom": "2:1G", "other": "0"}, **common)
            jobs.wait_for_line(preempted, "up")
            cluster.run("sbatch", "-p", "high", "--exclusive", "--output=/dev/null", "--wrap=true")
            for app_id in (preempted, large):
                found = jobs.seen(app_id, lambda found: found.state in (AppState.SUCCEEDED, AppState.FAILED))
                assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1), found.msg
            entries = {
                app_id: json.loads((settled(jobs, app_id) / "retries").read_text())
                for app_id in (preempted, large)
            }
            messages = receiver.wait_for(2)
    assert sorted((message["job"], message["state"]) for message in messages) == sorted(
        (app_id, "SUCCEEDED") for app_id in entries
    )
    assert (entries[preempted]["class"], entries[large]["class"]) == ("preempted", "oom")
    assert "with 128 MB of memory: oom: retry 1 of 2" in entries[large]["text"]

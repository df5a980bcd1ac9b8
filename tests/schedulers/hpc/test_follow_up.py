"""What follows on the end of a cluster's job: notifications, or a new start."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import stat
from pathlib import Path

import pytest

from shunter._toolkit import follow_up
from shunter.diagnosis.causes import causes_table
from shunter.errors import ConfigError
from shunter.specs.app import AppDef, Resource
from shunter.specs.status import AppState
from tests.receiver import receiving
from tests.schedulers.hpc.conftest import wait_until
from tests.schedulers.hpc.test_jobs import folder_of, role

PATIENCE = 90
EXCEPTION = "printf 'Traceback (most recent call last):\\n  File\\nValueError: bad\\n' >&2; exit 1"
#: Fails for want of memory at its first attempt.
HUNGRY = '[ "$SHUNTER_ATTEMPT" != 0 ] || { echo "MemoryError: no more" >&2; exit 1; }'


def submit(cluster, script: str, **cfg) -> str:
    one = role(script, resource=Resource(cpu=1, gpu=0, memMB=64))
    return cluster.submit(AppDef("job", [one]), cfg)


def retries_of(cluster, app_id: str) -> list[dict]:
    text = Path(folder_of(cluster, app_id), "retries").read_text()
    return [json.loads(line) for line in text.splitlines()]


def jobs_of(cluster, app_id: str = "") -> list[dict]:
    """Return what the queue holds of a job, or of all."""
    answer = cluster.commands("").run(cluster.queue("list", *([app_id] if app_id else [])))
    return [json.loads(line) for line in answer.text.splitlines()]


def wait_until_settled(cluster, app_id: str) -> None:
    wait_until(Path(folder_of(cluster, app_id), "settled").exists, "all that follows")


@pytest.mark.parametrize("end", ["success", "failure", "cancellation"])
def test_others_are_told_once_of_every_end(cluster, end):
    script = {"success": "true", "failure": EXCEPTION, "cancellation": "echo up; sleep 300"}[end]
    with receiving() as receiver:
        app_id = submit(cluster, script, notify=[receiver.url], notify_secret="s3cret-of-mine")
        if end == "cancellation":
            wait_until(lambda: cluster.describe(app_id).state == AppState.RUNNING, "its start")
            cluster.cancel(app_id)
        found = cluster.wait(app_id, PATIENCE)
        wait_until_settled(cluster, app_id)
        cancelled = all(job["state"] != "PENDING" for job in jobs_of(cluster))
        [(headers, body)] = receiver.received
    message = json.loads(body)
    assert message["state"] == found.state.name
    assert message["handle"] == f"fake://test/{app_id}"
    assert (message["cause"] or {}).get("evidence") == ("ValueError: bad" if end == "failure" else None)
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"s3cret-of-mine", signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert cancelled  # the follow-up is not left behind
    assert [row.app_id for row in cluster.list()] == [app_id]
    holds = [
        p for p in Path(folder_of(cluster, app_id)).rglob("*") if p.is_file() and b"s3cret" in p.read_bytes()
    ]
    assert holds == []


def test_the_secret_lies_in_one_private_file_and_is_never_shown(cluster):
    cfg = {"notify": ["http://192.0.2.1/x"], "notify_secret": "s3cret-of-mine"}
    info = cluster.submit_dryrun(AppDef("job", [role("sleep 300")]), cfg)
    assert "# what follows on its end" in str(info)
    assert "s3cret" not in str(info)
    app_id = cluster.schedule(info)
    folder = Path(folder_of(cluster, app_id))
    [path] = [p for p in folder.rglob("*") if p.is_file() and b"s3cret" in p.read_bytes()]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    cluster.cancel(app_id)


def test_what_would_fail_again_is_not_repeated(cluster):
    app_id = submit(cluster, EXCEPTION, retry={"exception": "0", "oom": "3:1G", "other": "2"})
    found = cluster.wait(app_id, PATIENCE)
    assert found.state == AppState.FAILED
    assert "not restarted: exception: it must not be retried" in found.msg
    assert len(jobs_of(cluster, app_id)) == 1
    [entry] = retries_of(cluster, app_id)
    assert (entry["cause"], entry["again"]) == ("exception", False)


@pytest.mark.slow
def test_retries_end_and_each_has_its_log(cluster):
    app_id = submit(cluster, "echo attempt $SHUNTER_ATTEMPT; exit 7", retry={"other": "2"})
    found = cluster.wait(app_id, PATIENCE)
    assert (found.state, found.num_restarts) == (AppState.FAILED, 2)
    assert "2 of 2 retries are used up" in found.msg
    assert list(cluster.log_iter(app_id, "r")) == ["attempt 0\n", "attempt 1\n", "attempt 2\n"]


def test_a_refusal_of_the_queue_is_the_reason(cluster, queue, tmp_path):
    go = tmp_path / "go"
    wait = f"until [ -e {go} ]; do sleep 0.05; done; exit 7"
    app_id = submit(cluster, wait, retry={"other": "1"})
    document = Path(folder_of(cluster, app_id), "follow-up.json")
    asked = json.loads(document.read_text())
    document.write_text(json.dumps({**asked, "submit": ["sh", "-c", "echo no more jobs >&2; exit 1", "sh"]}))
    go.touch()
    found = cluster.wait(app_id, PATIENCE)
    assert found.state == AppState.FAILED
    assert "the queue refuses to restart it: no more jobs" in found.msg


@pytest.mark.slow
def test_a_job_whose_follow_up_was_cancelled_has_ended(cluster, tmp_path):
    go = tmp_path / "go"
    app_id = submit(cluster, f"until [ -e {go} ]; do sleep 0.05; done; exit 7", retry={"other": "1"})
    [follow_up] = Path(folder_of(cluster, app_id), "follow-up.ids").read_text().split()
    cluster.cancel_natively(cluster.commands(""), [follow_up])
    go.touch()
    assert cluster.wait(app_id, PATIENCE).state == AppState.FAILED
    assert [row.state for row in cluster.list()] == [AppState.FAILED]


@pytest.mark.parametrize("cfg", [{"array": True}, {"chain": 2}])
def test_what_cannot_go_together_is_refused(cluster, cfg):
    with pytest.raises(ConfigError, match=r"retry: fake cannot retry a job by class|array=True"):
        cluster.submit_dryrun(AppDef("job", [role("true")]), {"retry": {"oom": "1"}, **cfg})


@pytest.mark.slow
def test_a_silent_program_shows_its_stacks_and_goes_on(cluster):
    app_id = submit(cluster, "echo up; sleep 300", hang_timeout=0.5)
    wait_until(lambda: "hangs: no output for 0.5 s" in cluster.describe(app_id).msg, "that it hangs")
    assert cluster.describe(app_id).state == AppState.RUNNING
    log = "".join(cluster.log_iter(app_id, "r"))
    assert "shunter: no output for 0.5 s and no GPU activity; the stacks of" in log
    cluster.cancel(app_id)


@pytest.mark.parametrize(("code", "state"), [("0", "CANCELLED"), ("3", "FAILED")])
def test_others_are_told_that_single_replicas_were_cancelled(tmp_path, code, state):
    (tmp_path / "state").mkdir()
    (tmp_path / "job.json").write_text('{"layout": [["r", 3]]}')
    (tmp_path / "follow-up.json").write_text(json.dumps({"states": {}, "table": causes_table()}))
    for k in (0, 1):
        (tmp_path / "state" / f"r-{k}.0.start").write_text("host=n1\n")
        (tmp_path / "state" / f"r-{k}.0.exit").write_text(f"code={code}\nwhy=ended\n")
    (tmp_path / "state" / "r-2.cancelled").write_text("ann")  # it had not started
    assert follow_up.end_of(follow_up.JobFolder(str(tmp_path)), []).state == state

"""Containers that are looked after: told at their end, more memory after a lack of it, hangs found."""

import pytest

from shunter.schedulers.docker_scheduler.job import ContainerJob
from shunter.schedulers.supervisor import outbox
from shunter.specs import AppState, Resource
from tests.receiver import receiving

from .conftest import wait_until

EXCEPTION = "printf 'Traceback (most recent call last):\\n  File\\nValueError: bad\\n' >&2; exit 1"


def notes(response):
    return [note for replica in response.to_status().replicas() for note in replica.notes]


def test_notified_once_and_the_secret_is_removed(jobs):
    with receiving() as receiver:
        app_id, _ = jobs.run(EXCEPTION, notify=[receiver.url], notify_secret="hush-hush-1")
        [message] = receiver.wait_for(1)
        settled = ContainerJob.of(app_id).file(outbox.SETTLED)
        wait_until(lambda: outbox.os.path.exists(settled), "the end of the sender")
        jobs.scheduler.describe(app_id)
        assert len(receiver.received) == 1
    assert (message["job"], message["state"]) == (app_id, "FAILED")
    assert message["cause"]["name"] == "exception"
    with open(settled) as file:
        assert "hush-hush-1" not in file.read()


@pytest.mark.slow
def test_memory_grows_up_to_the_bound(jobs):
    # tail keeps the line that it reads: some 100 MB, which fits into the second limit
    script = "head -c 100000000 /dev/zero | tail -n 1 >/dev/null && echo fits || exit 137"
    app_id, end = jobs.run(jobs.role(script, resource=Resource(1, 0, 48)), retry={"oom": "5:400M"})
    assert "fits\n" in jobs.log(app_id), (end, notes(end))
    assert end.num_restarts == len(notes(end)) >= 1
    assert all("ran out of memory" in note and "restarted with" in note for note in notes(end))
    assert jobs.container(app_id)["HostConfig"]["Memory"] == 48 * 2**end.num_restarts << 20


@pytest.mark.slow
def test_a_container_that_hangs_is_stopped_and_its_stacks_are_in_its_log(jobs):
    app_id, end = jobs.run("echo up; sleep 600", hang_timeout=0.5, on_hang="stop")
    assert end.state == AppState.FAILED
    assert "because it hung" in end.msg
    assert notes(end)[0].startswith("it hung: no output for 0.5 s")
    log = jobs.log(app_id)
    assert "shunter: end of the stacks\n" in log
    assert any("sleep 600" in line for line in log if line.startswith("--- process"))

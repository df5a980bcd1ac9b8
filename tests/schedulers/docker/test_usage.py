"""What containers use, as the real daemon measures it."""

from __future__ import annotations

import pytest

from shunter.schedulers.exec.container.container_usage import sample_of
from shunter.schedulers.exec.container.inventory import gpus_of, usage_path
from shunter.schedulers.exec.usage_file import replica_usage

#: Written after the documented answer of "Get container stats" (API 1.43, cgroups v2), shortened.
STATS = {
    "cpu_stats": {"cpu_usage": {"total_usage": 2_500_000_000}},
    "memory_stats": {"usage": 5000, "stats": {"inactive_file": 1000}},
    "blkio_stats": {
        "io_service_bytes_recursive": [
            {"major": 8, "minor": 0, "op": "read", "value": 7},
            {"major": 8, "minor": 16, "op": "Read", "value": 3},
            {"major": 8, "minor": 0, "op": "write", "value": 20},
        ]
    },
    "networks": {"eth0": {"rx_bytes": 11, "tx_bytes": 12}, "eth1": {"rx_bytes": 1, "tx_bytes": 2}},
}


def test_an_answer_of_the_daemon():
    sample = sample_of("r", 1, 2, STATS, 100.0)
    assert (sample.role, sample.replica, sample.attempt, sample.time) == ("r", 1, 2, 100.0)
    assert sample.levels == {"memory_bytes": 4000}
    assert sample.totals == {
        "cpu": 2.5,
        "disk_read": 10,
        "disk_written": 20,
        "network_received": 12,
        "network_sent": 14,
    }
    assert sample_of("r", 1, 0, {"memory_stats": {}, "cpu_stats": {}}, 0.0) is None


def kept(app_id):
    """Return the samples that are kept of a job of a role r."""
    return list(replica_usage(usage_path(app_id), [("r", 0), ("r", 1)], 0.0))


def test_gpus_of_a_container_are_those_that_were_asked_for():
    def given(*requests):
        return gpus_of([{"Capabilities": [["gpu", "compute", "utility"]], **each} for each in requests])

    assert given() == ""
    assert given({"Count": 2}) == "0,1"
    assert given({"Count": 0, "DeviceIDs": ["3", "GPU-1"]}) == "3,GPU-1"
    assert given({"Count": -1}) is None
    assert gpus_of([{"Capabilities": [["tpu"]], "Count": -1}]) == ""


@pytest.mark.slow
def test_running_containers_are_measured(jobs):
    app_id = jobs.submit(jobs.role("exec sleep 1000", num_replicas=2))
    seen = set()
    while seen != {("r", 0), ("r", 1)}:  # until both have started, and their watcher has sampled them
        found = list(jobs.scheduler.details(app_id).usage(0.0)) and kept(app_id)
        seen = {(sample.role, sample.replica) for sample in found}
    assert all(sample.levels["memory_bytes"] > 0 for sample in found)
    jobs.scheduler.cancel(app_id)
    jobs.scheduler.wait(app_id, 50)
    assert list(jobs.scheduler.details(app_id).usage(0.0)) == kept(app_id)


@pytest.mark.slow
def test_a_job_without_a_watcher_is_given_one_for_samples(jobs):
    app_id = jobs.submit(jobs.role("exec sleep 1000"))
    while not kept(app_id):
        list(jobs.scheduler.details(app_id).usage(0.0))  # of this moment, until there are some that are kept
    jobs.scheduler.cancel(app_id)
    jobs.scheduler.wait(app_id, 50)
    assert all(sample.levels["memory_bytes"] > 0 for sample in jobs.scheduler.details(app_id).usage(0.0))

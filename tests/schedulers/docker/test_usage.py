"""What containers use, as the real daemon measures it."""

from __future__ import annotations

import pytest

from trainyard.schedulers.exec.container.container_usage import sample_of

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


@pytest.mark.slow
def test_running_containers_are_measured(jobs):
    app_id = jobs.submit(jobs.role("exec sleep 1000", num_replicas=2))
    found = []
    while len(found) < 2:  # until both have started
        found = list(jobs.scheduler.usage(app_id, 0.0))
    assert [(sample.role, sample.replica) for sample in found] == [("r", 0), ("r", 1)]
    assert all(sample.levels["memory_bytes"] > 0 for sample in found)
    jobs.scheduler.cancel(app_id)
    jobs.scheduler.wait(app_id, 50)
    assert list(jobs.scheduler.usage(app_id, 0.0)) == []

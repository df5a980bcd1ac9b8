"""What jobs used of what they asked for: of samples of this machine, and of the lines of remote logs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from shunter._toolkit.usage_log import Usage
from shunter.metrics.series import MetricTable
from shunter.metrics.usage import UsageMetrics
from shunter.runner.resource_use import Used, proposals, use_texts, used_by
from shunter.schedulers.responses import LogBlock, ReplicaUsage

GIB = 1 << 30
APP = {"roles": [{"name": "trainer", "resource": {"cpu": 8, "gpu": 2, "memMB": 64 * 1024}}]}
LINES = [
    Usage(1060.0, 60.0, 90.0, 4 * GIB, 4 * GIB, 80.0, 80.0, 20 * GIB),
    Usage(1120.0, 120.0, 150.0, 9 * GIB, 9 * GIB, 20.0, 50.0, 30 * GIB),
]


def remote(lines: bytes) -> SimpleNamespace:
    scheduler = SimpleNamespace(capabilities=SimpleNamespace(is_local=False))
    return SimpleNamespace(
        scheduler=lambda name: scheduler,
        replicas=lambda handle: [("trainer", 0)],
        log_blocks=lambda handle, replicas, query, with_usage: iter([LogBlock("trainer", 0, lines)]),
    )


def local(samples: list[ReplicaUsage]) -> SimpleNamespace:
    def usage(after: float) -> Iterator[ReplicaUsage]:
        return iter(samples)

    scheduler = SimpleNamespace(
        capabilities=SimpleNamespace(is_local=True), details=lambda app_id: SimpleNamespace(usage=usage)
    )
    return SimpleNamespace(scheduler=lambda name: scheduler)


def test_the_last_line_of_a_log_says_it_all() -> None:
    log = b"loss=1\n" + b"x\n".join(usage.line() for usage in LINES)
    used = used_by(remote(log), "slurm://s/job")
    assert used == {"trainer": Used(9 * GIB, 1.25, 50.0, 30 * GIB)}
    (text,) = use_texts(APP, used)
    assert text.startswith("trainer: used 9.0 GiB of 64.0 GiB memory, 1.2 of 8 CPUs on average, ")
    assert text.endswith("2 GPUs 50 % busy, 30.0 GiB of their memory")
    assert used_by(remote(log), "slurm://s/job", reads_logs=False) == {}
    assert used_by(remote(Usage(1.0, 2.0, 1.0, GIB, GIB).line()), "slurm://s/brief") == {}


def test_samples_of_this_machine_count_those_of_the_last_attempt() -> None:
    def sample(replica: int, time: float, attempt: int, memory: int, cpu: float) -> ReplicaUsage:
        return ReplicaUsage("r", replica, time, attempt, {"memory_bytes": memory}, {"cpu": cpu})

    samples = [
        sample(0, 0.0, 0, 7 * GIB, 50.0),
        sample(0, 100.0, 1, GIB, 1.0),
        sample(1, 100.0, 0, GIB, 0.0),
        sample(0, 120.0, 1, GIB, 11.0),
        sample(1, 120.0, 0, 2 * GIB, 40.0),
    ]
    used = used_by(local(samples), "local_cwd://s/job")
    assert use_texts(None, used) == ["r: used 7.0 GiB memory, 2.0 CPUs on average"]


def test_what_suits_is_proposed_only_where_it_differs_much() -> None:
    used = {"trainer": Used(9 * GIB, 1.25)}
    assert proposals(APP, used) == ["trainer: mem=12G, cpu=2 would suit that"]
    for memory, cpu, words in ((12, 2, []), (10, 2, ["trainer: mem=12G would suit that"]), (20, 4, [])):
        app = {"roles": [{"name": "trainer", "resource": {"cpu": cpu, "memMB": memory * 1024}}]}
        assert proposals(app, used) == words
    assert proposals({"roles": [{"name": "trainer", "resource": {"cpu": -1, "memMB": -1}}]}, used) == []
    assert proposals({"roles": []}, used) == []


def test_lines_of_a_log_become_metrics() -> None:
    table, usage = MetricTable(), UsageMetrics()
    assert usage.add_lines(table, LogBlock("trainer", 0, b"".join(line.line() for line in LINES)))
    assert not usage.add_lines(table, LogBlock("trainer", 0, b"loss=1\n"))
    found = {series.name: (list(series.steps), list(series.values)) for series in table}
    assert found["system/cpu_percent"] == ([60, 120], [150, 100])
    assert found["system/memory_bytes"] == ([60, 120], [4 * GIB, 9 * GIB])
    assert found["system/gpu_percent"] == ([60, 120], [80, 20])

"""What replicas use: measured of real processes, kept in a bounded file, read as rates."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest

from shunter import system
from shunter.metrics.series import MetricTable
from shunter.metrics.usage import UsageMetrics
from shunter.runner import get_runner
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.usage_file import UsageFile, UsageRecord, read_usage, replica_usage
from shunter.specs import AppDef, Role
from shunter.system.nvml import GpuUsage, visible


def record(time, replica=0, attempt=0, **fields):
    values = dict.fromkeys(("cpu_seconds", "memory", "read", "written", "received", "sent", "gpu_memory"), 0)
    values |= {"time": time, "replica": replica, "gpu_percent": math.nan, "attempt": attempt, **fields}
    return UsageRecord(**values)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_and_all_that_it_starts():
    script = (
        "import subprocess, sys\n"
        "data = bytearray(b'x') * (64 << 20)\n"
        "other = 'data = bytearray(8 << 20); data[::4096] = data[::4096]; print(); input()'\n"
        "PIPE = subprocess.PIPE\n"
        "words = [sys.executable, '-c', other]\n"
        "child = subprocess.Popen(words, stdin=PIPE, stdout=PIPE, start_new_session=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.readline()\n"
        "child.communicate(b'\\n')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        child = int(process.stdout.readline())
        found = system.process_usage({process.pid})
        alone = system.process_usage({process.pid, child})
        process.communicate(b"\n")
    assert found[process.pid].memory > alone[process.pid].memory > 64 << 20
    assert found[process.pid].cpu_seconds >= 0
    assert alone[child].memory > 0
    assert system.process_usage({process.pid}) == {}


def test_the_file_stays_below_its_size(tmp_path):
    path = str(tmp_path / "usage")
    file = UsageFile(path, 5.0, largest=4000)
    for second in range(1, 200):
        file.append([record(float(second), replica) for replica in (0, 1)])
        assert os.path.getsize(path) <= 4000
    records, last = read_usage(path)
    assert last == 199
    assert file.interval > 5
    times = [each.time for each in records if each.replica == 1]
    assert times == sorted(times)
    assert times[0] == 1
    assert [each.time for each in read_usage(path, 198.5)[0]] == [199, 199]


def test_totals_become_rates_and_a_restart_begins_them_again(tmp_path):
    path = str(tmp_path / "usage")
    file = UsageFile(path, 5.0)
    for each in [
        record(100.0, cpu_seconds=1.0, memory=50, written=0),
        record(102.0, cpu_seconds=3.0, memory=60, written=1000),
        record(104.0, cpu_seconds=0.5, memory=70, attempt=1, gpu_percent=40.0, gpu_memory=7),
    ]:
        file.append([each])
    table, usage = MetricTable(), UsageMetrics()
    assert usage.add_to(table, replica_usage(path, [("trainer", 0)], usage.last_time))
    assert not usage.add_to(table, replica_usage(path, [("trainer", 0)], usage.last_time))
    found = {series.name: (list(series.steps), list(series.values)) for series in table}
    assert found["system/cpu_percent"] == ([2], [100])
    assert found["system/memory_bytes"] == ([0, 2, 4], [50, 60, 70])
    assert found["system/disk_written_per_second"] == ([2], [500])
    assert found["system/gpu_percent"] == ([4], [40])


def test_the_gpus_that_a_program_sees():
    gpus = [GpuUsage(f"GPU-{name}", 10.0, 1) for name in "abc"]
    assert visible(gpus, None) == gpus
    assert visible(gpus, "2,0") == [gpus[2], gpus[0]]
    assert visible(gpus, "GPU-b") == [gpus[1]]
    assert visible(gpus, "") == visible(gpus, "-1") == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_local_job_is_sampled_by_its_supervisor(tmp_path):
    """The job ends when its first sample is there, and not by a clock."""
    with get_runner() as runner:
        role = Role("trainer", image="", entrypoint="sh", args=["-c", f"read line < {tmp_path}/go"])
        os.mkfifo(tmp_path / "go")
        handle = runner.run(AppDef("train", [role]), "local_cwd")
        job = JobDirectory.find(handle.rpartition("/")[2])
        with open(tmp_path / "go", "w") as go:
            events = system.open_file_events()
            watch = events.add(job.path, 0x100)
            assert watch is not None
            while not os.path.exists(job.usage_path()):
                events.read_names()
                time.sleep(0.02)
            go.write("\n")
        runner.wait(handle)
        events.close()
        [sample, *_] = runner.scheduler("local_cwd").details(job.name).usage(0.0)
    assert (sample.role, sample.replica) == ("trainer", 0)
    assert sample.levels["memory_bytes"] > 0

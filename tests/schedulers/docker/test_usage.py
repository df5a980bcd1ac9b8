"""What containers use, as the kernel measures it."""

from __future__ import annotations

import pytest

from shunter.system import cgroups

from .conftest import wait_until

V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "memory.current": "5000\n",
    "memory.stat": "anon 1\ninactive_file 1000\n",
    "io.stat": "8:0 rbytes=7 wbytes=20 rios=1 wios=1\n8:16 rbytes=3 wbytes=0\n",
}
V1 = {
    "cpuacct": {"cpuacct.usage": "2500000000\n"},
    "memory": {"memory.usage_in_bytes": "5000\n", "memory.stat": "cache 9\ntotal_inactive_file 1000\n"},
    "blkio": {
        "blkio.throttle.io_service_bytes": "8:0 Read 7\n8:0 Write 20\n8:0 Total 27\n8:16 Read 3\nTotal 30\n"
    },
}


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_both_versions_of_cgroups(tmp_path, version):
    places = {}
    for name, files in (V1 if version == 1 else {"": V2}).items():
        folder = tmp_path / (name or "all")
        folder.mkdir()
        places[name] = str(folder)
        for file, content in files.items():
            (folder / file).write_text(content)
    assert cgroups._cpu_seconds(places) == 2.5
    assert cgroups._memory(places) == 4000
    assert cgroups._storage(places) == (10, 20)


@pytest.mark.slow
def test_running_containers_are_measured(jobs):
    script = "i=0; while [ $$i -lt 300000 ]; do i=$$((i+1)); done; exec sleep 1000"
    app_id = jobs.submit(jobs.role(script, num_replicas=2))
    samples = jobs.scheduler.details(app_id).usage
    wait_until(lambda: {each.replica for each in samples(0.0)} == {0, 1}, "samples of both replicas")
    found = list(samples(0.0))
    assert all(sample.levels["memory_bytes"] > 0 and sample.totals["cpu"] > 0 for sample in found)
    jobs.scheduler.cancel(app_id)
    jobs.end_of(app_id)
    assert list(samples(0.0))[: len(found)] == found

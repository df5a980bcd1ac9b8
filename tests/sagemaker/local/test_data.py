"""Data of S3 are fetched once, however many jobs need them."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from shunter._toolkit import store
from shunter.schedulers.sagemaker_local_scheduler import housekeeping, object_cache
from shunter.schedulers.sagemaker_local_scheduler.object_cache import Cache, cache_dir

from .conftest import file_channel

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Bucket, Jobs
    from .proxy import Proxy

SIZE = 3_000_000
CHECK = """
names = sorted(os.listdir(BASE + '/input/data/d'))
for name in names:
    path = BASE + '/input/data/d/' + name
    data = open(path, 'rb').read()
    print(name, len(data), chr(data[0]), os.stat(path).st_ino, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode_of_channel", ["File", "FastFile"])
def test_a_second_job_fetches_nothing_that_has_not_changed(
    jobs: Jobs, processes: str, bucket: Bucket, proxy: Proxy, mode_of_channel: str
) -> None:
    bucket.put("data/a", b"a" * SIZE)
    bucket.put("data/deep/b", b"b" * 10)
    channel = file_channel("d", bucket.uri("data/a"), InputMode=mode_of_channel)

    def run() -> list[list[str]]:
        ended = jobs.run(CHECK, hosts=2, channels=[channel])
        assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
        name = ended["TrainingJobName"]
        return [line.split() for host in ("algo-1", "algo-2") for line in jobs.lines(name, host)]

    before = proxy.answered
    assert [line[:3] for line in run()] == [["a", str(SIZE), "a"]] * 2
    assert SIZE <= proxy.answered - before < 1.1 * SIZE  # once for both hosts
    before = proxy.answered
    assert [line[:3] for line in run()] == [["a", str(SIZE), "a"]] * 2
    assert proxy.answered - before < 0.1 * SIZE
    bucket.put("data/a", b"A" * SIZE)
    before = proxy.answered
    assert [line[:3] for line in run()] == [["a", str(SIZE), "A"]] * 2
    assert proxy.answered - before >= SIZE


@pytest.mark.slow
def test_fast_file_is_one_copy_for_all_hosts_and_nobody_writes_to_it(
    jobs: Jobs, containers: str, bucket: Bucket
) -> None:
    bucket.put("data/a", b"a" * 1000)
    script = """
path = BASE + '/input/data/d/a'
try:
    open(path, 'r+b').write(b'B')
except OSError as error:
    print(error.strerror, flush=True)
print(os.stat(path).st_ino, open(path, 'rb').read() == b'a' * 1000, flush=True)
"""
    channel = file_channel("d", bucket.uri("data"), InputMode="FastFile")
    name = jobs.run(script, hosts=2, channels=[channel])["TrainingJobName"]
    first, second = (jobs.lines(name, host) for host in ("algo-1", "algo-2"))
    assert first == second
    assert first[0] == "Read-only file system"
    assert first[1].endswith(" True")


@pytest.mark.slow
def test_data_can_be_collected_while_a_job_shows_them(
    jobs: Jobs, processes: str, bucket: Bucket, home: Path
) -> None:
    bucket.put("data/a", b"a" * 1000)
    script = """
print('up', flush=True)
while not os.path.exists(BASE + '/output/go'):
    time.sleep(0.02)
print(open(BASE + '/input/data/d/a').read() == 'a' * 1000)
"""
    name = jobs.start(script, channels=[file_channel("d", bucket.uri("data"), InputMode="FastFile")])
    jobs.says(name, "up")
    found = [item for item in housekeeping.leftovers(0.0) if item.id.startswith("data/")]
    assert [(item.name, item.size) for item in found] == [(cache_dir(), 1000)]
    assert housekeeping.leftovers(3600.0) == []
    assert housekeeping.remove(found) == 0  # the job has it still
    assert list(object_cache.entries()) == []
    (home / "state/sagemaker" / name / "work/algo-1/output/go").touch()
    assert jobs.end(name)["TrainingJobStatus"] == "Completed"
    assert jobs.lines(name) == ["up", "True"]


# ---- the cache itself


def store_of(patience: float = 20.0) -> store.Store:
    return store.Store(patience, threading.Event(), "us-east-1")


def item_of(objects: store.Store, bucket: Bucket, key: str) -> store.Item:
    (item,) = objects.listing(store.Place(bucket.name, key))
    return item


def test_many_at_once_fetch_once(bucket: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    bucket.put("a", b"a" * SIZE)
    objects = store_of()
    item, kept = item_of(objects, bucket, "a"), Cache(objects)
    before = proxy.answered
    threads = [
        threading.Thread(target=kept.copy, args=(item, str(tmp_path / f"copies/{number}")))
        for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert proxy.answered - before < 1.1 * SIZE
    assert [path.read_bytes() == b"a" * SIZE for path in (tmp_path / "copies").iterdir()] == [True] * 6
    assert [entry.size for entry in object_cache.entries()] == [SIZE]
    assert [name for _, _, names in os.walk(cache_dir()) for name in names if "partial" in name] == []


def test_an_entry_that_was_written_to_is_fetched_again(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("a", b"aaaa")
    objects = store_of()
    item, kept = item_of(objects, bucket, "a"), Cache(objects)
    kept.link(item, str(tmp_path / "1"))
    os.chmod(tmp_path / "1", 0o644)
    (tmp_path / "1").write_bytes(b"evil")
    kept.link(item, str(tmp_path / "2"))
    assert (tmp_path / "2").read_bytes() == b"aaaa"


def test_what_a_killed_job_was_fetching_is_neither_used_nor_kept(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("a", b"aaaa")
    objects = store_of()
    item, kept = item_of(objects, bucket, "a"), Cache(objects)
    kept.copy(item, str(tmp_path / "1"))
    (entry,) = object_cache.entries()
    os.rename(entry.path, f"{entry.path}.partial")
    os.chmod(f"{entry.path}.partial", 0o600)
    with open(f"{entry.path}.partial", "r+b") as file:
        file.truncate(2)
    assert [found.path for found in object_cache.entries()] == [f"{entry.path}.partial"]
    kept.copy(item, str(tmp_path / "2"))
    assert (tmp_path / "2").read_bytes() == b"aaaa"
    assert [found.path for found in object_cache.entries()] == [entry.path]


def test_an_object_that_changes_while_it_is_fetched_is_not_kept(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("a", b"aaaa")
    objects = store_of()
    item, kept = item_of(objects, bucket, "a"), Cache(objects)
    bucket.put("a", b"bbbb")
    with pytest.raises(store.StoreError, match="Cannot fetch s3://"):
        kept.copy(item, str(tmp_path / "1"))
    assert list(object_cache.entries()) == []
    assert not (tmp_path / "1").exists()

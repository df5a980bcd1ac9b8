"""Content kept once, directories made of it, faults, and cleaning up."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.errors import StateStoreError, WorkspaceChangedError, WorkspaceError
from shunter.workspace import code_store
from shunter.workspace.code_store import SPARED_SECONDS, Store
from shunter.workspace.directory_shipment import is_intact, shared_copy
from shunter.workspace.manifest import Manifest
from shunter.workspace.snapshot import Snapshot, kept_snapshot
from tests.backends import backend, need
from tests.workspace.conftest import take, write

BIG = b"x" * 100_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def taken(project: Path) -> Snapshot:
    write(project, {"run.sh": "echo hi", "data/big": BIG, "data/empty": "", "void/": "", "twin": "echo hi"})
    (project / "run.sh").chmod(0o755)
    (project / "void").chmod(0o2750)
    (project / "link").symlink_to("data/big")
    (project / "gone").symlink_to("nowhere")
    return take(project)


def content(directory: Path) -> Manifest:
    return take(directory).manifest


def everything(directory: str | Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in Path(directory).rglob("*")}


# ---- keeping and making


def test_there_and_back(store: Store, taken: Snapshot, tmp_path: Path) -> None:
    assert not store.has_all(taken.manifest)
    assert store.add(taken) == len(BIG) + len("echo hi")
    assert store.has_all(taken.manifest)
    assert store.add(taken) == 0
    store.materialize(taken.manifest, str(tmp_path / "made"))
    assert content(tmp_path / "made") == taken.manifest
    assert store.manifest(taken.manifest.fingerprint) == taken.manifest
    assert store.read_blob(taken.manifest.by_path["twin"].digest) == b"echo hi"
    assert store.read_blob("0" * 64) is None


def test_a_store_that_is_not_there(store: Store, taken: Snapshot) -> None:
    assert store.manifest(taken.manifest.fingerprint) is None
    assert store.fingerprints() == []
    assert store.collect([]) == 0
    assert not os.path.exists(store.root)


def test_other_users_cannot_read_it(store: Store, taken: Snapshot) -> None:
    store.add(taken)
    assert os.stat(store.root).st_mode & 0o077 == 0


def test_odd_names_and_modes(store: Store, project: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff\n \xe9")
    write(project, {odd: "1", f"d/{odd}": "2", "locked/a": "3", "-rf": "4", "set": "5"})
    (project / "d" / odd).chmod(0o400)
    (project / "set").chmod(0o6755)
    (project / "locked").chmod(0o555)
    taken = take(project)
    store.add(taken)
    store.materialize(taken.manifest, str(tmp_path / "made"))
    assert content(tmp_path / "made") == taken.manifest


def test_frozen_code_by_the_beginning_of_its_fingerprint(
    store: Store, taken: Snapshot, project: Path
) -> None:
    store.add(taken)
    write(project, {"run.sh": "changed"})
    frozen = kept_snapshot(taken.manifest.fingerprint[:8], store)
    assert frozen.manifest == taken.manifest
    assert b"".join(frozen.read(frozen.manifest.by_path["run.sh"])) == b"echo hi"
    with pytest.raises(WorkspaceError, match="@00000000 is not kept"):
        kept_snapshot("00000000", store)
    other = take(project)
    store.put_manifest(other.manifest)
    with pytest.raises(WorkspaceError, match=r"content of the workspace @\w+ is not kept"):
        kept_snapshot(other.manifest.fingerprint, store)
    with pytest.raises(WorkspaceError, match="2 workspaces begin with @"):
        store.find("")


def test_content_that_changed_is_not_kept(store: Store, taken: Snapshot, project: Path) -> None:
    write(project, {"data/big": b"y" * 100_000})
    with pytest.raises(WorkspaceChangedError):
        store.add(taken)
    assert not [path for path in everything(store.root) if path.endswith(".tmp")]
    assert store.read_blob(taken.manifest.by_path["data/big"].digest) is None


def test_damaged_documents_are_not_used(store: Store, taken: Snapshot) -> None:
    store.add(taken)
    for kind in ("manifests", "blobs"):
        for path in Path(store.root, kind).rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes()[:-3])
    assert store.manifest(taken.manifest.fingerprint) is None
    assert store.read_blob(taken.manifest.by_path["twin"].digest) is None


def test_small_files_are_kept_for_comparisons(
    store: Store, taken: Snapshot, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_store, "LARGEST_SOURCE", 100)
    write(project, {"run.sh": "changed meanwhile"})
    store.keep_sources(taken)
    entries = taken.manifest.by_path
    assert store.read_blob(entries["twin"].digest) == b"echo hi"
    assert store.read_blob(entries["data/big"].digest) is None
    assert not store.has_all(taken.manifest)


# ---- what jobs do to their directories


def test_what_a_job_writes_reaches_nobody(store: Store, taken: Snapshot, tmp_path: Path) -> None:
    store.add(taken)
    for name in ("one", "two"):
        store.materialize(taken.manifest, str(tmp_path / name))
    for path in ("data/big", "twin", "run.sh"):
        with open(tmp_path / "one" / path, "r+b") as file:
            file.write(b"?")
    assert content(tmp_path / "two") == taken.manifest
    assert store.has_all(taken.manifest)
    store.materialize(taken.manifest, str(tmp_path / "three"))
    assert content(tmp_path / "three") == taken.manifest


@pytest.mark.parametrize("damage", ["write", "remove"])
def test_tainted_content_is_replaced(store: Store, taken: Snapshot, tmp_path: Path, damage: str) -> None:
    store.add(taken)
    blob = Path(store.blob_path(taken.manifest.by_path["data/big"]))
    if damage == "write":
        blob.write_bytes(b"y" * len(BIG))
    else:
        blob.unlink()
    assert not store.has_all(taken.manifest)
    with pytest.raises(StateStoreError, match="content of data/big is missing or was changed"):
        store.materialize(taken.manifest, str(tmp_path / "next"))
    assert not (tmp_path / "next").exists()
    assert store.add(taken) == len(BIG)
    store.materialize(taken.manifest, str(tmp_path / "next"))
    assert content(tmp_path / "next") == taken.manifest


def test_a_directory_that_exists(store: Store, taken: Snapshot, project: Path) -> None:
    store.add(taken)
    with pytest.raises(StateStoreError, match="exists already"):
        store.materialize(taken.manifest, str(project))
    assert content(project) == taken.manifest


@pytest.fixture
def cloning_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 320 MB on which files can share blocks."""
    need("xfs")
    image, path = tmp_path / "image", tmp_path / "xfs"
    path.mkdir()
    with open(image, "wb") as file:
        file.truncate(320 << 20)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(path)], check=False, capture_output=True)
    backend("xfs", mounted.returncode == 0, mounted.stderr.decode())
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_directories_share_blocks_with_the_store(project: Path, cloning_disk: Path) -> None:
    write(project, {"model.bin": bytes(150 << 20), "a.py": "a", "empty": ""})
    taken = take(project)
    store = Store(str(cloning_disk / "store"))
    store.add(taken)
    for name in ("one", "two", "three"):  # more than there is room for
        store.materialize(taken.manifest, str(cloning_disk / name))
    with open(cloning_disk / "one/model.bin", "r+b") as file:
        file.write(b"poison")
    assert content(cloning_disk / "two") == content(cloning_disk / "three") == taken.manifest
    assert store.has_all(taken.manifest)


# ---- shared copies


def test_a_copy_that_was_written_into_is_not_shared(store: Store, taken: Snapshot, tmp_path: Path) -> None:
    store.add(taken)
    first = shared_copy(store, taken.manifest, str(tmp_path / "cluster"))
    write(Path(first), {"twin": "ECHO HI"})
    assert not is_intact(taken.manifest, first)
    second = shared_copy(store, taken.manifest, str(tmp_path / "cluster"))
    assert second != first
    assert content(Path(second)) == taken.manifest
    assert shared_copy(store, taken.manifest, str(tmp_path / "cluster")) == second


# ---- many at once

MANY = """
import sys
from shunter.specs.workspace import Workspace
from shunter.workspace.directory_shipment import shared_copy
from shunter.workspace.snapshot import snapshot
from shunter.workspace.code_store import Store
project, root, made, number = sys.argv[1:]
store = Store(root)
taken = snapshot(Workspace({project: ""}))
store.add(taken)
store.keep_sources(taken)
store.materialize(taken.manifest, f"{made}/{number}")
print(shared_copy(store, taken.manifest, f"{made}/shared"))
store.collect([])
"""


def test_many_processes_at_once(store: Store, taken: Snapshot, project: Path, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MANY, str(project), store.root, str(tmp_path / "made"), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(6)
    ]
    copies = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6
    assert len(set(copies)) == 1
    for number in range(6):
        assert content(tmp_path / "made" / str(number)) == taken.manifest
    leftovers = everything(store.root) | everything(tmp_path / "made")
    assert not [path for path in leftovers if path.endswith(".tmp")]


KILLED = """
import os, sys, shunter.workspace.code_store as stores
from shunter.specs.workspace import Workspace
from shunter.workspace.snapshot import snapshot
project, root, made, stage = sys.argv[1:]
def die(*_):
    os.kill(os.getpid(), 9)
store = stores.Store(root)
taken = snapshot(Workspace({project: ""}))
if stage == "add":
    os.replace = die
store.add(taken)
if stage == "materialize":
    stores.system.copy_content = die
if stage == "rename":
    os.rename = die
store.materialize(taken.manifest, made)
"""


@pytest.mark.parametrize("stage", ["add", "materialize", "rename"])
def test_killed_half_way(
    store: Store,
    taken: Snapshot,
    project: Path,
    tmp_path: Path,
    stage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Path(store.root) / "views" / "job"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(project), store.root, str(made), stage], check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert not made.exists()
    assert [path for path in everything(store.root) if path.endswith(".tmp")]
    assert store.has_all(taken.manifest) == (stage != "add")
    store.add(taken)
    store.materialize(taken.manifest, str(made))
    assert content(made) == taken.manifest
    monkeypatch.setattr(code_store, "SPARED_SECONDS", -1)
    store.collect([taken.manifest.fingerprint], older_than=-1)
    assert not [path for path in everything(store.root) if path.endswith(".tmp")]
    assert store.has_all(taken.manifest)
    assert content(made) == taken.manifest


# ---- full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "shunter-test", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk(project: Path, small_disk: Path) -> None:
    write(project, {"a": os.urandom(100_000), "b": os.urandom(200_000), "c": os.urandom(400_000)})
    taken = take(project)
    store = Store(str(small_disk / "store"))
    with pytest.raises(StateStoreError, match="No space left") as caught:
        store.add(taken)
    assert "shunter gc" in caught.value.hint
    assert not [path for path in everything(store.root) if path.endswith(".tmp")]
    assert not store.has_all(taken.manifest)
    assert store.has_all(Manifest([taken.manifest.by_path["a"], taken.manifest.by_path["b"]]))


def test_a_disk_that_is_full_for_the_directory(project: Path, small_disk: Path, store: Store) -> None:
    write(project, {"a": os.urandom(60_000), "d/b": os.urandom(400_000), "z": os.urandom(200_000)})
    taken = take(project)
    store.add(taken)
    with pytest.raises(StateStoreError, match="No space left"):
        store.materialize(taken.manifest, str(small_disk / "made"))
    assert everything(small_disk) == set()


# ---- cleaning up


def grow_old(store: Store, seconds: float = 2 * SPARED_SECONDS) -> None:
    past = time.time() - seconds
    for path in Path(store.root, "manifests").iterdir():
        os.utime(path, (past, past))


def test_collecting(store: Store, taken: Snapshot, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(taken)
    store.keep_sources(taken)
    write(project, {"run.sh": "another", "twin": "another", "new": "new"})
    other = take(project)
    store.add(other)
    needed = other.manifest.fingerprint
    assert store.collect([needed]) == 0
    grow_old(store)
    assert store.garbage([needed]) == [taken.manifest.fingerprint]
    assert store.collect([needed], older_than=10 * SPARED_SECONDS) == 0
    monkeypatch.setattr(code_store, "SPARED_SECONDS", -1)
    assert store.collect([needed], older_than=-1) > 0
    assert store.fingerprints() == [needed]
    assert store.has_all(other.manifest)
    assert not store.has_all(taken.manifest)  # run.sh has gone, the rest is shared
    assert store.collect([], older_than=-1) > len(BIG)
    files = {path for path in everything(store.root) if Path(store.root, path).is_file()}
    assert files == {"lock"}


def test_code_that_is_used_again_is_young(store: Store, taken: Snapshot) -> None:
    store.add(taken)
    grow_old(store)
    store.add(taken)
    assert store.garbage([]) == []


def test_nothing_is_collected_while_somebody_uses_the_store(store: Store, taken: Snapshot) -> None:
    store.add(taken)
    with open(os.path.join(store.root, "lock")) as lock:
        with store._locked(), store._locked(), pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with store._locked(alone=True), pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

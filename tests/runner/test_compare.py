"""What `shunter diff` finds, on records that a runner made."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from shunter.runner import Runner
from shunter.runner.records import JobRecord
from shunter.specs import AppDef
from shunter.why.comparison import Comparison
from shunter.workspace.manifest import Entry, Manifest
from tests.runner.fake_scheduler import FakeScheduler


class Shelf:
    """A store in memory."""

    def __init__(self) -> None:
        self.manifests: dict[str, Manifest] = {}
        self.blobs: dict[str, bytes] = {}

    def put(self, files: dict[str, bytes], links: dict[str, str] | None = None) -> str:
        entries = [Entry(path, "link", 0o777, target=target) for path, target in (links or {}).items()]
        for path, content in files.items():
            digest = hashlib.sha256(content).hexdigest()
            self.blobs[digest] = content
            entries.append(Entry(path, "file", 0o644, len(content), digest))
        manifest = Manifest(entries)
        self.manifests[manifest.fingerprint] = manifest
        return manifest.fingerprint

    def manifest(self, fingerprint: str) -> Manifest | None:
        return self.manifests.get(fingerprint)

    def read_blob(self, digest: str) -> bytes | None:
        return self.blobs.get(digest)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def record(runner: Runner, app: AppDef, fingerprint: str | None = None, **cfg: object) -> JobRecord:
    handle = runner.run(app, "fake", cfg)
    found = runner.history.find(handle)
    assert found is not None
    runner.history.amend(found.key, fingerprint=fingerprint)
    found = runner.history.find(handle)
    assert found is not None
    return found


def test_the_same_job_twice(
    runner: Runner, app: AppDef, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # outside of Git, which a busy machine may not give enough time
    code = shelf.put({"a.py": b"1"})
    comparison = Comparison(record(runner, app, code), record(runner, app, code), shelf)
    assert not comparison
    assert comparison.code == "same"


def test_code(runner: Runner, app: AppDef, shelf: Shelf) -> None:
    old = shelf.put({"a.py": b"1", "b.py": b"2", "c.py": b"3"}, {"link": "a.py"})
    new = shelf.put({"a.py": b"1", "b.py": b"two", "d.py": b"4"}, {"link": "b.py"})
    comparison = Comparison(record(runner, app, old), record(runner, app, new), shelf)
    assert comparison
    assert comparison.code == "changed"
    assert [(file.path, file.change, file.before, file.after) for file in comparison.files] == [
        ("b.py", "modified", b"2", b"two"),
        ("c.py", "removed", b"3", b""),
        ("d.py", "added", b"", b"4"),
        ("link", "modified", b"link to a.py\n", b"link to b.py\n"),
    ]


def test_code_that_is_not_known_is_not_called_the_same(runner: Runner, app: AppDef, shelf: Shelf) -> None:
    with_code = record(runner, app, shelf.put({"a.py": b"1"}))
    forgotten = record(runner, app, "0" * 64)
    without = record(runner, app)
    assert "has no workspace" in Comparison(with_code, without, shelf).code
    assert "neither" in Comparison(without, record(runner, app), shelf).code
    gone = Comparison(with_code, forgotten, shelf)
    assert forgotten.handle in gone.code
    assert "no longer stored" in gone.code


def test_arguments_options_environment_and_definition(
    runner: Runner, fake: FakeScheduler, app: AppDef, shelf: Shelf
) -> None:
    first = record(runner, app, queue="slow", tags=["x"])
    app.roles[0].args = ["t.py", "--lr", "0.1"]
    app.roles[0].num_replicas = 3
    app.roles[1].env = {"B": "2"}
    app.roles[1].port_map = {"http": 80}  # and none before
    app.metadata["team"] = "audio"
    second = record(runner, app, queue="fast", tags=["x"])
    comparison = Comparison(first, second, shelf)
    assert comparison.values["arguments"] == {
        "trainer: command": (["python", "t.py", "--id", "${app_id}"], ["python", "t.py", "--lr", "0.1"])
    }
    assert comparison.values["options"] == {"queue": ("slow", "fast")}
    assert comparison.values["environment"] == {"reader: A": ("1", None), "reader: B": (None, "2")}
    assert comparison.values["job"] == {
        "metadata.team": ("vision", "audio"),
        "reader: port_map.http": (None, 80),
        "trainer: num_replicas": (2, 3),
    }


def test_secrets_do_not_show(runner: Runner, app: AppDef, shelf: Shelf) -> None:
    first = record(runner, app, login="opensesame1")
    app.roles[0].env = {"API_TOKEN": "tok-123456789"}
    second = record(runner, app, login="opensesame2")
    text = str(Comparison(first, second, shelf).to_json())
    assert "API_TOKEN" in text
    assert "opensesame" not in text
    assert "tok-123" not in text

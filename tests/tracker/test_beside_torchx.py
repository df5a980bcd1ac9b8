"""Trackers beside the real TorchX: each reads what the other has written, in files and in MLflow.

Everything runs in TorchX's own environment, ours from the toolkit's sources.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import backends
from tests.docs.documents import ROOT

TOOLKIT = str(ROOT / "toolkit" / "src")

FILES = """
import json, os, sys
import fsspec
from torchx.tracker.backend import fsspec as theirs
from shunter_toolkit.tracking import fsspec_tracker as ours
root, protocol = sys.argv[1:]
config = root + ".conf"
with open(config, "w") as file:
    file.write(f"protocol={protocol}\\nroot_path={root}\\n# note\\nauto_mkdir.x=1\\n")
def names(path, fs=fsspec.filesystem(protocol)):
    return [name[len(root):].rpartition("/")[0] for name in sorted(fs.find(path))]
fs = fsspec.filesystem(protocol)
fs.makedirs(root, exist_ok=True)
made = {"theirs": theirs.FsspecTracker(fs, root)}
made["ours"] = ours.FsspecTracker(fs, root) if protocol != "file" else ours.create(config)
def write(tracker, run):
    tracker.add_metadata(run, loss=0.5, tags=["a", "b"])
    tracker.add_artifact(run, "model", "/m", {"epoch": 1})
    tracker.add_artifact(run, "plain", "s3://b/x")
    tracker.add_source(run, "local_cwd://torchx/first")
    tracker.add_source(run, "local_cwd://torchx/second", "data")
def read(tracker, run):
    return {
        "metadata": dict(tracker.metadata(run)),
        "artifacts": sorted((a.name, a.path, a.metadata) for a in tracker.artifacts(run).values()),
        "sources": sorted((s.source_run_id, s.artifact_name or "") for s in tracker.sources(run)),
        "runs": sorted(tracker.run_ids()),
        "children": sorted(tracker.run_ids(parent_run_id="local_cwd://torchx/first")),
    }
for name, tracker in made.items():
    write(tracker, name)
same = {name: {reader: read(made[reader], name) for reader in made} for name in made}
layout = {name: names(root + "/" + ours.encoded(name)) for name in made}
print(json.dumps({
    "read": same,
    "layout": {n: [p.replace(ours.encoded(n), "RUN") for p in paths] for n, paths in layout.items()},
    "config": [theirs._read_config(config), ours.read_config(config)],
}))
"""


def run(code: str, *args: str) -> Any:
    done = subprocess.run(
        [backends.torchx_python(), "-c", code, *args],
        env={**os.environ, "PYTHONPATH": TOOLKIT, "GIT_PYTHON_REFRESH": "quiet"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_files(protocol: str, tmp_path: Path) -> None:
    found = run(FILES, str(tmp_path / "runs"), protocol)
    for written in found["read"].values():
        assert written["ours"] == written["theirs"]
        assert written["ours"]["runs"] == written["ours"]["children"] == ["ours", "theirs"]
    assert found["read"]["ours"]["ours"] == found["read"]["theirs"]["theirs"]
    assert found["layout"]["ours"] == found["layout"]["theirs"]
    assert len(found["layout"]["ours"]) == 5
    assert found["config"][0] == found["config"][1]


# TorchX's module imports torch, of which this needs no more than that no other rank is there.
MLFLOW = """
import json, os, sys
from unittest.mock import MagicMock
torch, dist = MagicMock(), MagicMock()
dist.is_initialized.return_value = dist.is_torchelastic_launched.return_value = False
dist.__path__ = []
torch.distributed = dist
sys.modules.update({"torch": torch, "torch.distributed": dist, "torch.distributed.distributed_c10d": dist})
from torchx.tracker import mlflow as theirs
from shunter_toolkit.tracking import mlflow_tracker as ours
folder = sys.argv[1]
os.chdir(folder)
with open(".torchxconfig", "w") as file:
    file.write(f"[tracker:mlflow]\\ntracking_uri=sqlite:///{folder}/db\\nexperiment_name=exp\\n"
               f"artifact_location={folder}/artifacts\\n")
with open("model.txt", "w") as file:
    file.write("weights")
made = {"theirs": theirs.create_tracker(folder), "ours": ours.create_tracker(folder)}
by_file = ours.create_tracker(folder + "/.torchxconfig")
def write(tracker, run):
    tracker.add_metadata(run, lr=0.1, layers=[1, 2], note=None)
    tracker.add_metadata(run, lr=0.2)
    tracker.add_artifact(run, "model", "model.txt", {"epoch": 1})
    for rank in range(2):
        tracker.add_artifact(run, f"checkpoint/{rank}", "model.txt", {"rank": rank})
    tracker.log_params_flat(run, {"a": {"b": 1}, "l": ["x", "y"], "nested": [{"n": 1}, {"n": 2}], "s": "t",
        "nothing": {}})
    tracker.close()
def read(tracker, run):
    return {
        "metadata": {k: v for k, v in tracker.metadata(run).items() if not k.startswith("mlflow.")
                     and not k.startswith("torchx.")},
        "artifacts": sorted((a.name, a.path, a.metadata) for a in tracker.artifacts(run).values()),
    }
for name, tracker in made.items():
    write(tracker, name)
client = made["ours"].client
runs = client.search_runs([made["ours"].experiment_id])
made["ours"].add_source("child", "ours", "model")
made["ours"].add_source("child", "theirs")
os.makedirs("folder/inner")
open("folder/inner/file", "w").close()
for name, path in {"a/b": "model.txt", "a/c/d": "model.txt", "e": "folder"}.items():
    made["ours"].add_artifact("child", name, path)
print(json.dumps({
    "read": {name: {reader: read(made[reader], name) for reader in made} for name in made},
    "runs": {r.info.run_name: [r.info.status, r.data.params,
             {k: v for k, v in r.data.tags.items() if k.startswith("torchx")}] for r in runs},
    "locations": [t.artifact_location for t in (*made.values(), by_file)],
    "ids": sorted(made["ours"].run_ids()),
    "children": list(made["ours"].run_ids(parent_run_id="theirs")),
    "sources": sorted((s.source_run_id, s.artifact_name or "") for s in made["ours"].sources("child")),
    "named": sorted(made["ours"].artifacts("child")),
    "plain": sorted(key for key in made["ours"].metadata("child") if not key.startswith("mlflow.")),
    "unknown": [dict(made["ours"].metadata("never")), dict(made["ours"].artifacts("never"))],
}))
"""


@pytest.mark.slow
def test_mlflow(tmp_path: Path) -> None:
    found = run(MLFLOW, str(tmp_path))
    ours, theirs = (found["read"][name][name] for name in ("ours", "theirs"))
    for written in found["read"].values():
        assert written["ours"]["metadata"] == written["theirs"]["metadata"]
        # TorchX leaves the run out of the path, where there is no such file
        pairs = [[(name, more) for name, _, more in read["artifacts"]] for read in written.values()]
        assert pairs[0] == pairs[1]
    assert ours["metadata"] == theirs["metadata"] == {"lr": "0.2", "layers": "[1, 2]", "note": "None"}
    *checkpoints, (_, path, metadata) = ours["artifacts"]
    assert metadata == {"epoch": "1", "mlflow.file_size": 7}
    assert [(name, more["rank"]) for name, _, more in checkpoints] == [
        ("checkpoint/0", "0"),
        ("checkpoint/1", "1"),
    ]
    assert Path(checkpoints[1][1]).read_text() == "weights"
    assert found["named"] == ["a/b", "a/c/d", "e"]
    assert found["plain"] == []
    assert Path(path).read_text() == "weights"
    assert found["runs"]["ours"] == found["runs"]["theirs"]
    assert found["runs"]["ours"][0] == "FINISHED"
    assert len(set(found["locations"])) == 1
    assert found["ids"] == ["child", "ours", "theirs"]
    assert found["children"] == ["child"]
    assert found["sources"] == [["ours", "model"], ["theirs", ""]]
    assert found["unknown"] == [{}, {}]

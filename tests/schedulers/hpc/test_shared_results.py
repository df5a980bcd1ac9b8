"""Results on the storage of a cluster, read over ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.hpc.shared_results import PART_BYTES, SharedResults
from shunter.schedulers.hpc.ssh import commands_on
from shunter.schedulers.hpc.storage import Storage
from tests.result_jobs import FILES, SCRIPT


def test_files_are_listed_and_read_and_nothing_else_is(login_node, tmp_path: Path) -> None:
    base = tmp_path / "real" / "train-0"
    for part in ("model", "output/data"):
        (base / part).mkdir(parents=True)
    environ = {"SM_MODEL_DIR": f"{base}/model", "SM_OUTPUT_DATA_DIR": f"{base}/output/data"}
    subprocess.run([sys.executable, "-c", SCRIPT], env={**os.environ, **environ}, check=True)
    odd = 'it\'s "a" $HOME\n* \x1b[1m'
    (base / "model" / odd).write_text("odd")
    large = os.urandom(1 << 20) * (2 * PART_BYTES // (1 << 20)) + b"end"
    (base / "model" / "large").write_bytes(large)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    place = SharedResults(Storage(commands_on("login1")), f"{tmp_path}/link/train-0")
    expected = {**FILES, f"model/{odd}": b"odd", "model/large": large}
    assert {file.path: file.size for file in place.files()} == {
        path: len(content) for path, content in expected.items()
    }
    assert sorted(text.partition(" is ")[0] for text in place.left_out) == [
        "output/data/etc",
        "output/data/passwd",
        "output/data/pipe",
    ]
    for path, content in expected.items():
        assert b"".join(place.read(path, 2)) == content[2:]
    for path in ("output/data/passwd", "output/data/etc/passwd", "output/data/pipe", "model/none"):
        with pytest.raises(ConfigError, match="no result"):
            list(place.read(path))
    assert SharedResults(Storage(commands_on("login1")), f"{tmp_path}/never").files() == []

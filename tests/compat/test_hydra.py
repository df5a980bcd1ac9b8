"""The launcher of Hydra: a multirun's jobs are jobs of shunter, and their values come back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shunter.runner import get_runner
from tests.backends import hydra_python

ROOT = Path(__file__).parents[2]
SCRIPT = """
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path="conf", config_name="base")
def main(cfg):
    if cfg.lr > 5:
        raise ValueError("too large")
    return [cfg.lr * 2, HydraConfig.get().job.num]

if __name__ == "__main__":
    main()
"""
#: A program around it, since Hydra does not print what the launcher returns.
SWEEP = """
import runpy, sys
from hydra.core.utils import JobReturn

value = JobReturn.return_value

def shown(self):
    print("returned", self._return_value)
    return value.fget(self)

JobReturn.return_value = property(shown, value.fset)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_multirun(tmp_path: Path) -> None:
    python = hydra_python()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "base.yaml").write_text("lr: 1\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sweep.py").write_text(SWEEP)
    sources = [str(ROOT / "src"), str(ROOT / "hydra-shunter-launcher" / "src")]

    def launch(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "sweep.py", "train.py", "-m", "hydra/launcher=shunter", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sources)},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    done = launch("lr=1,2", "hydra.sweep.dir=out dir")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("returned")] == [
        "returned [2, 0]",
        "returned [4, 1]",
    ]
    assert (tmp_path / "out dir" / "1" / ".hydra" / "config.yaml").read_text() == "lr: 2\n"
    failed = launch("lr=9")
    assert failed.returncode == 1
    assert "is FAILED: train/0: exit code 1; shunter why local_cwd://" in failed.stderr
    with get_runner() as runner:
        assert len(runner.jobs()) == 3

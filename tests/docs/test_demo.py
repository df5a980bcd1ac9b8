"""The demo, and the commands that it ends with, typed as printed.

`.ci/demo` does so with `make demo` itself, which installs from a package index.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def typed(*words: str) -> str:
    """Run a command as in a shell that knows no `shunter`; returns what it prints on stdout."""
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not Path(p, "shunter").exists())
    environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | {"PATH": path}
    done = subprocess.run(
        words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_the_demo_prints_can_be_typed(home: Path) -> None:
    demo = typed("examples/demo.sh", sys.prefix)
    assert "the learning rate 10 is too high" in demo
    assert re.search(r"^train/\d  SUCCEEDED .* 0\.9", demo, re.MULTILINE), "no point of the sweep learned"
    assert re.search(r"^A train-\w+ train/0: last 0\.\d+, .* 6 values$", demo, re.MULTILINE), (
        "no chart of a loss"
    )
    models = re.search(r"^\$ ls (.*)$", demo, re.MULTILINE)
    assert models is not None
    found = sorted(file.name for path in models[1].split() for file in (ROOT / path).iterdir())
    assert found == ["seed-0.json", "seed-1.json"]
    assert str(home) in demo

    activate, *commands, page = re.findall(r"^    (.*)$", demo[demo.index("Now you") :], re.MULTILINE)
    shown = typed("sh", "-e", "-c", "\n".join([activate, *commands]))
    assert "6 values" in shown
    assert shown.count("local_cwd://shunter/train-") == 5  # the run's own, and those of the list
    assert page == "shunter ui"
    (home / "config").mkdir()
    (home / "config" / "config.toml").write_text(
        "[cli.ui]\nport = 0\n"
    )  # its own may be in use on this machine
    serving = subprocess.Popen(
        ["sh", "-c", f"{activate}\nexec {page}"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    assert serving.stdout.readline().startswith("http://127.0.0.1:")
    serving.send_signal(signal.SIGINT)
    serving.communicate(timeout=60)

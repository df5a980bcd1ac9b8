"""A host that asks for it has its own /opt/ml, on machines that allow more or less."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shunter_toolkit import opt_ml
from tests.backends import need

from .conftest import clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = "/usr/bin/python3"
SOURCE = Path(opt_ml.__file__).parents[1]
ROOT = os.geteuid() == 0
SOMEBODY = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
# A machine with an /opt of its own, so that what a test leaves there can be looked at, and stays apart from
# this machine's. $1: "ml" or "bare"; then the command.
MACHINE = """
set -e
kind=$1; shift
mount -t tmpfs -o mode=755 machine /opt
case $kind in
ml) mkdir -p /opt/ml/checkpoints /opt/tool; echo theirs >/opt/ml/file; ln -s tool /opt/link; : >/opt/word ;;
bare) mkdir /opt/tool; ln -s tool /opt/link; : >/opt/word ;;
esac
before=$(ls -ld /opt /opt/* 2>&1) || true
"$@" || code=$?
[ "$before" = "$(ls -ld /opt /opt/* 2>&1 || true)" ] || { echo "left behind on the machine"; exit 99; }
exit ${code-0}
"""
# Neither mounts nor user namespaces: as in most containers, and for ordinary users of some distributions.
LOCKED = [
    *("unshare", "--user", "--map-root-user", "sh", "-c"),
    'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set -all --inh-caps -all "$@"',
    "sh",
]
WRITES = """
import json, os, sys
sees = {"mine": open("/opt/ml/input/data/training/x").read(), "opt": sorted(os.listdir("/opt"))}
sees["resumed"] = os.path.exists("/opt/ml/checkpoints/state")
sees["ids"] = [os.getuid(), os.getgid()]
for name in ("model/m", "checkpoints/state", "output/data/d"):
    with open("/opt/ml/" + name, "w") as file:
        file.write("kept")
json.dump(sees, open("/opt/ml/output/data/sees", "w"))
"""


def may(*words: str) -> bool:
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


needs_somebody = pytest.mark.skipif(
    not (ROOT and may(*SOMEBODY, "unshare", "--user", "--map-root-user", "true"))
    or not may(*SOMEBODY, "test", "-r", str(SOURCE / "shunter_toolkit/train.py")),
    reason="cannot be somebody else here (root, setpriv, user namespaces, readable sources)",
)
USERS = [pytest.param([], id="self"), pytest.param(SOMEBODY, id="somebody", marks=needs_somebody)]


@pytest.fixture(autouse=True)
def namespaces() -> None:
    need("namespaces")


class Machine:
    """Runs ``train`` on a machine made for it, one base directory per host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "data").mkdir()
        (folder / "data/x").write_text("x")
        (folder / "code").mkdir()
        self.job: dict[str, Any] = {
            "program": "train.py",
            "code": str(folder / "code"),
            "channels": {"training": str(folder / "data")},
        }

    def script(self, text: str) -> None:
        (self.folder / "code/train.py").write_text(text)

    @property
    def base(self) -> Path:
        return self.folder / "base-algo-1"

    def start(
        self, *wrapped: str, kind: str = "bare", host: str = "algo-1", **env: str
    ) -> subprocess.Popen[str]:
        base = self.folder / f"base{self.job.get('name', '')}-{host}"
        base.mkdir(exist_ok=True)
        if "12345" in wrapped:
            os.chown(base, 12345, 12345)
        document = {**self.job, "current_host": host}
        given = {
            "SHUNTER_JOB": json.dumps(document),
            "SAGEMAKER_BASE_DIR": str(base),
            "SHUNTER_HOST_NETWORK": "loopback",
            "SHUNTER_OPT_ML": "1",
            "PYTHONPATH": str(SOURCE),
            "PYTHONDONTWRITEBYTECODE": "1",
            **env,
        }
        own = [] if ROOT else ["--user", "--map-root-user"]
        line = ["unshare", *own, "--mount", "sh", "-c", MACHINE, "sh", kind]
        return subprocess.Popen(
            [*line, *wrapped, PYTHON, "-m", "shunter_toolkit", "train"],
            env=clean_environment(**given),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def run(self, *wrapped: str, **how: str) -> tuple[int, str]:
        process = self.start(*wrapped, **how)
        out, _ = process.communicate(timeout=50)
        return process.returncode, out


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="shunter-view-") as folder:  # somebody else gets there too
        os.chmod(folder, 0o755)
        yield Machine(Path(folder))


@pytest.mark.parametrize("kind", ["ml", "bare"])
@pytest.mark.parametrize("user", USERS)
def test_opt_ml_is_the_jobs_own(machine: Machine, user: list[str], kind: str) -> None:
    machine.script(WRITES)
    code, out = machine.run(*user, kind=kind)
    assert code == 0, out
    assert "WARNING" not in out
    base = machine.base
    assert (base / "model/m").read_text() == (base / "checkpoints/state").read_text() == "kept"
    sees = json.loads((base / "output/data/sees").read_text())
    assert sees["opt"] == ["link", "ml", "tool", "word"]
    assert sees["ids"] == ([12345, 12345] if user else [os.getuid() if ROOT else 0] * 2)


@pytest.mark.parametrize("user", USERS)
def test_checkpoints_come_back_to_a_script_that_knows_no_variables(machine: Machine, user: list[str]) -> None:
    machine.script(WRITES)
    kept = machine.folder / "kept"
    kept.mkdir()
    kept.chmod(0o777)
    machine.job["checkpoints"] = {"uri": str(kept)}
    for resumed in (False, True):
        code, out = machine.run(*user)
        assert code == 0, out
        assert json.loads((machine.base / "output/data/sees").read_text())["resumed"] is resumed
        shutil.rmtree(machine.base)


def test_where_it_cannot_be_the_job_fails_at_once(machine: Machine) -> None:
    machine.script("print('started')")
    code, out = machine.run(*LOCKED, kind="ml")
    assert code == 1
    assert "started" not in out
    assert f"Cannot show {machine.base} at /opt/ml, as SHUNTER_OPT_ML asks: unshare" in out
    assert "Use SM_MODEL_DIR and the other SM_ variables, or run the job in a container." in out


@pytest.mark.parametrize("default", ["", ", '/opt/ml/checkpoints'"], ids=["", "a default"])
def test_a_job_that_does_not_ask_is_left_alone(machine: Machine, default: str) -> None:
    machine.script(f"import os; open(os.environ.get('SM_CHECKPOINT_DIR'{default}) + '/state', 'w').close()")
    machine.job["checkpoints"] = {"uri": str(machine.folder / "kept")}
    code, out = machine.run(*LOCKED, kind="ml", SHUNTER_OPT_ML="")
    assert (code, out) == (0, "")
    assert (machine.folder / "kept/state").exists()


def test_children_and_the_stop_hook_see_it_too(machine: Machine) -> None:
    """Nothing of them is left."""
    machine.script(
        "import os, signal, subprocess, sys, time\n"
        "def stop(number, frame):\n"
        "    subprocess.run(['sh', '-c', 'echo child >/opt/ml/model/child'], check=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "os.write(1, b'up\\n')\n"
        "time.sleep(600)\n"
    )
    machine.job["stop_hook"] = ["sh", "-c", "echo hook >/opt/ml/model/hook"]
    process = machine.start()
    assert process.stdout is not None
    while process.stdout.readline() != "up\n":
        assert process.poll() is None
    train = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
    os.kill(int(train), signal.SIGTERM)
    process.communicate(timeout=50)
    assert (machine.base / "model/child").read_text() == "child\n"
    assert (machine.base / "model/hook").read_text() == "hook\n"

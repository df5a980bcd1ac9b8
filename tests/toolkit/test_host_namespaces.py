"""Each host has an /opt/ml of its own and knows the others by name, on machines that allow more or less."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shunter_toolkit import host_namespaces
from tests.backends import need

from .conftest import clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON = "/usr/bin/python3"
SOURCE = Path(host_namespaces.__file__).parents[1]
ROOT = os.geteuid() == 0
SOMEBODY = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
# A machine with an /opt of its own, so that what a test leaves there can be looked at, and stays apart from
# this machine's. $1: "ml", "bare" or "none"; then the command.
MACHINE = """
set -e
kind=$1; shift
mount -t tmpfs -o mode=755 machine /opt
case $kind in
ml) mkdir -p /opt/ml/checkpoints /opt/tool; echo theirs >/opt/ml/file; ln -s tool /opt/link; : >/opt/word ;;
bare) mkdir /opt/tool; ln -s tool /opt/link; : >/opt/word ;;
none)
  new=$(mktemp -d); mount -t tmpfs -o mode=755 machine "$new"
  for entry in /*; do
    place=$new/${entry##*/}
    case $entry in /opt) continue ;; esac
    if [ -L "$entry" ]; then cp -P "$entry" "$place"
    elif [ -d "$entry" ]; then mkdir "$place"; mount --rbind "$entry" "$place"; fi
  done
  cd "$new"; mkdir .old; pivot_root . .old; cd /; umount -l /.old "$new"; rmdir /.old "$new"
  ;;
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
sees["mounts"] = [line.split()[4] for line in open("/proc/self/mountinfo")]
for name in ("model/m", "checkpoints/state", "output/data/d"):
    with open("/opt/ml/" + name, "w") as file:
        file.write(os.environ["SM_CURRENT_HOST"])
json.dump(sees, open("/opt/ml/output/data/sees", "w"))
"""
TALKS = """
import os, socket, time
ready = os.environ["READY"]
if os.environ["SM_CURRENT_HOST"] == "algo-2":
    server = socket.create_server(("algo-2", 29500))
    server.settimeout(40)
    open(ready, "w").close()
    line = server.accept()[0].makefile("rw")
    assert line.readline() == "hello of " + os.environ["READY"] + chr(10)
    line.write("well\\n"); line.flush()
else:
    assert socket.gethostbyname("algo-1") != socket.gethostbyname("algo-2")
    deadline = time.monotonic() + 40
    while not os.path.exists(ready):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with socket.create_connection(("algo-2", 29500)) as connection:
        line = connection.makefile("rw")
        line.write("hello of " + ready + "\\n"); line.flush()
        assert line.readline() == "well\\n"
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


@pytest.mark.parametrize("kind", ["ml", "bare", "none"])
@pytest.mark.parametrize("user", USERS)
def test_opt_ml_is_the_jobs_own(machine: Machine, user: list[str], kind: str) -> None:
    machine.script(WRITES)
    code, out = machine.run(*user, kind=kind)
    assert code == 0, out
    assert "WARNING" not in out
    base = machine.base
    assert (base / "model/m").read_text() == (base / "checkpoints/state").read_text() == "algo-1"
    sees = json.loads((base / "output/data/sees").read_text())
    assert sees["opt"] == (["ml"] if kind == "none" else ["link", "ml", "tool", "word"])
    assert sees["ids"] == ([12345, 12345] if user else [os.getuid() if ROOT else 0] * 2)
    assert not [place for place in sees["mounts"] if place.endswith("/.view")]
    assert not (base / ".view").exists()


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


@pytest.mark.parametrize("user", USERS)
def test_hosts_of_two_jobs_reach_their_own_by_name(machine: Machine, user: list[str]) -> None:
    """All four serve or ask the same port of the same name at the same time."""
    machine.script(TALKS)
    machine.job["host_count"] = 2
    meeting = machine.folder / "meeting"
    meeting.mkdir()
    meeting.chmod(0o777)
    started = []
    for job in ("one", "two"):
        machine.job["name"] = f"{job}-{uuid.uuid4().hex}"  # the addresses of its hosts follow from it
        ready = str(meeting / job)
        started += [machine.start(*user, host=host, READY=ready) for host in ("algo-1", "algo-2")]
    for process in started:
        out, _ = process.communicate(timeout=50)
        assert process.returncode == 0, out


LOSES = """
import os
os.write(1, b"started\\n")
os.makedirs("/opt/ml/checkpoints", exist_ok=True)
open("/opt/ml/checkpoints/state", "w").close()
"""


@pytest.mark.parametrize("kept", [False, True], ids=["", "checkpoints wanted"])
def test_where_it_cannot_be_the_loss_is_said_at_once_and_is_no_success(machine: Machine, kept: bool) -> None:
    machine.script(LOSES)
    if kept:
        machine.job["checkpoints"] = {"uri": str(machine.folder / "kept")}
    code, out = machine.run(*LOCKED, kind="ml")
    warning, *others = out.splitlines()
    assert "WARNING  train.py uses /opt/ml, which is not this job's own here: a mount namespace" in warning
    assert "user.max_user_namespaces, is 0" in warning
    assert warning.endswith("Use SM_MODEL_DIR and the other SM_ variables.")
    assert others[0] == "started"
    assert "1 file(s) were written to this machine's own /opt/ml during the run" in out
    assert code == (1 if kept else 0), out


@pytest.mark.parametrize("default", ["", ", '/opt/ml/checkpoints'"], ids=["", "a default"])
def test_where_it_cannot_be_who_uses_the_variables_loses_nothing(machine: Machine, default: str) -> None:
    machine.script(f"import os; open(os.environ.get('SM_CHECKPOINT_DIR'{default}) + '/state', 'w').close()")
    machine.job["checkpoints"] = {"uri": str(machine.folder / "kept")}
    code, out = machine.run(*LOCKED, kind="ml")
    assert (code, out) == (0, "")
    assert (machine.folder / "kept/state").exists()


@pytest.mark.parametrize(
    "use",
    [
        pytest.param("host = 'algo-1'", id="the script"),
        pytest.param("import other", id="a script beside it"),
    ],
)
def test_where_names_do_not_resolve_a_script_that_uses_them_hears_of_it(machine: Machine, use: str) -> None:
    machine.script(use)
    if use == "import other":
        (machine.folder / "code/other.py").write_text("import os; os.environ.get('MASTER_ADDR')")
    code, out = machine.run(*LOCKED, kind="ml")
    assert code == 0, out
    (warning,) = out.splitlines()
    assert "The names of this job's hosts do not resolve here: " in warning
    assert warning.endswith("Use 127.0.0.1 in place of algo-1.")


def test_a_stop_finds_everything_in_the_same_place(machine: Machine) -> None:
    """The script's children and the stop hook see what the script sees; nothing of them is left."""
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
    machine.job["stop_hook"] = ["sh", "-c", "getent hosts algo-1 >/opt/ml/model/hook"]
    process = machine.start()
    assert process.stdout is not None
    while process.stdout.readline() != "up\n":
        assert process.poll() is None
    train = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
    os.kill(int(train), signal.SIGTERM)
    process.communicate(timeout=50)
    assert (machine.base / "model/child").read_text() == "child\n"
    assert "algo-1" in (machine.base / "model/hook").read_text()

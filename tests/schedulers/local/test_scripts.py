"""Scripts of `train.script` on this machine: under the toolkit, in place, by the user's own Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.errors import ConfigError
from shunter.runner import Runner, get_runner
from shunter.specs import AppState, AppStatus, is_terminal
from tests.backends import need
from tests.toolkit.test_opt_ml import LOCKED

from .conftest import linux_only

PATIENCE = 110
SHOW = """
import json, os, sys
json.dump([os.getcwd(), sys.argv, os.environ["MARK"], sys.stdin.read(), sys.flags.no_site], sys.stdout)
open(os.path.join(os.environ["SM_MODEL_DIR"], "model.bin"), "w").write("weights")
"""


@pytest.fixture
def runner() -> Iterator[Runner]:
    with get_runner("test") as runner:
        yield runner


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current directory, whose ``python`` is a program of its own."""
    directory = tmp_path / "project"
    (directory / "src").mkdir(parents=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nMARK=mine exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)  # so that PATH is taken as it is
    monkeypatch.chdir(directory)
    return directory


def run(runner: Runner, *words: str) -> tuple[str, AppStatus]:
    handle = runner.run_component("train.script", list(words), "local_cwd")
    status = runner.wait(handle, timeout=PATIENCE)
    assert status is not None
    assert is_terminal(status.state), status
    return handle, status


def log(runner: Runner, handle: str, role: str) -> list[str]:
    return list(runner.log_lines(handle, role))


def test_a_script_runs_in_place_and_its_results_are_kept(runner: Runner, project: Path) -> None:
    (project / "src/train.py").write_text(SHOW)
    # on the user's own machine neither is installed
    (project / "requirements.txt").write_text("no-such-package-at-all==1\n")
    (project / "setup.py").write_text("raise SystemExit('not to be run')\n")
    handle, status = run(runner, "--script", "src/train.py", "--", "--lr", "a b")
    (line,) = log(runner, handle, "train")
    assert json.loads(line) == [str(project), ["src/train.py", "--lr", "a b"], "mine", "", 0]
    assert status.state == AppState.SUCCEEDED
    results = Path(status.results or "")
    assert (results / "model/model.bin").read_text() == "weights"
    assert AppStatus.from_json(status.to_json()).results == status.results
    (leftover,) = runner.scheduler("local_cwd").leftovers({}, 0)
    assert leftover.results
    (results / "model").chmod(0o500)
    runner.delete(handle)
    assert not results.exists()


@pytest.mark.slow
def test_arguments_may_be_more_than_a_variable_takes(runner: Runner, project: Path) -> None:
    (project / "train.py").write_text("import sys; print(len(sys.argv), len(sys.argv[-1]))")
    handle, _ = run(runner, "--script", "train.py", "--", *["x" * 100_000] * 4)
    assert "5 100000\n" in log(runner, handle, "train")  # beside a warning on stderr


def test_the_usual_variable_brings_its_own_lines_back(runner: Runner, project: Path) -> None:
    (project / "train.py").write_text("")
    level = "SAGEMAKER_CONTAINER_LOG_LEVEL=20"
    handle, _ = run(runner, "--script", "train.py", "--env", level)
    lines = log(runner, handle, "train")
    assert any(line.startswith("SM_CURRENT_HOST=127.") for line in lines)
    assert lines[-1].endswith(f"Running {sys.executable} train.py\n")


@pytest.mark.parametrize(
    ("end", "reason", "code", "report"),
    [
        ("sys.exit(3)", "exit code 3", 3, "train.py ended with exit code 3"),
        ("raise ValueError('no luck')", "exit code 1", 1, "ValueError: no luck"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV", 139, "killed by SIGSEGV"),
    ],
)
def test_a_failure_is_the_scripts_own(
    runner: Runner, project: Path, end: str, reason: str, code: int, report: str
) -> None:
    (project / "train.py").write_text(f"import os, signal, sys\n{end}\n")
    _, status = run(runner, "--script", "train.py")
    (replica,) = status.replicas()
    assert (status.state, replica.reason, replica.exit_code) == (AppState.FAILED, reason, code)
    assert report in json.loads(status.structured_error_msg)["message"]["message"]
    assert report in Path(status.results or "", "output/failure").read_text()


def test_a_stopped_script_has_time_to_save(runner: Runner, project: Path) -> None:
    (project / "train.py").write_text(
        "import os, signal, sys\n"
        "def save(number, frame):\n"
        "    open(os.environ['SM_MODEL_DIR'] + '/saved', 'w').close(); print('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('up', flush=True)\n"
        "while True: signal.pause()\n"
    )
    handle = runner.run_component("train.script", ["--script", "train.py"], "local_cwd")
    assert next(iter(runner.log_lines(handle, "train", should_tail=True))) == "up\n"
    runner.cancel(handle)
    status = runner.wait(handle, timeout=PATIENCE)
    assert status is not None
    assert status.state == AppState.CANCELLED
    assert log(runner, handle, "train")[1] == "saved\n"
    assert Path(status.results or "", "model/saved").exists()


def test_scripts_of_other_places(runner: Runner, project: Path, tmp_path: Path) -> None:
    """Outside of the current directory, and a shell script with the toolkit and without."""
    (tmp_path / "beside.py").write_text("import sys; print(sys.argv[0])")
    for script in ("../beside.py", str(tmp_path / "beside.py")):
        handle, _ = run(runner, "--script", script)
        assert log(runner, handle, "beside") == [f"{script}\n"]
    (project / "run.sh").write_text(
        '#!/bin/bash\necho "${BASH_VERSION:+bash}" "$1" "${SM_MODEL_DIR:+toolkit}"\n'
    )
    for toolkit, said in (("true", "bash a b toolkit\n"), ("false", "bash a b \n")):
        handle, status = run(runner, "--script", "run.sh", "--toolkit", toolkit, "--", "a b")
        assert log(runner, handle, "run") == [said]
        assert (status.results is None) == (toolkit == "false")


RANKS = """
import os
name = next(name for name in ("OMPI_COMM_WORLD_RANK", "RANK") if name in os.environ)
with open(f"{os.environ['SHARED']}/{os.environ[name]}", "w") as file:
    file.write(os.environ["SM_CURRENT_HOST"])
"""
SUM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        pytest.param("mpi", RANKS, marks=linux_only),
        pytest.param("torchrun", RANKS + SUM, marks=[pytest.mark.slow, linux_only]),
    ],
)
def test_replicas_are_the_hosts_of_a_distribution(
    runner: Runner, project: Path, tmp_path: Path, kind: str, script: str
) -> None:
    """Also in two jobs at the same time; and where nothing goes wrong, nothing is said."""
    need({"mpi": "mpi", "torchrun": "torch"}[kind])
    (project / "train.py").write_text(script)
    handles = []
    for number in range(2):
        (tmp_path / f"{number}").mkdir()
        words = ["--script", "train.py", "--num_replicas", "2", "--distribution", kind]
        words += ["--env", f"SHARED={tmp_path}/{number},OMP_NUM_THREADS=1"]
        handles.append(runner.run_component("train.script", words, "local_cwd"))
    for number, handle in enumerate(handles):
        status = runner.wait(handle, timeout=PATIENCE)
        said = [line for k in (0, 1) for line in runner.log_lines(handle, "train", k)]
        assert status is not None
        assert status.state == AppState.SUCCEEDED, said
        if kind == "torchrun":
            # it may complain itself, with the paths of its files, when the agent with its store leaves first
            said = [line for line in said if "shunter" in line.replace(sys.prefix, "")]
        else:  # mpirun says so when its child runs another program before mpirun has moved it to a group
            said = [line for line in said if "plm:rsh: Warning: setpgid" not in line]
        assert not said
        found = {path.name: path.read_text() for path in (tmp_path / f"{number}").iterdir()}
        network = found["0"].rpartition(".")[0]
        assert network.startswith("127.")
        assert found == {"0": f"{network}.1", "1": f"{network}.2"}


@pytest.mark.parametrize("kind", ["none", "mpi"])
def test_hosts_need_no_rights_to_have_addresses(
    runner: Runner, project: Path, tmp_path: Path, kind: str
) -> None:
    """Neither mounts nor user namespaces: as in most containers."""
    need("mpi")
    (project / "train.py").write_text(
        "import json, os, socket\n"
        "hosts, own = json.loads(os.environ['SM_HOSTS']), os.environ['SM_CURRENT_HOST']\n"
        "socket.create_server((own, 0)).close()\n"
        "open(os.path.join(os.environ['SHARED'], own), 'w').write(str(hosts.index(own)))\n"
    )
    words = ["run", "train.script", "--script", "train.py", "--num_replicas", "2", "--distribution", kind]
    words += ["--env", f"SHARED={tmp_path}"]
    command = [*LOCKED, sys.executable, "-m", "shunter", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr
    found = {path.name: path.read_text() for path in tmp_path.glob("127.*")}
    assert sorted(found.values()) == ["0", "1"]


@pytest.mark.parametrize("workspace", ["", "."])
@pytest.mark.parametrize("toolkit", ["true", "false"])
def test_a_script_that_is_not_there_is_refused(
    runner: Runner, project: Path, workspace: str, toolkit: str
) -> None:
    (project / "train.py").write_text("")
    words = ["--script", "nosuch.py", "--toolkit", toolkit]
    with pytest.raises(ConfigError, match=r"there is no script nosuch\.py|the workspace has no nosuch\.py"):
        runner.run_component("train.script", words, "local_cwd", workspace=workspace)


def test_data_that_are_not_there_are_refused(runner: Runner, project: Path) -> None:
    (project / "train.py").write_text("")
    words = ["--script", "train.py", "--channel", "training=nowhere"]
    with pytest.raises(ConfigError, match=r"channel 'training': .* does not exist"):
        runner.run_component("train.script", words, "local_cwd")


def test_an_end_by_a_signal_leaves_no_core_of_the_toolkit(runner: Runner, project: Path) -> None:
    (project / "train.py").write_text("import os, resource, signal\nos.kill(os.getpid(), signal.SIGABRT)\n")
    _, status = run(runner, "--script", "train.py")
    assert status.replicas()[0].exit_code == 128 + signal.SIGABRT
    assert sorted(os.listdir(project)) == ["src", "train.py"]

"""Environments of jobs on this machine, built by the real uv and the real pip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import shunter
from shunter._toolkit import environment_store
from shunter.errors import BackendError, ConfigError
from shunter.runner import get_runner
from shunter.specs import AppState
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.workspace import environment
from tests.environments.conftest import UV

HEADER = '# /// script\n# dependencies = ["six", "idna"]\n# requires-python = ">=3.9"\n# ///\n'
SCRIPT = "import sys, six; print(sys.prefix, six.__version__)\n"


def environments(home: Path) -> list[Path]:
    return sorted((home / "state" / "environments").glob("*.json"))


def run(*arguments: str) -> str:
    """Run a script, which must succeed; return the first line that it prints."""
    with get_runner() as runner:
        handle = runner.run_component("train.script", arguments, "local_cwd", {})
        status = runner.wait(handle)
        lines = list(runner.log_lines(handle, "s"))
        assert status.state == AppState.SUCCEEDED, lines
        return lines[0].strip()


def planned(*arguments: str) -> AppDryRunInfo:
    with get_runner() as runner:
        return runner.dryrun_component("train.script", arguments, "local_cwd", {})


def test_a_script_with_a_header_runs_with_its_packages(packages, project, home):
    (project / "s.py").write_text(HEADER + SCRIPT)
    plan = planned("--script", "s.py").environments["s"]
    assert (plan["built"], plan["packages"]) == (False, ["six", "idna"])
    assert not environments(home), "a plan builds nothing"
    prefix, _ = run("--script", "s.py").split()
    (pointer,) = environments(home)
    assert Path(prefix).parent == pointer.parent / json.loads(pointer.read_text())["folder"]
    assert planned("--script", "s.py").environments["s"]["built"] is True
    os.utime(pointer, (1, 1))
    (project / "s.py").write_text(HEADER + "# other code, the same packages\n" + SCRIPT)
    assert run("--script", "s.py").split()[0] == prefix
    assert pointer.stat().st_mtime > 1, "a use is noted"


def test_without_the_header_the_python_that_is_there_runs(project):
    (project / "s.py").write_text(HEADER + "import sys; print(sys.prefix)\n")
    assert planned("--script", "s.py", "--environment", "none").environments == {}
    assert run("--script", "s.py", "--environment", "none") == sys.prefix


@pytest.mark.slow
def test_requirements_with_what_they_include(packages, project, home):
    (project / "s.py").write_text(SCRIPT)
    (project / "needs").mkdir()
    (project / "needs" / "all.txt").write_text("-r base.txt\n-c ../limits.txt\n")
    (project / "needs" / "base.txt").write_text("six\n")
    (project / "limits.txt").write_text("six==1.16.0\n")
    assert run("--script", "s.py", "--environment", "needs/all.txt").split()[1] == "1.16.0"
    (project / "limits.txt").write_text("six==1.17.0\n")
    assert run("--script", "s.py", "--environment", "needs/all.txt").split()[1] == "1.17.0"
    assert len(environments(home)) == 2


def test_a_project_by_its_lock_and_a_script_by_its_own(packages, project, home):
    (project / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = ["six<1.17"]\n'
        '[dependency-groups]\ndev = ["idna"]\n'
    )
    (project / "s.py").write_text(HEADER.replace('"six"', '"six<1.17"') + SCRIPT)
    with pytest.raises(ConfigError, match=r"it has no uv\.lock"):
        planned("--script", "s.py", "--environment", ".")
    subprocess.run([UV, "lock", "--quiet"], check=True)
    subprocess.run([UV, "lock", "--quiet", "--script", "s.py"], check=True)
    assert planned("--script", "s.py").environments["s"]["download"] > 10_000
    of_project = run("--script", "s.py", "--environment", ".").split()
    of_script = run("--script", "s.py").split()
    assert of_project[1] == of_script[1] == "1.16.0"
    assert [Path(of_project[0], "lib").exists(), of_project[0] == of_script[0]] == [True, False]
    assert not list(Path(of_project[0]).glob("lib/*/site-packages/idna")), "no groups for development"
    assert list(Path(of_script[0]).glob("lib/*/site-packages/idna"))


def test_what_cannot_be_installed_is_an_error_before_the_job_starts(packages, project, home):
    (project / "s.py").write_text(HEADER.replace("idna", "shunter-has-no-such-package") + SCRIPT)
    with get_runner() as runner, pytest.raises(BackendError) as error:
        runner.run_component("train.script", ["--script", "s.py"], "local_cwd", {})
    assert "cannot build the environment of the header of s.py" in str(error.value)
    assert "shunter-has-no-such-package" in str(error.value)
    assert not environments(home)
    assert [path.suffix for path in (home / "state" / "environments").iterdir()] == [".failed"]


def test_a_full_disk_is_named(project, monkeypatch):
    uv = project / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\necho 'failed to copy: No space left on device (os error 28)' >&2; exit 2\n")
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}{os.pathsep}{os.environ['PATH']}")
    (project / "s.py").write_text(HEADER)
    with get_runner() as runner, pytest.raises(BackendError, match="No space left") as error:
        runner.run_component("train.script", ["--script", "s.py"], "local_cwd", {})
    assert "shunter gc" in error.value.hint


@pytest.mark.slow
def test_without_uv_pip_builds_it(packages, project, monkeypatch):
    (project / "s.py").write_text(HEADER + SCRIPT)
    monkeypatch.setenv("SHUNTER_INSTALLER", "pip")
    prefix, version = run("--script", "s.py").split()
    assert version
    assert "environments" in prefix
    (project / "s.py").write_text(HEADER.replace(">=3.9", ">=3.99") + SCRIPT)
    with get_runner() as runner, pytest.raises(BackendError, match=r"needs Python >=3\.99.*Install uv"):
        runner.run_component("train.script", ["--script", "s.py"], "local_cwd", {})


def test_a_package_beside_the_script_is_refused(project):
    (project / "s.py").write_text(
        '# /// script\n# dependencies = ["lib"]\n# [tool.uv.sources]\n# lib = { path = "./lib" }\n# ///\n'
    )
    with pytest.raises(ConfigError, match=r"the source of lib is the path \./lib") as error:
        planned("--script", "s.py")
    assert "PYTHONPATH" in error.value.hint


def add_folder(project: Path, name: str) -> Path:
    """Make a folder with a package of that name."""
    folder = project / name
    folder.mkdir(parents=True)
    (folder / f"{folder.name}.py").write_text(f"where = {str(folder)!r}\n")
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{folder.name}"\nversion = "1"\n')
    return folder


def test_a_folder_in_requirements_is_linked_and_known_by_its_place(project, monkeypatch):
    digests = []
    for name in ("one", "two"):
        lib = add_folder(project, f"{name}/lib")
        monkeypatch.chdir(project / name)
        Path("requirements.txt").write_text("six\n-e ./lib  # ours\n")
        digests.append(environment.Description(**environment.describe("requirements.txt")).digest)
    (lib / "lib.py").write_text("where = 0  # linked, so the environment stays as it is\n")
    digests.append(environment.Description(**environment.describe("requirements.txt")).digest)
    (lib / "pyproject.toml").write_text('[project]\nname = "lib"\nversion = "1"\ndependencies = ["idna"]\n')
    digests.append(environment.Description(**environment.describe("requirements.txt")).digest)
    assert digests[1] == digests[2]
    assert len(set(digests)) == 3
    Path("requirements.txt").write_text("six\n./lib\n")
    with pytest.raises(ConfigError, match=r"installs a copy of the folder \./lib") as refused:
        environment.describe("requirements.txt")
    assert "-e ./lib" in refused.value.hint


@pytest.mark.slow
def test_folders_in_a_lock_travel_as_code(packages, project):
    add_folder(project, "lib")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "app"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = ["six", "lib"]\n'
        '[tool.uv.sources]\nlib = { path = "lib" }\n'
    )
    subprocess.run([UV, "lock", "--quiet"], check=True)
    (project / "s.py").write_text("import lib, six; print(lib.where, six.__version__)\n")
    printed = run("--script", "s.py", "--environment", ".", "--env", f"PYTHONPATH={project / 'lib'}")
    assert printed.startswith(str(project / "lib"))


def test_a_lock_says_how_much_is_to_be_downloaded_at_most(project):
    machine = os.uname().machine
    host = "macosx_11_0" if sys.platform == "darwin" else "manylinux_2_28"

    def file(name: str, size: int) -> str:
        return f'{{ url = "https://x/{name}", hash = "sha256:0", size = {size}, upload-time = "2025" }},\n'

    (project / "s.py").write_text(HEADER)
    (project / "s.py.lock").write_text(
        'version = 1\n[[package]]\nname = "a"\nwheels = [\n'
        + file(f"a-1-cp311-cp311-{host}_{machine}.whl", 100)
        + file(f"a-1-cp312-cp312-{host}_{machine}.whl", 110)
        + file("a-1-cp312-cp312-win_amd64.whl", 999)
        + ']\n[[package]]\nname = "a"\nwheels = [\n'
        + file(f"a-2-cp313-cp313-{host}_{machine}.whl", 105)
        + ']\n[[package]]\nname = "b"\nsdist = '
        + file("b-1.tar.gz", 20)
        + "wheels = [\n"
        + file("b-1-py3-none-any.whl", 7)
        + ']\n[[package]]\nname = "c"\nsdist = '
        + file("c-1.tar.gz", 1000)
    )
    assert planned("--script", "s.py").environments["s"]["download"] == 1117
    (project / "s.py.lock").unlink()
    assert planned("--script", "s.py").environments["s"]["download"] is None


# ---- many at once, dead builders, age


def builder(home: Path, description: dict, folder: Path) -> Callable[..., subprocess.Popen]:
    """Return what starts a process that builds an environment with what is called `uv` in a folder."""
    environment.put_toolkit()
    request = environment.request_for(environment.Description(**description), sys.executable)
    command = [sys.executable, "-S", environment.local_toolkit(), "environment", "build"]
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"

    def start() -> subprocess.Popen:
        process = subprocess.Popen(
            [*command, environment.local_store()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PATH": path},
        )
        process.stdin.write(request)
        process.stdin.close()
        process.stdin = None
        return process

    return start


@pytest.fixture
def fake_uv(tmp_path: Path) -> Path:
    """A folder with a uv that notes its calls, and installs nothing once the file `go` is there."""
    folder = tmp_path / "uv"
    folder.mkdir()
    program = folder / "uv"
    program.write_text(
        f"#!/bin/sh\necho x >>{folder}/calls\n"
        f"while [ ! -e {folder}/go ]; do sleep 0.05; done\n"
        f'for venv; do :; done\nmkdir -p "$venv/bin" && ln -s {sys.executable} "$venv/bin/python"\n'
    )
    program.chmod(0o755)
    return folder


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines()) if (folder / "calls").exists() else 0


@pytest.mark.slow
def test_of_twenty_that_start_at_once_one_builds(home, fake_uv):
    start = builder(home, {"kind": "packages", "source": "test"}, fake_uv)
    processes = [start() for _ in range(20)]
    (fake_uv / "go").touch()
    results = [json.loads(process.communicate()[0]) for process in processes]
    assert {result["python"] for result in results} == {results[0]["python"]}
    assert calls(fake_uv) == 1
    assert len(list((home / "state" / "environments").iterdir())) == 2, "nothing else is left"


def wait_for(condition: Callable[[], bool]) -> None:
    from shunter.backoff import polling

    tries = polling(60)
    while not condition():
        assert tries.pause()


def test_a_killed_build_blocks_nobody_and_is_not_used(home, fake_uv):
    start = builder(home, {"kind": "packages", "source": "test"}, fake_uv)
    first = start()
    wait_for(lambda: calls(fake_uv) == 1)
    waiting = start()
    first.kill()
    first.communicate()
    wait_for(lambda: calls(fake_uv) == 2)
    (fake_uv / "go").touch()
    out, err = waiting.communicate()
    assert json.loads(out)["built"] is True, err
    assert len(environments(home)) == 1


def test_the_lease_of_a_host_that_died_is_taken_over(home, fake_uv, monkeypatch):
    """Whether a process of another host lives cannot be asked; its lease is no longer touched."""
    (fake_uv / "go").touch()
    monkeypatch.setenv("PATH", f"{fake_uv}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(environment_store, "_SILENT_SECONDS", 0.5)
    pointer = home / "state" / "environments" / "name.json"
    pointer.parent.mkdir(parents=True)
    lease = pointer.with_suffix(".lease")
    holder = {"token": "theirs", "host": "gone", "machine": "another", "pid": os.getpid(), "started": "1"}
    lease.write_text(json.dumps(holder))
    description = environment.Description("packages", "test")
    folder = environment_store.ensure(description, str(pointer), sys.executable, lambda name: b"", str(home))
    assert environment_store.published(str(pointer)) == folder
    assert not lease.exists()


@pytest.mark.slow
def test_gc_collects_by_last_use(home, fake_uv):
    (fake_uv / "go").touch()
    start = builder(home, {"kind": "packages", "source": "test"}, fake_uv)
    start().communicate()
    shunter = [sys.executable, "-m", "shunter"]

    def gc(*words: str) -> str:
        done = subprocess.run([*shunter, "gc", *words], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    (pointer,) = environments(home)
    folder = pointer.parent / json.loads(pointer.read_text())["folder"]
    assert "environment" not in gc("--older-than", "1s"), "it was used today"
    os.utime(pointer, (1, 1))
    assert "environment" in gc()
    assert folder.exists()
    gc("--yes")
    assert not folder.exists()
    assert not pointer.exists()


def test_an_environment_whose_python_is_gone_is_built_again(home, fake_uv):
    (fake_uv / "go").touch()
    start = builder(home, {"kind": "packages", "source": "test"}, fake_uv)
    python = Path(json.loads(start().communicate()[0])["python"])
    python.unlink()
    assert json.loads(start().communicate()[0])["python"] != str(python)


def test_lists_of_packages_for_calls_from_python(project):
    assert environment.describe(["six"]) == {
        "kind": "packages",
        "source": "a list of packages",
        "packages": ["six"],
    }
    with pytest.raises(ConfigError, match=r"cannot read no-such-file\.txt"):
        environment.describe("no-such-file.txt")


def test_functions_run_with_their_environment_which_need_not_have_cloudpickle(packages, project, monkeypatch):
    (project / "requirements.txt").write_text("six\n")
    (project / "work_in_env.py").write_text(
        "import sys\ndef where():\n    import six\n    return sys.prefix\n"
    )
    monkeypatch.syspath_prepend(str(project))
    import work_in_env  # type: ignore[import-not-found]

    with shunter.Executor("local_cwd", environment="requirements.txt") as executor:
        by_name = executor.submit(work_in_env.where).result(100)
        assert by_name != sys.prefix
        assert executor.submit(lambda: __import__("sys").prefix).result(100) == by_name

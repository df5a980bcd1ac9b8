"""The programmatic API, and the predecessors' import names."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

from .conftest import Tree, clean_environment
from .image import make_wheel


def python(tree: Tree, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree.python, "-c", textwrap.dedent(code)],
        env=tree.env(**env),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("wait", [True, False])
def test_entry_point_run_raises(tree: Tree, wait: bool) -> None:
    tree.script("raise KeyError('missing column')")
    done = python(
        tree,
        f"""
        from shunter_toolkit import entry_point, errors
        try:
            running = entry_point.run("", "train.py", [], wait={wait})
            running.wait()
        except errors.ExecuteUserScriptError as error:
            assert {wait} or running.poll() == 1
            assert error.exit_code == 1 and "KeyError: 'missing column'" in str(error), error
            assert error.details["exception"] == "KeyError"
        else:
            raise SystemExit("nothing was raised")
        """,
    )
    assert done.returncode == 0, done.stderr


def test_framework_module(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "my_framework.py").write_text(
        "import sys\nfrom shunter_toolkit import entry_point, environment\n"
        "def main():\n"
        "    env = environment.Environment()\n"
        "    entry_point.run(env.module_dir, env.user_entry_point, env.to_cmd_args())\n"
        "def bad():\n    raise ValueError('framework is unwell')\n"
    )
    tree.script("print('ran by the framework')")
    env = {"PYTHONPATH": str(tmp_path)}
    done = tree.train(SAGEMAKER_TRAINING_MODULE="my_framework:main", **env)
    assert (done.returncode, done.stdout) == (0, "ran by the framework\n"), done.stderr
    assert tree.train(SAGEMAKER_TRAINING_MODULE="my_framework:bad", **env).returncode == 1
    assert tree.failure.startswith("ValueError: framework is unwell")
    tree.script("import sys; sys.exit('own words') if len(sys.argv) > 9 else sys.exit(6)")
    assert tree.train(SAGEMAKER_TRAINING_MODULE="my_framework:main", **env).returncode == 6
    assert tree.train(SAGEMAKER_TRAINING_MODULE="import os", **env).returncode == 1
    assert "package.module:function" in tree.failure


def test_files(tree: Tree) -> None:
    done = python(
        tree,
        """
        import os
        from shunter_toolkit import files
        files.write_success_file()
        files.write_failure_file("first")
        files.write_failure_file("second")
        with files.tmpdir() as folder:
            files.write_file(folder + "/x/y.json", '{"a": 1}')
            assert files.read_json(folder + "/x/y.json") == {"a": 1}
        assert not os.path.exists(folder)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert tree.failure == "first"


def test_on_stop(tree: Tree) -> None:
    import signal

    tree.script(
        """
        import os, time
        from shunter_toolkit.on_stop import on_stop
        on_stop(lambda: open(os.environ["SM_MODEL_DIR"] + "/saved", "w").close(), exit_code=0)
        print("ready", flush=True)
        time.sleep(100)
        """
    )
    process = tree.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert (tree.base / "model/saved").exists()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel in it: the ``.pth`` file works only from site-packages."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder / "env")
    site = next((folder / "env/lib").glob("python3*/site-packages"))
    with zipfile.ZipFile(make_wheel(folder)) as wheel:
        wheel.extractall(site)
    return folder / "env"


ALIASES = """
from sagemaker_training import environment, entry_point, errors, files, mapping, intermediate_output
import sagemaker_training.environment
import sagemaker_containers
from sagemaker_containers.beta.framework import encoders, modules, worker
import shunter_toolkit.environment
assert environment is sagemaker_training.environment is shunter_toolkit.environment
assert sagemaker_containers.environment is environment
assert environment.__spec__.name == "shunter_toolkit.environment"
try:
    import sagemaker_training.no_such_module
except ImportError:
    print("fine")
"""


def test_aliases(installed: Path) -> None:
    def run(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(installed / "bin/python"), "-c", ALIASES],
            env=clean_environment(**env),
            capture_output=True,
            text=True,
            check=False,
        )

    done = run()
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    assert "No module named 'sagemaker_training'" in run(SHUNTER_ALIASES="0").stderr


def test_aliases_never_hide_an_original(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "sagemaker_training").mkdir()
    (tmp_path / "sagemaker_training/__init__.py").write_text("original = True")
    done = subprocess.run(
        [
            str(installed / "bin/python"),
            "-c",
            "import sagemaker_training as own; print(own.original); import sagemaker_training.params",
        ],
        env=clean_environment(PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
    assert "No module named 'sagemaker_training.params'" in done.stderr


def test_syntax_and_library_of_python_3_8() -> None:
    """vermin reads the sources for what an old Python would not know."""
    import importlib.util
    import sys

    from .conftest import backend

    backend("vermin", importlib.util.find_spec("vermin") is not None, "vermin is not installed")
    source = Path(__file__).parents[2] / "toolkit/src"
    line = [
        sys.executable,
        "-c",
        "import vermin; vermin.main()",
        "-t=3.8-",
        "--violations",
        "--no-tips",
        str(source),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_console_scripts(installed: Path) -> None:
    """The wheel names them, and what they name is there."""
    site = next((installed / "lib").glob("python3*/site-packages"))
    text = next(site.glob("shunter_toolkit-*.dist-info/entry_points.txt")).read_text()
    scripts = dict(line.split(" = ") for line in text.splitlines() if " = " in line)
    assert set(scripts) == {"train", "serve", "shunter-toolkit"}
    for target in scripts.values():
        module, _, function = target.partition(":")
        code = f"import {module}; assert callable({module}.{function})"
        subprocess.run([str(installed / "bin/python"), "-c", code], check=True, env=clean_environment())


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zipapp") / "train.pyz"
    builder = Path(__file__).parents[2] / "toolkit/build_zipapp.py"
    subprocess.run([sys.executable, str(builder), str(path)], check=True)
    return path


def train_zipapp(tree: Tree, python: Path, zipapp: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The zipapp in an environment in which nothing is installed."""
    return subprocess.run(
        [str(python), str(zipapp)], env=tree.env(**env), capture_output=True, text=True, check=False
    )


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The Python of an environment in which nothing is installed."""
    venv.create(tmp_path / "env")
    return tmp_path / "env/bin/python"


@pytest.mark.slow
def test_aliases_of_the_zipapp(tree: Tree, zipapp: Path, empty: Path) -> None:
    tree.script(ALIASES)
    done = train_zipapp(tree, empty, zipapp)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    assert train_zipapp(tree, empty, zipapp, SHUNTER_ALIASES="0").returncode == 1
    assert tree.failure.startswith("ModuleNotFoundError: No module named 'sagemaker_training'")


@pytest.mark.slow
def test_a_frameworks_function_under_the_zipapp(
    tree: Tree, zipapp: Path, empty: Path, tmp_path: Path
) -> None:
    """Its names need neither a variable nor an installation."""
    (tmp_path / "their_framework.py").write_text(
        "from sagemaker_training import entry_point, environment, runner\n"
        "def main():\n"
        "    env = environment.Environment()\n"
        "    entry_point.run(env.module_dir, env.user_entry_point, env.to_cmd_args(), env.to_env_vars(),\n"
        "                    runner_type=runner.ProcessRunnerType)\n"
    )
    tree.script("from sagemaker_training import params; print(params.USER_PROGRAM_PARAM)")
    env = {"SAGEMAKER_TRAINING_MODULE": "their_framework:main", "PYTHONPATH": str(tmp_path)}
    done = train_zipapp(tree, empty, zipapp, **env)
    assert (done.returncode, done.stdout) == (0, "sagemaker_program\n"), done.stderr
    tree.script("raise KeyError('column')")
    assert train_zipapp(tree, empty, zipapp, **env).returncode == 1
    assert tree.failure.startswith("KeyError: 'column'")

"""Code without network: refused where it would be fetched or installed over one, and only there."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError, InvalidRunConfigException
from shunter.progress import Silent
from shunter.schedulers.aws_sagemaker_scheduler.code_archive import CodePackage, plan_code
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import PlannedCode
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.request import make_job
from shunter.specs.app import AppDef, Role
from shunter.specs.workspace import Workspace
from shunter_toolkit import script_command as toolkit_program

ROLE = "arn:aws:iam::123456789012:role/Training"
FILES = {
    "requirements.txt": "torchmetrics==1.0\n",
    "setup.py": "from setuptools import setup\nsetup()\n",
    "pyproject.toml": '[project]\nname = "x"\n',
    "train.py": "print(1)\n",
}


def app_of(program: str = "train.py", **env: str) -> AppDef:
    train = {"program": program, "version": 1}
    return AppDef("job", [Role("train", "i:1", entrypoint="python", metadata={"train": train}, env=env)])


def plan(app: AppDef, directory: Path, **given: Any) -> CodePackage | None:
    options = {"enable_network_isolation": True, **given}
    return plan_code(
        app,
        Workspace({str(directory): ""}),
        AWSSageMakerOpts(role=ROLE, instance_type="ml.m5.large", **options),
    )


def write(directory: Path, **files: str) -> Path:
    for name, content in files.items():
        path = directory / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return directory


def refusal(app: AppDef, directory: Path, **given: Any) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        plan(app, directory, **given)
    assert refused.value.message.startswith("enable_network_isolation: ")
    return refused.value


@pytest.mark.parametrize("program", ["train.py", "run.sh", "package.main"])
def test_it_is_refused_where_the_toolkit_would_install_something(tmp_path: Path, program: str) -> None:
    """Against the toolkit itself, for each set of files."""
    names = [*FILES, "run.sh"]
    decisions = set()
    for number, there in enumerate(itertools.product((True, False), repeat=len(names))):
        chosen = [name for name, wanted in zip(names, there, strict=True) if wanted]
        if program in names and program not in chosen:
            continue  # a script that is not there is refused by itself
        if program not in names and not {"setup.py", "pyproject.toml"} & set(chosen):
            continue
        directory = tmp_path / str(number)
        directory.mkdir()
        for name in chosen:
            (directory / name).write_text(FILES.get(name, "#!/bin/sh\n"))
        installs = toolkit_program.needs_install(str(directory), program)
        decisions.add(installs)
        if installs:
            refusal(app_of(program), directory)
        else:
            assert plan(app_of(program), directory) is not None
    assert True in decisions
    assert program == "package.main" or False in decisions  # a package is always installed


def test_the_refusal_names_the_file_and_the_ways_out(project: Path) -> None:
    write(project, requirements_DOT_txt="# ours\ntorchmetrics==1.0  # metrics\nnumpy\n")
    error = refusal(app_of(), project)
    assert "requirements.txt asks for torchmetrics==1.0 and 1 more" in error.message
    assert "it has no network" in error.message
    for way in (
        ".shunterignore",
        "when the image is built",
        "PIP_NO_INDEX",
        "PIP_FIND_LINKS",
        "UV_OFFLINE",
    ):
        assert way in error.hint
    assert plan(app_of(), project, enable_network_isolation=False) is not None
    (project / ".shunterignore").write_text("requirements.txt\n")
    assert plan(app_of(), project) is not None


@pytest.mark.parametrize(
    "environment",
    [
        {"PIP_NO_INDEX": "1"},
        {"PIP_NO_INDEX": "true", "PIP_FIND_LINKS": "/opt/ml/code/wheels"},
        {"UV_OFFLINE": "1"},
        {"PIP_INDEX_URL": "file:///opt/ml/input/data/wheels/simple"},
        {"PIP_CONFIG_FILE": "/opt/ml/code/pip.conf"},
    ],
)
def test_requirements_that_need_no_index_are_let_through(project: Path, environment: dict[str, str]) -> None:
    write(project, requirements_DOT_txt="torchmetrics\n")
    assert plan(app_of(), project, environment=environment) is not None
    assert plan(app_of(**environment), project) is not None  # the job's own variables count too


@pytest.mark.parametrize(
    "content",
    [
        "",
        "# nothing\n\n",
        "--no-index\n--find-links ./wheels\ntorchmetrics\n",
        "--index-url file:///opt/ml/code/simple\ntorchmetrics\n",
        "./wheels/torchmetrics-1.0-py3-none-any.whl\n",
        "wheels/torchmetrics-1.0-py3-none-any.whl ; python_version > '3'\n",
        "-e ./lib\n-c constraints.txt\n",
        "lib @ file:///opt/ml/code/lib\n",
    ],
)
def test_requirements_of_what_travels_with_the_code_are_let_through(project: Path, content: str) -> None:
    write(project, requirements_DOT_txt=content)
    assert plan(app_of(), project) is not None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("-r more/files.txt\n", "requirements.txt asks for -r more/files.txt"),
        ("-e git+https://user:secret@host/x.git#egg=x\n", "asks for -e git+https://host/x.git#egg=x, to be"),
        ("x[y] @ https://host/x.whl\n", "requirements.txt asks for x[y] @ https://host/x.whl, to be"),
        ("torch \\\n  --hash=sha256:0\n", "requirements.txt asks for torch,"),
        ("a\nb\nc\n", "asks for a and 2 more"),
    ],
)
def test_other_requirements_are_reported_with_their_place(project: Path, content: str, said: str) -> None:
    write(project, requirements_DOT_txt=content)
    error = refusal(app_of(), project)
    assert said in error.message
    assert "secret" not in error.message


def test_packages_are_built_with_what_an_index_has(project: Path) -> None:
    write(project, setup_DOT_py="from setuptools import setup\n")
    assert "setup.py makes the code a package" in refusal(app_of(), project).message
    assert plan(app_of(), project, environment={"UV_OFFLINE": "1"}) is not None


def test_a_repository_is_looked_at_when_it_has_been_cloned(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", train_DOT_py="print(1)\n", requirements_DOT_txt="x\n")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"],
    ):
        subprocess.run(["git", *words], cwd=repository, check=True)
    options = AWSSageMakerOpts(
        role=ROLE,
        instance_type="ml.m5.large",
        enable_network_isolation=True,
        git_config={"repo": str(repository)},
    )
    package = plan_code(app_of(), Workspace(), options)
    assert package is not None
    try:
        with pytest.raises(ConfigError, match=r"requirements\.txt asks for x"):
            package.resolve(Silent())
    finally:
        package.close()


def made(app: AppDef, **given: Any) -> None:
    options = {"enable_network_isolation": True, **given}
    make_job(app, AWSSageMakerOpts(role=ROLE, instance_type="ml.m5.large", **options), code=PlannedCode("k"))


def test_people_cannot_connect_without_a_network() -> None:
    with pytest.raises(InvalidRunConfigException, match="enable_remote_debug and enable_network_isolation"):
        made(app_of(), enable_remote_debug=True)
    made(app_of(), enable_remote_debug=True, enable_network_isolation=False)

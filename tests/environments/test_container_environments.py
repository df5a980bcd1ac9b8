"""Environments of jobs in images: as a layer of the image, or installed at the start of the container."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import BackendError, ConfigError
from shunter.runner import get_runner
from shunter.specs import AppState
from shunter.workspace import environment
from shunter.workspace.images.environment_layer import CannotMakeError, look_up, satisfies
from shunter.workspace.manifest import Entry
from tests.aws.moto_server import running_batch
from tests.backends import need
from tests.kubernetes.stub import container_cluster
from tests.registry.server import logged_in, registry
from tests.sagemaker_endpoint import running_endpoint
from tests.toolkit.image import docker, temporary_image
from tests.workspace.machines import Shipper, Told

__all__ = ["logged_in", "registry"]

HEADER = '# /// script\n# dependencies = ["six<1.17"]\n# ///\n'
SCRIPT = "import shutil, sys, six; print(sys.prefix, sys.base_prefix, six.__version__)\n"
INSIDE = "/opt/shunter/environments/"
OFFLINE = ("--env", "PIP_NO_INDEX=1,PIP_FIND_LINKS=wheels")


@pytest.fixture
def image() -> Iterator[str]:
    """An image of the test's own, over which no environment has been made."""
    with temporary_image() as made:
        yield made


@pytest.fixture
def wheels(packages: None, project: Path) -> Path:
    """A folder in the project with a wheel that a container without network can install."""
    target = project / "wheels"
    script = "import sys; from pip._internal.cli.main import main; sys.exit(main(sys.argv[1:]))"
    pip = ["python3", "-c", script, "download", "--quiet", "--no-deps", "--dest", str(target), "six<1.17"]
    subprocess.run(pip, check=True)
    return target


def run(*arguments: str, scheduler: str = "local_docker", **options: Any) -> list[str]:
    """Run a script in a container, which must succeed; return what it prints."""
    with get_runner() as runner:
        handle = runner.run_component(
            "train.script", ["--script", "s.py", *arguments], scheduler, options, workspace="."
        )
        state = runner.wait(handle).state
        lines = list(runner.log_lines(handle, "s"))
        runner.delete(handle)
    assert state == AppState.SUCCEEDED, lines
    return lines[-1].split()


def environments_unused_for(age: str, *words: str) -> list[str]:
    """Return the images with environments that `shunter gc` lists."""
    gc = [sys.executable, "-m", "shunter", "gc", "-s", "local_docker", "--older-than", age, *words]
    listed = subprocess.run(gc, capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"shunter/workspace:environment-\w+", listed)))


@pytest.mark.slow
def test_it_is_a_layer_of_the_image_that_is_made_once(image, packages, project, home, monkeypatch):
    (project / "s.py").write_text(HEADER + SCRIPT)
    with get_runner() as runner:
        arguments = ["--script", "s.py", "--image", image]
        plan = runner.dryrun_component("train.script", arguments, "local_docker", {}, workspace=".")
    assert plan.environments["s"]["place"].startswith(f"becomes a layer over {image}")
    prefix, base, version = run("--image", image)
    assert prefix.startswith(INSIDE)
    assert (base, version) == ("/usr", "1.16.0")
    (stamp,) = (home / "state" / "images").glob("environment-*.json")
    os.utime(stamp, (1, 1))
    (name,) = environments_unused_for("1d")
    (project / "s.py").write_text(HEADER + "# other code\n" + SCRIPT)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(project / "nothing"))
    assert run("--image", image)[0] == prefix
    assert environments_unused_for("1d") == [], "it was used now"
    assert environments_unused_for("0s", "--yes") == [name]
    assert name not in docker("images", "--format", "{{.Repository}}:{{.Tag}}").stdout


def check_that_it_was_installed(printed: list[str]) -> None:
    prefix, base, _ = printed
    assert prefix.startswith("/root/.cache/shunter/environments/")
    assert base == "/usr"


@pytest.mark.slow
def test_what_cannot_be_a_layer_is_installed_in_the_container(image, wheels, project, monkeypatch):
    (project / "s.py").write_text(HEADER + SCRIPT)
    monkeypatch.setenv("SHUNTER_INSTALLER", "pip")
    check_that_it_was_installed(run("--image", image, *OFFLINE))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:role .* a pod keeps no files")
def test_it_is_installed_in_pods_of_kubernetes(image, wheels, project, tmp_path, monkeypatch):
    need("lightkube")
    (project / "s.py").write_text(HEADER + SCRIPT)
    with container_cluster(tmp_path / "kubeconfig"):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        check_that_it_was_installed(run("--image", image, *OFFLINE, scheduler="kubernetes"))


@pytest.mark.slow
def test_it_is_installed_in_containers_of_aws_batch(packages, wheels, project, monkeypatch):
    (project / "requirements.txt").write_text("six<1.17\n")
    (project / "s.py").write_text(SCRIPT)
    arguments = ["--environment", "requirements.txt", "--memMB", "256", *OFFLINE]
    with running_batch() as moto:
        for variable, value in moto.environ().items():
            monkeypatch.setenv(variable, value)
        options = {"queue": moto.queue, "code_location": f"s3://{moto.bucket}/code"}
        printed = run(*arguments, "--image", moto.image, scheduler="aws_batch", **options)
    check_that_it_was_installed(printed)


@pytest.mark.slow
def test_it_is_installed_in_containers_of_sagemaker(packages, image, wheels, project, moto, monkeypatch):
    (project / "s.py").write_text(HEADER + SCRIPT)
    with running_endpoint(moto) as (variables, options):
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        find = {"environment": {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/ml/code/wheels"}}
        check_that_it_was_installed(run("--image", image, scheduler="aws_sagemaker", **options, **find))


@pytest.mark.slow
def test_on_sagemaker_it_is_a_layer_where_images_can_be_pushed(
    packages, image, project, moto, logged_in, monkeypatch
):
    (project / "s.py").write_text(HEADER + SCRIPT)
    name = f"jobs/{uuid.uuid4().hex[:10]}"
    repository = f"{logged_in.host}/{name}"
    arguments = ["--script", "s.py", "--image", image]
    with running_endpoint(moto) as (variables, options):
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        options["image_repo"] = repository
        with get_runner() as runner:
            plan = runner.dryrun_component("train.script", arguments, "aws_sagemaker", options, workspace=".")
        assert plan.environments["s"]["place"].startswith(f"becomes a layer over {image}")
        assert logged_in.tags(name) == []
        for code in ("", "# other code\n"):
            (project / "s.py").write_text(HEADER + code + SCRIPT)
            prefix, base, version = run("--image", image, scheduler="aws_sagemaker", **options)
            assert prefix.startswith(INSIDE)
            assert (base, version) == ("/usr", "1.16.0")
    assert len(logged_in.tags(name)) == 1, "the code is not in it"


@pytest.mark.slow
def test_a_package_that_does_not_exist_is_told_and_left_to_the_container(image, packages, project):
    (project / "s.py").write_text(HEADER.replace("six<1.17", "shunter-has-no-such-package") + "import sys\n")
    told = Told()
    with get_runner() as runner:
        plan = runner.dryrun_component(
            "train.script", ["--script", "s.py", "--image", image], "local_docker", {}, workspace="."
        )
        plan.shipment.ship(told)
    (line,) = (line for line in told.results if "cannot be put into the image" in line)
    assert "shunter-has-no-such-package" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-e ./lib", "may run code"),
        pytest.param("  --editable=./lib", "may run code", marks=pytest.mark.slow),
        pytest.param("-r https://127.0.0.1:9/more.txt", "may run code", marks=pytest.mark.slow),
    ],
)
def test_no_code_of_a_package_runs_on_this_machine(image, packages, project, line, reason):
    (project / "lib").mkdir()
    (project / "lib" / "setup.py").write_text(f"open({str(project / 'ran')!r}, 'w')\n")
    (project / "lib" / "pyproject.toml").write_text('[project]\nname = "mylib"\nversion = "1"\n')
    (project / "lib" / "mylib.py").write_text("")
    (project / "requirements.txt").write_text(f"{line}\n")
    (project / "s.py").write_text("")
    told = Told()
    arguments = ["--script", "s.py", "--image", image, "--environment", "requirements.txt"]
    with get_runner() as runner:
        plan = runner.dryrun_component("train.script", arguments, "local_docker", {}, workspace=".")
        plan.shipment.ship(told)
    (said,) = (text for text in told.results if "cannot be put into the image" in text)
    assert reason in said
    assert not (project / "ran").exists()


def test_a_full_disk_is_an_error_before_the_job_is_submitted(image, project, monkeypatch):
    uv = project / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        "#!/bin/sh\necho 'error: failed to copy: No space left on device (os error 28)' >&2; exit 2\n"
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}{os.pathsep}{os.environ['PATH']}")
    (project / "s.py").write_text(HEADER)
    arguments = ["--script", "s.py", "--image", image]
    with get_runner() as runner, pytest.raises(BackendError, match="is full"):
        runner.run_component("train.script", arguments, "local_docker", {}, workspace=".")


def shipped(shipper: Shipper, base: str, repository: str, told: Told) -> str:
    """Ship the project's script with its environment; return the image."""
    info = shipper.plan(
        base, ".", train=True, environment=environment.of_script("s.py"), image_repo=repository
    )
    shipper.ship(info, told)
    return info.request[0]


@pytest.mark.slow
def test_without_docker_it_is_written_to_the_registry(image, packages, project, logged_in, monkeypatch):
    (project / "s.py").write_text(HEADER + SCRIPT)
    base, repository = (f"{logged_in.host}/{name}" for name in ("bases/python", "jobs/env"))
    docker("tag", image, f"{base}:1")
    docker("push", f"{base}:1")
    docker("rmi", f"{base}:1")
    shipper, told = Shipper(remote=True), Told()
    made = shipped(shipper, f"{base}:1", repository, told)
    assert made.startswith(f"{repository}@sha256:"), told.results
    program = [f"{INSIDE}{environment.Description(**environment.of_script('s.py')).digest}/venv/bin/python"]
    done = docker("run", "--rm", "--entrypoint", *program, made, "-c", SCRIPT)
    docker("rmi", "--force", made)
    assert done.stdout.split()[1:] == ["/usr", "1.16.0"]
    (project / "s.py").write_text(HEADER + "# other code\n" + SCRIPT)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(project / "nothing"))
    told = Told()
    assert shipped(shipper, f"{base}:1", repository, told) != made
    assert len(told.results) == 1, "only the layer with the code is made"


def test_its_files_have_to_travel_with_the_code(project, tmp_path):
    (tmp_path / "elsewhere.txt").write_text("six\n")
    (project / "s.py").write_text("")
    arguments = ["--script", "s.py", "--image", "x:1", "--environment", "../elsewhere.txt"]
    with get_runner() as runner, pytest.raises(ConfigError, match=r"\.\./elsewhere\.txt does not travel"):
        runner.dryrun_component("train.script", arguments, "local_docker", {}, workspace=".")


@pytest.mark.parametrize(
    ("required", "version", "answer"),
    [
        ("", "3.12", True),
        (">=3.11", "3.12", True),
        (">=3.11,<3.12", "3.12", False),
        (">=3.12.4", "3.12.3", False),
        (">=3.12.4", "3.12", False),
        ("==3.12.*", "3.12.9", True),
        ("~=3.11", "3.12", True),
        ("~=3.11", "4.0", False),
        ("~=3.11.2", "3.12.0", False),
        ("!=3.12.1", "3.12.1", False),
        ("==3.12", "3.12.1", False),
        (">3.12", "3.12.1", True),
        ("<=3.12", "3.12.0", True),
        ("what", "3.12.0", False),
    ],
)
def test_which_python_a_header_takes(required, version, answer):
    assert satisfies(required, version) is answer


def link(path: str, target: str) -> Entry:
    return Entry(path, "link", 0o777, target=target)


OFFICIAL = [
    link("usr/local/bin/python", "python3"),
    link("usr/local/bin/python3", "python3.12"),
    Entry("usr/local/bin/python3.12", "file", 0o755),
    link("usr/bin/python3", "python3.11"),
    Entry("usr/bin/python3.11", "file", 0o755),
]


@pytest.mark.parametrize(
    ("path", "history", "program", "platform"),
    [
        ("/usr/local/bin:/usr/bin", [], "/usr/local/bin/python3.12", "x86_64-manylinux_2_28"),
        ("/sbin:/usr/bin", [], "/usr/bin/python3.11", "x86_64-manylinux_2_28"),
        (
            "/usr/local/bin",
            [{"created_by": "RUN apk add x"}],
            "/usr/local/bin/python3.12",
            "x86_64-unknown-linux-musl",
        ),
        ("/usr/bin:/usr/local/bin", [], "/usr/bin/python3.11", "x86_64-manylinux_2_28"),
    ],
)
def test_the_python_of_an_image_in_a_registry_is_found_by_its_links(path, history, program, platform):
    config = {"architecture": "amd64", "history": history, "config": {"Env": [f"PATH={path}"]}}
    by_path = {entry.path: entry for entry in OFFICIAL}
    found = look_up(config, lambda paths: {each: by_path[each] for each in paths if each in by_path})
    assert (found.program, found.platform) == (program, platform)
    assert found.version == program[-4:]


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [Entry("usr/bin/python", "file", 0o755), *OFFICIAL],
        [link("usr/bin/python", "python")],
        [link("usr/bin/python", "/x")],
    ],
)
def test_a_python_whose_version_cannot_be_seen_is_left_to_the_container(entries):
    by_path = {entry.path: entry for entry in entries}
    config = {"architecture": "amd64", "config": {"Env": ["PATH=/usr/bin:/usr/local/bin"]}}
    with pytest.raises(CannotMakeError, match="cannot be seen"):
        look_up(config, lambda paths: {each: by_path[each] for each in paths if each in by_path})

"""The toolkit in images."""

from __future__ import annotations

import io
import json
import sys
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.docker.command import DockerCommand
from shunter.docker.images import inspect_image
from shunter.errors import ConfigError
from shunter.workspace.toolkit_files import TOOLKIT_PATH, toolkit_archive
from tests.backends import need
from tests.toolkit.image import make_image
from tests.workspace.machines import Recording, Shipper, code, command, content_of, docker, remove_images

__all__ = ["code", "command"]

TOOLKIT = Path(__file__).parents[2] / "toolkit"


def test_the_archive_is_the_builders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLKIT))
    import build_zipapp

    assert toolkit_archive() == build_zipapp.build()


def test_another_archive_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("__main__.py", "print(1)")
    path = tmp_path / "own.pyz"
    path.write_bytes(raw.getvalue())
    monkeypatch.setenv("SHUNTER_TOOLKIT", str(path))
    assert toolkit_archive() == raw.getvalue()


@pytest.mark.parametrize("content", [None, b"no zip", "empty"])
def test_what_is_no_archive_is_refused(
    content: bytes | str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.pyz"
    if content == "empty":
        zipfile.ZipFile(path, "w").close()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    monkeypatch.setenv("SHUNTER_TOOLKIT", str(path))
    with pytest.raises(ConfigError, match="cannot take the toolkit from SHUNTER_TOOLKIT=") as caught:
        toolkit_archive()
    assert "shunter-toolkit.pyz" in caught.value.hint


def test_an_installation_without_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shunter.__file__", str(tmp_path / "a/b/__init__.py"))
    with pytest.raises(ConfigError, match="missing in") as caught:
        toolkit_archive()
    assert "Reinstall shunter" in caught.value.hint


def test_the_launcher_imports_its_own_toolkit_only(tmp_path: Path) -> None:
    """One that is installed beside it may be of another version."""
    import subprocess

    (tmp_path / "shunter_toolkit.py").write_text("raise RuntimeError('not this one')")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from shunter._toolkit import secret_rules;"
        "import shunter.runner.preparation, shunter.cli.commands.run;"
        "import shunter.schedulers.supervisor.submission;"
        "print(secret_rules.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "shunter._toolkit.secret_rules\n"


# ---- in images


@pytest.fixture(scope="module")
def python_image() -> Iterator[str]:
    """An image with a Python and the working directory ``/app``."""
    need("docker")
    name = f"shunter-test-{uuid.uuid4().hex[:10]}:python"
    make_image(f"{name}-raw")
    text = f"FROM {name}-raw\nLABEL shunter.test={name}\nWORKDIR /app\n"
    docker("build", "--tag", name, "-", given=text.encode())
    yield name
    remove_images(name)
    docker("rmi", f"{name}-raw", check=False)


docker_group = pytest.mark.xdist_group("docker")
JOB = json.dumps(
    {"version": 1, "code": ".", "program": "main.py", "arguments": ["--lr", "1"], "host_count": 1}
)


@pytest.mark.slow
@docker_group
def test_a_job_runs_under_it(python_image: str, command: DockerCommand, code: Path) -> None:
    (code / "main.py").write_text("import sys; print('trained with', sys.argv[1:])")
    shipper = Shipper(command)
    image = shipper.image(python_image, code, train=True)
    made = content_of(image)
    assert made[TOOLKIT_PATH[1:]][:4] == ("file", 0o755, 0, 0)
    place = shipper._toolkit_place(None)
    assert place.command[-1] == TOOLKIT_PATH
    words = ["run", "--rm", "--user", "12345", "--env", f"SHUNTER_JOB={JOB}", image]
    words += [*place.command, "train"]
    assert b"trained with ['--lr', '1']" in docker(*words)


@docker_group
@pytest.mark.slow
def test_it_travels_without_a_workspace(python_image: str, command: DockerCommand) -> None:
    shipper = Shipper(command)
    info = shipper.plan(python_image, "", train=True)
    assert info.shipment is not None
    assert info.shipment.manifest is None
    assert info.shipment.plan()["images"][0]["toolkit"] is True
    shipper.ship(info)
    image = info.request[0]
    made, before = content_of(image), content_of(python_image)
    assert made.keys() - before.keys() == {"opt/ml", "opt/shunter", "opt/shunter/toolkit.pyz"}
    recording = Recording(command)
    assert shipper.image(python_image, "", train=True) == image
    assert shipper.image(image, "", train=True) == image  # as for a job that is repeated
    assert recording.changing == []
    found, below = inspect_image(command, image), inspect_image(command, python_image)
    assert found is not None
    assert below is not None
    assert found["Config"]["WorkingDir"] == below["Config"]["WorkingDir"]


@pytest.mark.slow
@docker_group
def test_only_roles_that_need_it_get_it(python_image: str, command: DockerCommand, code: Path) -> None:
    with_it = Shipper(command).image(python_image, code, train=True)
    without = Shipper(command).image(python_image, code)
    assert with_it != without
    assert TOOLKIT_PATH[1:] not in content_of(without)


@pytest.mark.slow
@docker_group
def test_it_goes_over_an_image_of_ones_own_dockerfile(
    python_image: str, command: DockerCommand, code: Path
) -> None:
    (code / "Dockerfile.shunter").write_text("ARG IMAGE\nFROM $IMAGE\nCOPY main.py /built.py\n")
    shipper = Shipper(command)
    image = shipper.image(python_image, code, train=True)
    made = content_of(image)
    assert {"built.py", TOOLKIT_PATH[1:]} <= made.keys()
    assert "app/main.py" not in made
    recording = Recording(command)
    assert shipper.image(python_image, code, train=True) == image
    assert recording.changing == []

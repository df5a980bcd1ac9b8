"""A workspace's own Dockerfile, in real builds."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shunter.docker.command import DockerCommand
from shunter.docker.images import inspect_image
from shunter.errors import BackendError, ConfigError
from shunter.workspace.images.dockerfile import find_context
from tests.workspace.conftest import take
from tests.workspace.machines import LABEL, Shipper, Told, base, code, command, content_of, docker

__all__ = ["base", "code", "command"]

# ---- building

WAYS = ["buildkit", "classic"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, command: DockerCommand) -> str:
    """Both builders, one after the other, as the command's own variable chooses them."""
    monkeypatch.setenv("DOCKER_BUILDKIT", "1" if request.param == "buildkit" else "0")
    if command.call("build", "--help").returncode:
        pytest.skip("no docker command here builds with BuildKit")
    return str(request.param)


Write = Callable[..., Path]


@pytest.fixture
def dockerfile(code: Path) -> Write:
    def write(*lines: str, name: str = "Dockerfile.shunter") -> Path:
        (code / name).write_text("\n".join([*lines, ""]))
        return code

    return write


docker_group = pytest.mark.xdist_group("docker")


@pytest.mark.slow
@docker_group
def test_it_is_built_from_the_image_with_the_files(
    base: str, command: DockerCommand, dockerfile: Write, way: str
) -> None:
    root = dockerfile(
        "ARG IMAGE",
        "FROM $IMAGE",
        "ARG WORKSPACE",
        "COPY . /built/",
        'RUN ["sh", "-c", "echo from $WORKSPACE > /built/note"]',
    )
    told = Told()
    info = Shipper(command).plan(base, root)
    assert info.shipment is not None
    assert info.shipment.plan()["dockerfile"] == "Dockerfile.shunter"
    planned = info.request[0]
    shipper = Shipper(command)
    image = shipper.image(base, root, told)
    made = content_of(image)
    assert {"built/main.py", "built/pkg/data.bin", "built/note"} <= made.keys()
    assert docker("run", "--rm", image, "cat", "/built/note") == f"from {root}\n".encode()
    found = inspect_image(command, planned)
    assert found is not None
    assert found["Id"] == image
    assert found["Config"]["Labels"]["shunter.fingerprint"] == info.shipment.manifest.fingerprint
    assert any("COPY" in line for line in told.lines)


@pytest.mark.slow
@docker_group
def test_it_is_another_image_only_if_something_changed(
    base: str, command: DockerCommand, dockerfile: Write, way: str
) -> None:
    moving = f"{base}-moving"
    docker("tag", base, moving)
    root = dockerfile("ARG IMAGE", "FROM $IMAGE", "COPY main.py /main.py")
    shipper = Shipper(command)
    first = shipper.image(moving, root)
    assert shipper.image(moving, root) == first
    (root / "main.py").write_text("other")
    second = shipper.image(moving, root)
    assert second != first
    docker("build", "--tag", moving, "-", given=f"FROM {base}\nENV NEW=1\n".encode())
    third = shipper.image(moving, root)
    assert third != second
    assert docker("run", "--rm", third, "sh", "-c", "echo $NEW; cat /main.py") == b"1\nother"


@pytest.mark.slow
@docker_group
def test_a_failing_step_is_shown(base: str, command: DockerCommand, dockerfile: Write, way: str) -> None:
    mark = f"{LABEL}.step={uuid.uuid4().hex}"
    root = dockerfile(
        "ARG IMAGE", "FROM $IMAGE", f"LABEL {mark}", 'RUN ["sh", "-c", "echo the reason >&2; exit 7"]'
    )
    told = Told()
    with pytest.raises(BackendError, match=r"Dockerfile\.shunter failed") as caught:
        Shipper(command).image(base, root, told, quiet=True)
    assert "the reason" in caught.value.message
    assert "exit 7" in caught.value.message
    assert told.lines == []
    assert docker("ps", "--all", "--quiet", "--filter", f"label={mark}") == b""


@pytest.mark.slow
@docker_group
def test_it_gets_what_travels(base: str, command: DockerCommand, dockerfile: Write, way: str) -> None:
    root = dockerfile("ARG IMAGE", "FROM $IMAGE", "COPY . /all/", name="Dockerfile.torchx")
    (root / "weights.bin").write_text("w")
    (root / "other.bin").write_text("o")
    (root / ".dockerignore").write_text("*.bin\nDockerfile.torchx\n")
    (root / ".shunterignore").write_text("!/weights.bin\n")
    made = content_of(Shipper(command).image(base, root))
    assert "all/weights.bin" in made
    assert "all/other.bin" not in made
    dockerfile("ARG IMAGE", "FROM $IMAGE", "COPY other.bin /", name="Dockerfile.torchx")
    with pytest.raises(BackendError, match=r"other\.bin") as caught:
        Shipper(command).image(base, root)
    assert ".shunterignore" in caught.value.hint


def test_where_it_may_pull_from(code: Path) -> None:
    text = (
        "FROM --platform=linux/amd64 ghcr.io/me/a AS build\nfrom $IMAGE\nFROM build\n RUN echo FROM x.y/z\n"
    )
    (code / "Dockerfile.shunter").write_text(text)
    context = find_context(take(code), [str(code)])
    assert context is not None
    assert context.registries("r.example/b:1") == {"ghcr.io", "r.example", "docker.io"}
    assert context.registries(64 * "a") == {"ghcr.io", "docker.io"}


@docker_group
def test_the_predecessors_file_is_second(base: str, command: DockerCommand, dockerfile: Write) -> None:
    dockerfile("FROM no-such-host.invalid/x", name="Dockerfile.torchx")
    root = dockerfile(f"FROM {base}", "COPY main.py /first.py")
    assert "first.py" in content_of(Shipper(command).image(base, root))


def test_without_a_daemon_it_is_refused(code: Path, dockerfile: Write) -> None:
    root = dockerfile("FROM x")
    with pytest.raises(
        ConfigError, match=r"has a Dockerfile\.shunter, which only Docker can build"
    ) as caught:
        Shipper(remote=True).image("x:1", root, image_repo="127.0.0.1:9/jobs")
    assert "rename Dockerfile.shunter" in caught.value.hint


@docker_group
def test_an_interrupted_build_leaves_no_image(
    base: str, command: DockerCommand, dockerfile: Write, way: str
) -> None:
    root = dockerfile(f"FROM {base}", f'RUN ["sh", "-c", "echo {uuid.uuid4().hex}"]', "COPY . /x")
    info = Shipper(command).plan(base, root)
    planned = info.request[0]
    assert info.shipment is not None
    code_of: Any = info.shipment

    def interrupt(entry: Any) -> Any:
        raise KeyboardInterrupt

    object.__setattr__(code_of._code.context.content, "read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Shipper(command).ship(info)
    assert inspect_image(command, planned) is None

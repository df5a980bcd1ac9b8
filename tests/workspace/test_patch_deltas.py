"""Small layers over whole ones: the content must be that of the whole layer alone."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import pytest

from shunter.docker.command import DockerCommand
from tests.workspace.machines import (
    Shipper,
    Told,
    base,
    below,
    code,
    command,
    content_of,
    docker,
    forget,
    layers_of,
    sha256,
    write,
)

__all__ = ["base", "code", "command"]
pytestmark = pytest.mark.xdist_group("docker")

APP = "home/u/app"


def edit_and_compare(
    base: str, code: Path, command: DockerCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[int, int]:
    """Ship the code here and on a machine of its own; the contents must be the same. Returns the layers."""
    shipper = Shipper(command)
    here = shipper.image(base, code)
    made = content_of(here)
    layers = len(layers_of(command, here))
    docker("rmi", "--force", here)
    with monkeypatch.context() as elsewhere:
        forget(elsewhere, tmp_path, uuid.uuid4().hex)
        pristine = shipper.image(base, code)
        assert content_of(pristine) == made
        return layers, len(layers_of(command, pristine))


@pytest.mark.slow
def test_an_edit_ships_a_small_layer(
    base: str, code: Path, command: DockerCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shipper = Shipper(command)
    first = shipper.image(base, code)
    for number in range(3):  # never more than one layer on top of the anchor
        (code / "main.py").write_text(f"print({number})\n")
        (code / f"new{number}.py").write_text("")
        told = Told()
        second = shipper.image(base, code, told)
        assert all(size < 20_000 for size in told.sizes.values())
        assert len(layers_of(command, second)) == len(layers_of(command, first)) + 1
        assert docker("run", "--rm", second, "cat", "main.py") == f"print({number})\n".encode()
    assert edit_and_compare(base, code, command, monkeypatch, tmp_path) == (3, 2)


@pytest.mark.slow
def test_a_removed_file_is_gone(
    base: str, code: Path, command: DockerCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(code, {"gone.txt": b"1", "old/sub/x": b"2"})
    Shipper(command).image(base, code)
    (code / "gone.txt").unlink()
    shutil.rmtree(code / "old")
    layers, _ = edit_and_compare(base, code, command, monkeypatch, tmp_path)
    assert layers == 2  # whole: what hides a file would hide the base's too


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["removed file", "removed directory", "file to directory", "link to directory"]
)
def test_what_the_base_has_comes_back_in_sight(
    base: str, code: Path, command: DockerCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    if case == "removed file":
        write(code, {"base.txt": b"mine"})
    elif case == "removed directory":
        write(code, {"dir/mine.txt": b"mine"})
    elif case == "file to directory":
        write(code, {"dir": b"a file"})
    else:
        (code / "dir").symlink_to("pkg")
    Shipper(command).image(base, code)
    for name in ("base.txt", "dir"):
        path = code / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
    if case.endswith("to directory"):
        write(code, {"dir/mine.txt": b"mine"})
    layers, _ = edit_and_compare(base, code, command, monkeypatch, tmp_path)
    assert layers == 2  # whole again
    made = content_of(Shipper(command).image(base, code))
    assert f"{APP}/base.txt" in made
    assert f"{APP}/dir/inner.txt" in made


@pytest.mark.slow
def test_a_large_edit_is_shipped_whole(base: str, code: Path, command: DockerCommand) -> None:
    Shipper(command).image(base, code)
    write(code, {"pkg/more.bin": os.urandom(150_000)})
    assert len(layers_of(command, Shipper(command).image(base, code))) == 2


@pytest.mark.slow
def test_an_anchor_that_the_daemon_has_lost_does_no_harm(
    base: str, code: Path, command: DockerCommand
) -> None:
    first = Shipper(command).image(base, code)
    docker("rmi", "--force", first)
    (code / "main.py").write_text("2")
    image = Shipper(command).image(base, code)
    assert below(content_of(image), APP)["main.py"][4] == sha256(b"2")
    assert len(layers_of(command, image)) == 2


@pytest.mark.slow
def test_a_damaged_memory_does_no_harm(base: str, code: Path, command: DockerCommand, home: Path) -> None:
    Shipper(command).image(base, code)
    for path in (home / "state" / "images").iterdir():
        path.write_bytes(path.read_bytes()[:-7])
    (code / "main.py").write_text("3")
    image = Shipper(command).image(base, code)
    assert len(layers_of(command, image)) == 2

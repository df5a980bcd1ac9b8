"""A scheduler that does nothing but ship code into images, and looks into the images that come of it."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from shunter.docker.command import DockerCommand
from shunter.docker.images import inspect_image
from shunter.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from shunter.specs import AppDef, AppDryRunInfo, Role
from shunter.workspace.docker_workspace import DockerWorkspaceMixin, DockerWorkspaceOpts
from shunter.workspace.shipment import Shipment
from tests.backends import need
from tests.toolkit.image import DOCKER

#: On every image that tests make, so that they can be removed.
LABEL = "shunter.test"


class Shipper(DockerWorkspaceMixin, Scheduler[DockerWorkspaceOpts]):
    """Ships code; starts nothing.

    Args:
        command: for the daemon; None where there is none.
        remote: whether jobs run on other machines.
    """

    opts_class = DockerWorkspaceOpts

    def __init__(self, command: DockerCommand | None = None, *, remote: bool = False) -> None:
        super().__init__("shipper", "tests")
        self._docker_command = command or DockerCommand({"DOCKER_HOST": "unix:///nowhere/docker.sock"})
        self.requires_image_repo = remote

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[Any]:
        return AppDryRunInfo([role.image for role in app.roles])

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        return "none"

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return None

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        return []

    def plan(
        self,
        image: str,
        workspace: Path | str,
        *,
        train: bool = False,
        environment: Mapping[str, Any] | None = None,
        **cfg: Any,
    ) -> AppDryRunInfo[Any]:
        metadata: dict[str, Any] = {"train": {"version": 1, "environment": environment}} if train else {}
        app = AppDef("job", [Role("r", image, entrypoint="true", metadata=metadata)])
        return self.submit_dryrun(app, cfg, str(workspace))

    def image(
        self, image: str, workspace: Path | str, progress: Any = None, *, train: bool = False, **cfg: Any
    ) -> str:
        """Ship a workspace, and return the image that it is in."""
        info = self.plan(image, workspace, train=train, **cfg)
        self.ship(info, progress)
        assert info.app is not None
        assert info.request == [info.app.roles[0].image]
        return info.app.roles[0].image


class Told:
    """A `Progress` that records its calls; ``on_advance`` is called with each advance."""

    def __init__(self, on_advance: Callable[[int], None] = lambda done: None) -> None:
        self.steps: list[str] = []
        self.lines: list[str] = []
        self.results: list[str] = []
        self.sizes: dict[str, int] = {}
        self._on_advance = on_advance

    def step(self, text: str) -> None:
        self.steps.append(text)

    def advance(self, label: str, done: int, total: int) -> None:
        self.sizes[label] = total
        self._on_advance(done)

    def output(self, line: str) -> None:
        self.lines.append(line)

    def done(self, text: str) -> None:
        self.results.append(text)


class Recording:
    """Notes the words with which a command is called from now on."""

    READING = frozenset({"inspect", "info", "ls", "context"})

    def __init__(self, command: DockerCommand) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._call = command.call
        command.call = self  # type: ignore[assignment]

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(words)
        return self._call(*words, **options)

    @property
    def changing(self) -> list[tuple[str, ...]]:
        """The calls that change something."""
        return [words for words in self.calls if not self.READING.intersection(words)]


def docker(*words: str, given: bytes | None = None, check: bool = True, host: str = "") -> bytes:
    """Run a docker command, return what it prints."""
    at = ["--host", host] if host else []
    done = subprocess.run([DOCKER, *at, *words], input=given, capture_output=True, timeout=55, check=False)
    if check:
        assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def content_of(image: str, host: str = "") -> dict[str, tuple[Any, ...]]:
    """Return all that is in an image: path -> kind, mode, owner, group, content or target."""
    container = docker("create", "--label", LABEL, image, "x", host=host).decode().strip()
    try:
        exported = docker("export", container, host=host)
    finally:
        docker("rm", container, host=host)
    result = {}
    with tarfile.open(fileobj=io.BytesIO(exported), errors="surrogateescape") as archive:
        for member in archive:
            told: str | None = member.linkname if member.issym() or member.islnk() else None
            if member.isreg():
                told = hashlib.sha256(archive.extractfile(member).read()).hexdigest()  # type: ignore[union-attr]
            kind = "link" if member.issym() else "dir" if member.isdir() else "file"
            result[member.name.strip("/")] = (kind, member.mode & 0o7777, member.uid, member.gid, told)
    docker_own = {
        "dev",
        "proc",
        "sys",
        ".dockerenv",
        "etc/hosts",
        "etc/hostname",
        "etc/resolv.conf",
        "etc/mtab",
    }
    return {
        path: what for path, what in result.items() if path not in docker_own and not path.startswith("dev/")
    }


def below(image: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Return the part of a content that is in a directory, paths relative to it."""
    prefix = f"{directory}/"
    return {path[len(prefix) :]: what for path, what in image.items() if path.startswith(prefix)}


def rootfs() -> bytes:
    """Return the tar of a small image with a shell, and directories of uncommon owners and modes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        busybox = Path("/bin/busybox").read_bytes()

        def add(
            path: str, kind: bytes, mode: int, owner: int = 0, content: bytes = b"", target: str = ""
        ) -> None:
            info = tarfile.TarInfo(path)
            info.type, info.mode, info.uid, info.gid = kind, mode, owner, owner
            info.size, info.linkname = len(content), target
            tar.addfile(info, io.BytesIO(content))

        add("bin/busybox", tarfile.REGTYPE, 0o755, content=busybox)
        for name in ("sh", "cat", "ls", "true"):
            add(f"bin/{name}", tarfile.SYMTYPE, 0o777, target="busybox")
        add("tmp", tarfile.DIRTYPE, 0o1777)
        add("home", tarfile.DIRTYPE, 0o711)
        add("home/u", tarfile.DIRTYPE, 0o700, 1000)
        add("home/u/app", tarfile.DIRTYPE, 0o750, 1000)
        add("home/u/app/base.txt", tarfile.REGTYPE, 0o600, 1000, b"of the base")
        add("home/u/app/dir", tarfile.DIRTYPE, 0o755)
        add("home/u/app/dir/inner.txt", tarfile.REGTYPE, 0o644, content=b"inner")
        add("linked", tarfile.SYMTYPE, 0o777, target="home/u")
    return buffer.getvalue()


def make_base(name: str, *changes: str, host: str = "") -> None:
    """Import the small image, with a working directory."""
    words = [
        word
        for change in ("ENV PATH=/bin", "CMD true", f"LABEL {LABEL}={name}", *changes)
        for word in ("--change", change)
    ]
    docker("import", *words, "-", name, given=rootfs(), host=host)


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """The small image in the daemon, with the working directory ``/home/u/app``."""
    need("docker")
    name = f"shunter-test-{uuid.uuid4().hex[:10]}:base"
    make_base(name, "WORKDIR /home/u/app")
    yield name
    remove_images(name)


def remove_images(base: str, host: str = "") -> None:
    """Remove a base, and all that was made over it: labels are inherited. Children have to go first."""
    before: set[str] = set()
    while True:
        listed = docker(
            "images", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={base}", host=host
        )
        made = {*listed.decode().split()}
        if not made or made == before:
            return
        before = made
        docker("rmi", "--force", *made, check=False, host=host)


@pytest.fixture
def command() -> DockerCommand:
    need("docker")
    return DockerCommand({"DOCKER_HOST": "unix:///var/run/docker.sock"})


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A small workspace."""
    root = tmp_path / "code"
    (root / "pkg").mkdir(parents=True)
    (root / "main.py").write_text("print('hello')\n")
    (root / "pkg" / "data.bin").write_bytes(os.urandom(200_000))
    return root


def python(*words: str, **environ: str) -> subprocess.Popen[bytes]:
    """Start a Python of ours."""
    source = str(Path(__file__).parents[2] / "src")
    tree = str(Path(__file__).parents[2])
    path = os.pathsep.join([source, tree])
    return subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(root: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def forget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str = "fresh") -> None:
    """Go to a machine that has never shipped anything."""
    monkeypatch.setenv("SHUNTER_HOME", str(tmp_path / name))


def layers_of(command: DockerCommand, image: str) -> list[str]:
    found = inspect_image(command, image)
    assert found is not None
    return list(found["RootFS"]["Layers"])

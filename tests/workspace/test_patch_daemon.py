"""Code in images by way of a real Docker daemon."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from shunter.docker.command import DockerCommand
from shunter.docker.images import inspect_image
from shunter.errors import BackendError, ConfigError, InvalidRunConfigException, WorkspaceChangedError
from shunter.specs import option
from shunter.workspace.docker_workspace import DockerWorkspaceOpts
from shunter.workspace.images.image_shipment import LOCAL_REPOSITORY
from tests.workspace.machines import (
    LABEL,
    Recording,
    Shipper,
    Told,
    base,
    below,
    code,
    command,
    content_of,
    docker,
    make_base,
    python,
    remove_images,
    sha256,
    write,
)

__all__ = ["base", "code", "command"]
pytestmark = pytest.mark.xdist_group("docker")

APP = "home/u/app"


def made_over(base: str) -> set[bytes]:
    """Return the ids of a base and of all images that were made over it."""
    return {*docker("images", "--all", "--quiet", "--filter", f"label={LABEL}={base}").split()}


@pytest.fixture
def shipper(command: DockerCommand) -> Shipper:
    return Shipper(command)


# ---- what arrives


def test_everything_arrives_as_it_is(base: str, shipper: Shipper, tmp_path: Path) -> None:
    root = tmp_path / "code"
    long = "d" * 90 + "/" + "e" * 90 + "/" + "f" * 120
    odd = os.fsdecode(b"not-utf8-\xff\xfe.txt")
    write(
        root,
        {"main.py": b"1", "run.sh": b"echo it runs", "empty": b"", long: b"deep", odd: b"odd", "ü.txt": b"u"},
    )
    (root / "run.sh").chmod(0o755)
    (root / "main.py").chmod(0o600)
    (root / "empty").chmod(0o4711)
    (root / "bare" / "inner").mkdir(parents=True)
    (root / "bare").chmod(0o1770)
    (root / "lib64").symlink_to("bare")
    (root / "dangling").symlink_to("x" * 150)
    image = shipper.image(base, root)
    made, before = content_of(image), content_of(base)
    arrived = below(made, APP)
    assert arrived["main.py"] == ("file", 0o600, 0, 0, sha256(b"1"))
    assert arrived["run.sh"][:2] == ("file", 0o755)
    assert arrived["empty"][:2] == ("file", 0o4711)
    assert arrived["bare"][:2] == ("dir", 0o1770)
    assert arrived["bare/inner"][0] == "dir"
    assert arrived["lib64"] == ("link", 0o777, 0, 0, "bare")
    assert arrived["dangling"] == ("link", 0o777, 0, 0, "x" * 150)
    assert arrived[long][4] == sha256(b"deep")
    assert arrived[odd][4] == sha256(b"odd")
    assert arrived["ü.txt"][4] == sha256(b"u")
    for path, what in before.items():  # nothing of the base is gone or has other attributes
        assert made[path] == what, path
    assert docker("run", "--rm", "--label", LABEL, image, "sh", "run.sh") == b"it runs\n"


def test_the_image_is_pinned_named_and_labelled(
    base: str, shipper: Shipper, command: DockerCommand, code: Path
) -> None:
    info = shipper.plan(base, code)
    planned = info.request[0]
    assert planned.startswith(f"{LOCAL_REPOSITORY}:")
    shipper.ship(info)
    image = info.request[0]
    assert image.startswith("sha256:")
    found = inspect_image(command, planned)
    assert found is not None
    assert found["Id"] == image
    labels = found["Config"]["Labels"]
    below_it = inspect_image(command, base)
    assert below_it is not None
    assert labels["shunter.base"] == below_it["Id"]
    assert info.shipment is not None
    assert labels["shunter.fingerprint"] == info.shipment.manifest.fingerprint
    assert labels["org.opencontainers.image.base.name"] == base
    assert found["Config"]["WorkingDir"] == "/home/u/app"
    assert found["Config"]["Env"] == below_it["Config"]["Env"]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["", "WORKDIR /"])
def test_an_image_without_a_working_directory_gets_one(
    shipper: Shipper, command: DockerCommand, code: Path, change: str
) -> None:
    name = f"shunter-test-{uuid.uuid4().hex[:10]}:root"
    make_base(name, *([change] if change else []))
    try:
        (code / "bin").mkdir()
        (code / "bin" / "tool").write_text("x")
        image = shipper.image(name, code)
        made = content_of(image)
        assert "workspace/bin/tool" in made
        assert "bin/busybox" in made
        assert docker("run", "--rm", image, "sh", "-c", "pwd; cat main.py") == b"/workspace\nprint('hello')\n"
    finally:
        remove_images(name)


@pytest.mark.slow
@pytest.mark.parametrize("directory", ["/a \\$X", "/a\\$b/ü"])
def test_a_working_directory_may_have_any_name(shipper: Shipper, code: Path, directory: str) -> None:
    name = f"shunter-test-{uuid.uuid4().hex[:10]}:odd"
    make_base(name, "ENV X=wrong", f"WORKDIR {directory}")
    try:
        image = shipper.image(name, code)
        there = directory.replace("\\", "")
        assert docker("run", "--rm", image, "sh", "-c", "pwd; cat main.py") == (
            f"{there}\nprint('hello')\n".encode()
        )
    finally:
        remove_images(name)


# ---- nothing to do


def test_unchanged_code_sends_nothing(base: str, command: DockerCommand, code: Path) -> None:
    shipper = Shipper(command)
    image = shipper.image(base, code)
    recording = Recording(command)
    assert shipper.image(base, code) == image
    assert recording.changing == []
    assert 0 < len(recording.calls) <= 3


def test_a_dry_run_asks_no_daemon(base: str, code: Path, home: Path) -> None:
    shipper = Shipper()  # none answers
    info = shipper.plan(base, code)
    assert info.shipment is not None
    plan = info.shipment.plan()
    assert plan["images"] == [{"base": base, "image": info.request[0], "toolkit": False}]
    assert (plan["files"], plan["fingerprint"]) == (2, info.shipment.manifest.fingerprint)
    assert not (home / "state" / "images").exists()


@pytest.mark.slow
def test_a_new_base_under_the_same_name_is_noticed(shipper: Shipper, code: Path) -> None:
    name = f"shunter-test-{uuid.uuid4().hex[:10]}:moving"
    make_base(name, "WORKDIR /home/u/app")
    try:
        first = shipper.image(name, code)
        make_base(name, "WORKDIR /home/u/app", "ENV NEW=1")
        second = shipper.image(name, code)
        assert first != second
        assert docker("run", "--rm", second, "sh", "-c", "echo $NEW") == b"1\n"
    finally:
        remove_images(name)


# ---- other daemons, faults


@pytest.mark.slow
def test_a_file_that_changes_before_it_is_shipped_is_read_again(
    base: str, code: Path, command: DockerCommand
) -> None:
    shipper = Shipper(command)
    info = shipper.plan(base, code)
    assert info.shipment is not None
    planned = info.shipment.manifest.fingerprint
    (code / "main.py").write_text("changed after the dry run")
    shipper.ship(info)
    assert info.shipment.manifest.fingerprint != planned
    assert below(content_of(info.request[0]), APP)["main.py"][4] == sha256(b"changed after the dry run")


def test_a_file_that_never_rests_is_an_error(base: str, code: Path, command: DockerCommand) -> None:
    class Restless(Told):
        def step(self, text: str) -> None:
            (code / "main.py").write_text(uuid.uuid4().hex)

    before = made_over(base)
    with pytest.raises(WorkspaceChangedError, match=r"main\.py"):
        Shipper(command).image(base, code, Restless())
    assert made_over(base) == before


def test_an_image_that_cannot_be_pulled_is_an_error(command: DockerCommand, code: Path) -> None:
    with pytest.raises(
        BackendError, match=r"no-such-host\.invalid/x:1 is not on this machine and cannot be"
    ) as caught:
        Shipper(command).image("no-such-host.invalid/x:1", code)
    assert caught.value.hint


@pytest.mark.slow
def test_an_interruption_leaves_nothing(
    base: str, code: Path, command: DockerCommand, tmp_path: Path
) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    shipper = Shipper(command)
    info = shipper.plan(base, code)
    planned = info.request[0]
    with pytest.raises(KeyboardInterrupt):
        shipper.ship(info, Told(interrupt))
    assert inspect_image(command, planned) is None
    assert docker("ps", "-aq", "--filter", f"ancestor={base}") == b""
    assert shipper.image(base, code)


@pytest.mark.slow
def test_two_processes_at_once(base: str, code: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.workspace.machines import Shipper;"
        "from shunter.docker.command import DockerCommand;"
        "print(Shipper(DockerCommand()).image(sys.argv[1], Path(sys.argv[2])))"
    )
    running = [python("-c", program, base, str(code)) for _ in range(3)]
    answers = [process.communicate(timeout=50) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], answers
    assert len({out for out, _ in answers}) == 1


# ---- what is refused in a plan


def test_a_role_without_an_image_is_refused(command: DockerCommand, code: Path) -> None:
    with pytest.raises(ConfigError, match="has no image") as caught:
        Shipper(command).plan("<NONE>", code)
    assert "--image" in caught.value.hint


@pytest.mark.parametrize("repo", ["ghcr.io/me/jobs:v1", "ghcr.io/me/jobs@sha256:" + 64 * "a"])
def test_a_repository_has_no_tag(command: DockerCommand, base: str, code: Path, repo: str) -> None:
    with pytest.raises(InvalidRunConfigException, match="gets its own tag") as caught:
        Shipper(command).plan(base, code, image_repo=repo)
    assert caught.value.hint == "Name only the repository: image_repo=ghcr.io/me/jobs"


def test_a_job_on_other_machines_needs_a_repository(command: DockerCommand, base: str, code: Path) -> None:
    with pytest.raises(InvalidRunConfigException, match="has to be pushed") as caught:
        Shipper(command, remote=True).plan(base, code)
    assert "image_repo=" in caught.value.hint


@pytest.mark.slow
def test_a_base_for_another_platform_does_not_do(command: DockerCommand, base: str, code: Path) -> None:
    shipper = Shipper(command)
    made_for = inspect_image(command, base)
    assert made_for is not None
    own, other = made_for["Architecture"], "arm64" if made_for["Architecture"] == "amd64" else "amd64"
    with_platform = _WithPlatform(command)
    assert with_platform.image(base, code, platform=f"linux/{own}")
    with pytest.raises(BackendError, match="cannot be pulled"):
        with_platform.image(base, code, platform=f"linux/{other}")
    planned = {
        with_platform.plan(base, code, platform=f"linux/{name}").request[0] for name in ("amd64", "arm64")
    }
    assert len({*planned, *shipper.plan(base, code).request}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("buildkit", ["0", "1"])
def test_a_base_may_be_for_another_machine(
    command: DockerCommand, code: Path, monkeypatch: pytest.MonkeyPatch, buildkit: str
) -> None:
    monkeypatch.setenv("DOCKER_BUILDKIT", "1")
    if command.call("build", "--help").returncode:
        pytest.skip("no docker command here builds with BuildKit")
    name = f"shunter-test-{uuid.uuid4().hex[:10]}:far"
    text = f"FROM scratch\nLABEL {LABEL}={name}\nWORKDIR /app\n"
    try:
        docker("build", "--platform", "linux/s390x", "--tag", name, "-", given=text.encode())
        monkeypatch.setenv("DOCKER_BUILDKIT", buildkit)
        made = inspect_image(command, Shipper(command).image(name, code))
        assert made is not None
        assert made["Architecture"] == "s390x"
    finally:
        remove_images(name)


@dataclass
class _PlatformOpts(DockerWorkspaceOpts):
    platform: str | None = option("platform of the images", default=None)


class _WithPlatform(Shipper):
    opts_class = _PlatformOpts

"""A Docker image with a Python in it, made from this machine's own: no registry is asked."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.backends import backend, need

DOCKER = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"
SYSTEM_PYTHON = "/usr/bin/python3"
_LEFT_OUT = (
    "__pycache__",
    "test",
    "idlelib",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "config-*",
    "EXTERNALLY-MANAGED",
)


def docker(*words: str, check: bool = True, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run one docker command."""
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [DOCKER, *words], check=check, capture_output=True, text=True, timeout=55, **kwargs
    )


def bridge_gateway() -> str:
    """Return this machine's address on Docker's default bridge, its first; a new daemon does not tell it."""
    subnet = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}")
    return str(next(ipaddress.ip_network(subnet.stdout.strip()).hosts()))


def make_image(tag: str) -> None:
    """Import an image with python3, pip, a shell and the usual small tools."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _skeleton(root)
        _python(root)
        tar = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
        docker("import", "--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin", "-", tag, stdin=tar.stdout)
        assert tar.stdout is not None
        tar.stdout.close()
        assert tar.wait() == 0


@contextlib.contextmanager
def temporary_image(make: Callable[[str], None] = make_image, *, name: str = "shunter-test") -> Iterator[str]:
    """Make an image, by default one with a Python; remove it afterwards, and what shunter made over it."""
    need("docker")
    image = f"{name}-{uuid.uuid4().hex[:12]}:1"
    make(image)
    try:
        yield image
    finally:
        base = f"label=org.opencontainers.image.base.name={image}"
        over = docker("images", "--quiet", "--no-trunc", "--filter", base).stdout.split()
        docker("rmi", "--force", *over, image, check=False)


def _skeleton(root: Path) -> None:
    there = os.path.exists(SYSTEM_PYTHON) and os.path.exists("/bin/busybox")
    backend("docker", there, f"{SYSTEM_PYTHON} or /bin/busybox is missing")
    for name in (
        "bin",
        "usr/bin",
        "usr/lib",
        "usr/local/bin",
        "lib64",
        "etc",
        "tmp",
        "proc",
        "sys",
        "dev",
        "root",
        "opt",
    ):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "lib").symlink_to("usr/lib")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    shutil.copy("/bin/busybox", root / "bin/busybox")
    applets = subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True).stdout
    for applet in applets.split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")


def _python(root: Path) -> None:
    real = Path(SYSTEM_PYTHON).resolve()
    shutil.copy(real, root / "usr/bin" / real.name)
    (root / "usr/bin/python3").symlink_to(real.name)
    (root / "usr/bin/python").symlink_to("python3")
    library = f"/usr/lib/{real.name}"
    shutil.copytree(library, root / library[1:], ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
    import pip

    packages = root / "usr/lib/python3/dist-packages"
    shutil.copytree(Path(pip.__file__).parent, packages / "pip", ignore=shutil.ignore_patterns("__pycache__"))
    _shared_libraries(root, [str(real), "/bin/busybox", *map(str, Path(library).glob("lib-dynload/*.so"))])


def _shared_libraries(root: Path, programs: list[str]) -> None:
    listing = subprocess.run(["ldd", *programs], check=False, capture_output=True, text=True).stdout
    paths = {line.split("=> ")[1].split()[0] for line in listing.splitlines() if "=> /" in line}
    target = root / "usr/lib/x86_64-linux-gnu"
    target.mkdir(parents=True, exist_ok=True)
    for path in paths:
        shutil.copy(os.path.realpath(path), target / os.path.basename(path))
    shutil.copy("/lib64/ld-linux-x86-64.so.2", root / "lib64/ld-linux-x86-64.so.2")


def make_wheel(folder: Path) -> Path:
    """Build the toolkit's wheel with the hatchling that is installed here."""
    import importlib.util

    backend("hatchling", importlib.util.find_spec("hatchling") is not None, "hatchling is not installed")
    source = Path(__file__).parents[2] / "toolkit"
    line = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(source),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))

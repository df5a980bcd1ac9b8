"""An image with Python, Open MPI and OpenSSH, made of this machine's own packages: no registry is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.toolkit import image
from tests.toolkit.image import docker

_PACKAGES = ("openmpi-bin", "openmpi-common", "libopenmpi3", "openssh-server", "openssh-client")
_LEFT_OUT = ("/usr/share/doc", "/usr/share/man", "/usr/include", "/usr/share/lintian")


def make_mpi_image(tag: str) -> None:
    """Import the image."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        image._skeleton(root)
        image._python(root)
        _packages(root)
        (root / "etc/passwd").write_text(
            "root:x:0:0:root:/root:/bin/sh\nsshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n"
        )
        (root / "etc/shadow").write_text("root:*:19000::::::\n")
        (root / "run/sshd").mkdir(parents=True)
        (root / "root").chmod(0o700)
        words = ["--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin", "-", tag]
        tar = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
        docker("import", *words, stdin=tar.stdout)
        assert tar.stdout is not None
        tar.stdout.close()
        assert tar.wait() == 0


def _packages(root: Path) -> None:
    listed = subprocess.run(["dpkg", "-L", *_PACKAGES], capture_output=True, text=True, check=False).stdout
    files = [
        Path(line) for line in listed.splitlines() if line.startswith("/") and not line.startswith(_LEFT_OUT)
    ]
    programs = []
    for path in files:
        if path.is_dir() or not path.exists():
            continue
        _copy(root, path)
        if os.access(path, os.X_OK) or ".so" in path.name:
            programs.append(str(path.resolve()))
    for name in ("mpirun", "mpiexec", "orterun", "orted"):
        program = Path("/usr/bin") / name
        if program.exists():
            _copy(root, program)
    shutil.copytree(
        "/usr/lib/x86_64-linux-gnu/openmpi", root / "usr/lib/x86_64-linux-gnu/openmpi", dirs_exist_ok=True
    )
    programs += [str(path) for path in Path("/usr/lib/x86_64-linux-gnu/openmpi").rglob("*.so")]
    image._shared_libraries(root, programs)


def _copy(root: Path, path: Path) -> None:
    target = root / str(path).lstrip("/")
    for old, new in (("lib/", "usr/lib/"), ("bin/", "usr/bin/"), ("sbin/", "usr/sbin/")):
        if str(path).lstrip("/").startswith(old):
            target = root / (new + str(path).lstrip("/")[len(old) :])
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() and not target.is_symlink():
        shutil.copy(path.resolve(), target)

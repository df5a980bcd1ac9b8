"""An image that is nearly empty: containers of it see this machine's programs, mounted read-only.

So torch, Open MPI and sshd run in real containers, without an image of a gigabyte.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.toolkit.image import docker

_DIRECTORIES = ("usr", "etc", "tmp", "proc", "sys", "dev", "root", "opt", "run/sshd", "var/empty")
_PASSWD = "root:x:0:0:root:/root:/bin/bash\nsshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n"
# a locked password, not a missing one: sshd refuses accounts without an entry
_SHADOW = "root:*:19000::::::\n"


def make_host_image(tag: str) -> None:
    """Import the image."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        for name in _DIRECTORIES:
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        (root / "sbin").mkdir()  # Docker mounts its init program there
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        (root / "etc/passwd").write_text(_PASSWD)
        (root / "etc/shadow").write_text(_SHADOW)
        (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
        (root / "etc/nsswitch.conf").write_text("passwd: files\nhosts: files dns\n")
        for name in ("alternatives", "openmpi"):
            if os.path.isdir(f"/etc/{name}"):
                shutil.copytree(f"/etc/{name}", root / "etc" / name, symlinks=True)
        for name in ("ld.so.cache", "ld.so.conf"):
            if os.path.exists(f"/etc/{name}"):
                shutil.copy(f"/etc/{name}", root / "etc" / name)
        tar = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
        docker("import", "-", tag, stdin=tar.stdout)
        assert tar.stdout is not None
        tar.stdout.close()
        assert tar.wait() == 0


def host_mounts() -> list[str]:
    """The mounts that containers need, as arguments of ``--mounts``."""
    torch = importlib.util.find_spec("torch")  # it may be elsewhere, named by a .pth file
    packages = [os.path.dirname(os.path.dirname(torch.origin))] if torch and torch.origin else []
    places = [*dict.fromkeys(["/usr", sys.prefix, sys.base_prefix, *packages])]
    seen = ("/usr/", f"{sys.prefix}/", f"{sys.base_prefix}/")
    needed = [place for place in places if not place.startswith(seen)]
    return [f"type=bind,src={place},dst={place},readonly" for place in needed]


def host_env() -> dict[str, str]:
    """The environment that containers need."""
    return {
        "PATH": f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
    }

"""Real registries: the ``docker-registry`` of this machine, on ports and storage of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends import need

if TYPE_CHECKING:
    from collections.abc import Iterator

USER, PASSWORD = "builder", "correct-horse-7"


def free_port() -> int:
    """Return a port that nobody listens on, and that no other program is given while this process lives."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that sets it too can have the port
    sock.bind(("127.0.0.1", 0))
    port: int = sock.getsockname()[1]
    sock.detach()  # stays bound, and never listens
    return port


@dataclass
class RegistryServer:
    """A registry on a port of this machine's own. ``config`` is merged into its configuration."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    scheme: str = "http"
    secret: str = "the-same-after-a-restart"
    storage: Path | None = None
    address: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def host(self) -> str:
        """``127.0.0.1:PORT``, as image names have it."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def data(self) -> Path:
        """Where the registry keeps its content."""
        return self.storage or self.folder / "data"

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return (self.folder / "registry.log").read_text(errors="replace")

    def start(self) -> RegistryServer:
        """Start it, on the same port and storage every time; ready when this returns."""
        need("registry")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "config.json"  # JSON is YAML
        path.write_text(json.dumps(self._document()))
        with open(self.folder / "registry.log", "ab") as log:
            self.process = subprocess.Popen(
                ["docker-registry", "serve", str(path)],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ.get("PATH", os.defpath), "OTEL_TRACES_EXPORTER": "none"},
            )
        self._await()
        return self

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": False}},
            "storage": {"filesystem": {"rootdirectory": str(self.data)}, "delete": {"enabled": True}},
            # layers that are elsewhere are refused without this
            "validation": {"manifests": {"urls": {"allow": [r"^https://example\.com/"]}}},
            "http": {"addr": self.host, **({"secret": self.secret} if self.secret else {})},
        }
        for key, value in self.config.items():
            old = document.get(key)
            document[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        return document

    def _await(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            try:
                socket.create_connection((self.address, self.port), 1).close()
            except OSError:
                assert time.monotonic() < deadline, self.log
                time.sleep(0.01)
            else:
                return

    def revive(self) -> None:
        """Start it unless it runs. Several threads may ask for that; it is ready for all of them."""
        with self._lock:
            if self.process is None:
                self.start()

    def kill(self) -> None:
        """End it at once, as a crash does."""
        with self._lock:
            if self.process is not None:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait(30)
                self.process = None

    def stop(self) -> None:
        """End it."""
        self.kill()

    def get(self, path: str) -> tuple[int, bytes]:
        """Ask it something, as the user that it knows; certificates are not looked at."""
        import base64
        import ssl

        context = ssl._create_unverified_context() if self.scheme == "https" else None
        request = urllib.request.Request(f"{self.scheme}://{self.host}{path}")
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
        request.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
        request.add_header("Accept", "*/*")
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                body: bytes = answer.read()
                return answer.status, body
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def tags(self, repository: str) -> list[str]:
        """Return the tags of a repository."""
        status, body = self.get(f"/v2/{repository}/tags/list")
        return sorted(json.loads(body).get("tags") or ()) if status == 200 else []

    def requests(self, text: str) -> int:
        """Count the requests in the access log that hold a text, such as ``POST /v2/a/blobs``."""
        return sum(text in line for line in self.log.splitlines() if '"Go-' not in line)


def htpasswd(folder: Path, users: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the configuration of a registry that wants a user and a password."""
    need("registry")
    import bcrypt

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "htpasswd"
    lines = [
        f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4, prefix=b'2a')).decode()}"
        for user, password in (users or {USER: PASSWORD}).items()
    ]
    path.write_text("\n".join(lines) + "\n")
    return {"auth": {"htpasswd": {"realm": "test", "path": str(path)}}}


def docker_config(folder: Path, host: str, user: str = USER, password: str = PASSWORD) -> Path:
    """Write a Docker client's configuration that is logged in; for DOCKER_CONFIG."""
    import base64

    folder.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    return folder


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A registry that wants `USER` and `PASSWORD`."""
    need("registry")
    folder = tmp_path_factory.mktemp("registry")
    server = RegistryServer(folder, htpasswd(folder)).start()
    yield server
    server.stop()


@pytest.fixture
def logged_in(registry: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegistryServer:
    """The registry, with DOCKER_CONFIG logged in to it."""
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path / "docker-config", registry.host)))
    return registry

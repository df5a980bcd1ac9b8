"""Code on its way: what is packed, that the same is packed the same, and clones of repositories."""

from __future__ import annotations

import base64
import http.server
import os
import shutil
import ssl
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError, WorkspaceError
from shunter.progress import Silent
from shunter.schedulers.aws_sagemaker_scheduler.code_archive import CodePackage, plan_code
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import ARCHIVE_FILE, PlannedCode
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.specs.app import AppDef, Role
from shunter.specs.workspace import Workspace
from tests import backends

SCRIPT = AppDef("job", [Role("train", "i:1", entrypoint="python", args=["train.py"])])
PROGRAM = AppDef("job", [Role("any", "i:1", entrypoint="ls")])


def written(package: CodePackage, directory: Path) -> Path:
    """Write a package, and return the path of its archive."""
    package.write(directory)
    return directory / ARCHIVE_FILE


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text("print(1)\n")
    (directory / "run.sh").write_text("#!/bin/sh\n")
    (directory / "run.sh").chmod(0o755)
    (directory / "link").symlink_to("train.py")
    (directory / ".env").write_text("TOKEN=1")
    monkeypatch.chdir(directory)
    return directory


def opts(**given: Any) -> AWSSageMakerOpts:
    return AWSSageMakerOpts(role="R", instance_type="ml.m5.large", **given)


def plan(app: AppDef, workspace: Workspace | None = None, **given: Any) -> CodePackage | None:
    return plan_code(app, workspace or Workspace(), opts(**given))


def packed(package: CodePackage | None, directory: Path) -> dict[str, tarfile.TarInfo]:
    assert package is not None
    directory.mkdir(exist_ok=True)
    archive = written(package, directory)
    with tarfile.open(archive) as tar:
        return {member.name: member for member in tar.getmembers()}


@pytest.mark.parametrize("tar", ["tar", "busybox"])
def test_a_large_archive_is_read_by_every_tar(project: Path, tmp_path: Path, tar: str) -> None:
    if tar == "busybox":
        backends.need("busybox")
    (project / "data.bin").write_bytes(os.urandom(3 << 20))
    package = plan(SCRIPT)
    assert package is not None
    archive = written(package, tmp_path)
    target = tmp_path / "unpacked"
    target.mkdir()
    command = [tar] if tar == "tar" else [tar, "tar"]
    subprocess.run([*command, "-xzf", str(archive), "-C", str(target)], check=True)
    assert (target / "data.bin").read_bytes() == (project / "data.bin").read_bytes()


def test_dependencies_lie_beside_the_code(project: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.py").write_text("x = 1\n")
    (tmp_path / "notes.txt").write_text("n")
    members = packed(plan(SCRIPT, dependencies=["../lib", "../notes.txt"]), tmp_path / "out")
    assert {"lib/helper.py", "notes.txt", "train.py"} < set(members)


def test_a_script_that_is_not_there_is_refused(project: Path) -> None:
    app = AppDef("job", [Role("train", "i:1", entrypoint="python", args=["trian.py"])])
    with pytest.raises(ConfigError, match=r"trian\.py is not in the code") as refusal:
        plan(app)
    assert "train.py" in refusal.value.hint


def test_code_comes_from_one_place(project: Path) -> None:
    with pytest.raises(ConfigError, match="from one only"):
        plan(SCRIPT, Workspace({".": ""}), source_dir=".")
    implicit = plan(SCRIPT, Workspace({"/nowhere": ""}, implicit=True), source_dir=".")
    assert implicit is not None
    with pytest.raises(ConfigError, match="source_dir /nowhere/at/all is not a directory"):
        plan(SCRIPT, source_dir="/nowhere/at/all")


def test_code_that_is_in_s3_or_in_the_image(project: Path) -> None:
    package = plan(SCRIPT, source_dir="s3://b/x/code.tar.gz")
    assert package is not None
    assert package.file_names() == ["shunter-toolkit.pyz"]
    assert package.planned.archive == "s3://b/x/code.tar.gz"
    assert plan(SCRIPT, source_dir="s3://b/x/code.tar.gz", toolkit=False).planned.key == ""  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="must be an archive"):
        plan(SCRIPT, source_dir="s3://b/x/")
    baked = plan(SCRIPT, source_dir="")
    assert baked is not None
    assert baked.planned == PlannedCode(baked.key, has_code=False)
    assert plan(SCRIPT, source_dir="", toolkit=False) is None


def test_no_one_ships_the_home_directory_unasked(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(os.environ["HOME"])
    (place / "train.py").write_text("")
    monkeypatch.chdir(place)
    with pytest.raises(WorkspaceError, match="home directory"):
        plan(SCRIPT)


# ---- repositories

TOKEN = "ghp-very-secret-token"


def git(directory: Path, *words: str) -> str:
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.com"]
    done = subprocess.run(
        ["git", "-C", str(directory), *identity, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


class Repository:
    """A repository with a branch and a tagless commit, served over https to those who have the token."""

    def __init__(self, directory: Path) -> None:
        self.work = directory / "work"
        self.work.mkdir()
        git(self.work, "init", "-q", "-b", "main")
        (self.work / "src").mkdir()
        (self.work / "src" / "train.py").write_text("print('main')\n")
        (self.work / "lib").mkdir()
        (self.work / "lib" / "helper.py").write_text("x = 1\n")
        git(self.work, "add", "."), git(self.work, "commit", "-qm", "one")
        self.first = git(self.work, "rev-parse", "HEAD")
        git(self.work, "checkout", "-qb", "other")
        (self.work / "src" / "train.py").write_text("print('other')\n")
        git(self.work, "commit", "-qam", "two")
        self.bare = directory / "repo.git"
        git(directory, "clone", "-q", "--bare", str(self.work), str(self.bare))
        git(self.bare, "update-server-info")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    if shutil.which("git") is None:
        pytest.skip("no git")
    return Repository(tmp_path)


def cloned(app: AppDef, **config: str) -> CodePackage:
    where = {"source_dir": "src"} | ({"dependencies": ["lib"]} if "dependencies" in config else {})
    config.pop("dependencies", None)
    package = plan(app, git_config=config, **where)
    assert package is not None
    assert package.planned == PlannedCode("<content>")
    package.resolve(Silent())
    return package


@pytest.mark.parametrize(
    ("config", "text"),
    [({"branch": "main"}, "main"), ({"branch": "other"}, "other"), ({"commit": "first"}, "main")],
)
def test_a_repository_is_cloned(
    repository: Repository, tmp_path: Path, config: dict[str, str], text: str
) -> None:
    if "commit" in config:
        config = {"commit": repository.first}
    package = cloned(SCRIPT, repo=f"file://{repository.bare}", dependencies="", **config)
    members = packed(package, tmp_path / "out")
    assert sorted(members) == ["lib", "lib/helper.py", "train.py"]
    with tarfile.open(tmp_path / "out" / "sourcedir.tar.gz") as archive:
        content = archive.extractfile("train.py")
        assert content is not None
        assert content.read().decode() == f"print('{text}')\n"
    place = package._clone._directory
    assert os.path.isdir(place)
    package.close()
    assert not os.path.exists(place)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"branch": "nothing-like-it"}, "nothing-like-it"),
        ({"commit": "nothing-like-it"}, "there is no commit nothing-like-it in file://"),
        ({"commit": "deadbeef", "branch": "main"}, "no commit deadbeef in the branch main"),
        ({"commit": "--force"}, "no commit --force"),
    ],
)
def test_what_is_not_in_the_repository(
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, str],
    problem: str,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match=problem):
        cloned(SCRIPT, repo=f"file://{repository.bare}", **config)
    assert not list(tmp_path.glob("shunter-clone-*"))


class _Private(http.server.SimpleHTTPRequestHandler):
    """Serves a bare repository to those who have the token, and keeps what it was asked."""

    def __init__(self, seen: list[str], *args: Any, **kwargs: Any) -> None:
        self.seen = seen
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        self.seen.append(given)
        wanted = base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
        if given != f"Basic {wanted}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def private(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, list[str]]]:
    if shutil.which("openssl") is None:
        backends.backend("openssl", available=False, reason="openssl is not installed")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    line = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    line += " -addext subjectAltName=DNS:localhost"
    subprocess.run(
        [*line.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
    seen: list[str] = []
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Private, seen, directory=str(tmp_path))
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_port}/repo.git", seen
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["environment", "option", "url"])
def test_a_token_reaches_the_repository_and_nothing_else(
    private: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    url, seen = private
    config = {"repo": url, "commit": "HEAD"}
    if where == "option":
        config["token"] = TOKEN
    elif where == "url":
        config["repo"] = url.replace("https://", f"https://x-access-token:{TOKEN}@")
    else:
        monkeypatch.setenv("GIT_TOKEN", TOKEN)
    commands = []
    run = subprocess.run

    def listen(words: list[str], **kwargs: Any) -> Any:
        commands.extend(words)
        return run(words, **kwargs)

    monkeypatch.setattr(subprocess, "run", listen)
    package = cloned(SCRIPT, **config)
    assert url in commands
    assert not any(TOKEN in word for word in commands)
    assert seen[-1].startswith("Basic ")
    written = b"".join(
        path.read_bytes() for path in Path(package._clone._directory).rglob("*") if path.is_file()
    )
    assert TOKEN.encode() not in written
    assert base64.b64encode(f"x-access-token:{TOKEN}".encode()) not in written
    package.close()


def test_a_wrong_token_is_not_shown(private: tuple[str, list[str]]) -> None:
    with pytest.raises(ConfigError) as refusal:
        cloned(SCRIPT, repo=private[0], token="wrong-secret-token")
    assert "wrong-secret-token" not in str(refusal.value)
    assert base64.b64encode(b"x-access-token:wrong-secret-token").decode() not in str(refusal.value)
    assert "localhost" in str(refusal.value)

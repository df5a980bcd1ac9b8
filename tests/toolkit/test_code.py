"""Where code comes from, unpacking what may be hostile, and installing what it needs."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shunter_toolkit import archive
from shunter_toolkit.errors import CodeError

from .conftest import backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Tree


def make_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


HOSTILE = {
    "dot dot": [(member("../evil"), b"x")],
    "deep dot dot": [(member("a/../../evil"), b"x")],
    "absolute": [(member("/tmp/evil-shunter"), b"x")],
    "through a symlink out": [(member("l", tarfile.SYMTYPE, "../.."), b""), (member("l/evil"), b"x")],
    "through an absolute one": [
        (member("l", tarfile.SYMTYPE, "/tmp"), b""),
        (member("l/evil-shunter"), b"x"),
    ],
    "hard link through a symlink out": [
        (member("l", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (member("m", tarfile.LNKTYPE, "l"), b""),
    ],
    "hard link out": [(member("l", tarfile.LNKTYPE, "../x"), b"")],
    "hard link absolute": [(member("l", tarfile.LNKTYPE, "/etc/passwd"), b"")],
    "device": [(member("d", tarfile.CHRTYPE), b"")],
    "fifo": [(member("f", tarfile.FIFOTYPE), b"")],
    "links in turn": [
        (member("a", tarfile.DIRTYPE, mode=0o755), b""),
        (member("a/b", tarfile.SYMTYPE, ".."), b""),
        (member("a/b/c", tarfile.SYMTYPE, ".."), b""),
        (member("a/b/c/evil"), b"x"),
    ],
}


@pytest.fixture(params=["filters", "no filters"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This Python, and one whose tarfile knows no filters: before 3.11.4, 3.10.12, 3.9.17 and 3.8.17."""
    if request.param == "filters":
        return
    extract: Callable[..., None] = tarfile.TarFile.extract
    options = dict(archive._FILTER)

    def without_filters(
        self: tarfile.TarFile, member: object, path: str = "", set_attrs: bool = True
    ) -> None:
        extract(self, member, path, set_attrs, **options)

    monkeypatch.setattr(tarfile.TarFile, "extract", without_filters)
    monkeypatch.setattr(archive, "_FILTER", {})


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused(tmp_path: Path, name: str) -> None:
    path = make_tar(tmp_path / "x.tar.gz", *HOSTILE[name])
    folder = tmp_path / "deep/in"
    folder.mkdir(parents=True)
    with pytest.raises(CodeError, match="Refused to unpack"):
        archive.extract(str(path), str(folder))
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "deep/evil").exists()
    assert not Path("/tmp/evil-shunter").exists()


def bomb(path: Path, kind: str) -> Path:
    """An archive of a few kB that takes 64 MiB, or says so."""
    size = 64 << 20
    info = member("pad")
    info.size = size
    if kind == "sparse file":
        info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    content = b"\0" * size
    if kind == "sparse file":  # one hole; its real size stands at 483, and the checksum at 148
        header[483:495] = b"%011o\0" % size
        content = b""
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    elif kind == "only a header":
        content = b"short"
    elif kind == "long header":
        info.type = tarfile.XHDTYPE
        header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    path.write_bytes(gzip.compress(bytes(header) + content + b"\0" * 1024))
    return path


@pytest.mark.parametrize("kind", ["large file", "sparse file", "only a header", "long header"])
@pytest.mark.parametrize("limit", ["size", "ratio"])
def test_an_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, limit: str
) -> None:
    if limit == "size":
        monkeypatch.setenv(archive.SIZE_VARIABLE, "1e6")
    else:
        monkeypatch.setattr(archive, "_FREE_OF_RATIO", 1 << 20)
    path = bomb(tmp_path / "x.tar.gz", kind)
    words = "a header claims" if kind == "long header" else "unpack to more than .* raise SHUNTER_UNPACK_MAX"
    with pytest.raises(CodeError, match=words):
        archive.extract(str(path), str(tmp_path / "out"))
    assert list((tmp_path / "out").iterdir()) == []


def test_the_limits_of_archives_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_FREE_OF_RATIO", 1 << 20)
    monkeypatch.setenv(archive.RATIO_VARIABLE, "1e5")
    archive.extract(str(bomb(tmp_path / "x.tar.gz", "large file")), str(tmp_path / "out"))
    assert (tmp_path / "out/pad").stat().st_size == 64 << 20


def test_an_archive_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    whole = make_tar(tmp_path / "x.tar.gz", (member("a"), b"1"), (member("b"), os.urandom(10_000)))
    (tmp_path / "cut.tar.gz").write_bytes(whole.read_bytes()[:5000])
    with pytest.raises(CodeError, match="Cannot unpack"):
        archive.extract(str(tmp_path / "cut.tar.gz"), str(tmp_path / "out"))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.usefixtures("python")
def test_good_archive_keeps_links_and_drops_special_bits(tmp_path: Path) -> None:
    path = make_tar(
        tmp_path / "x.tar.gz",
        (member("sub", tarfile.DIRTYPE, mode=0o755), b""),
        (member("sub/run.sh", mode=0o4755), b"echo"),
        (member("link", tarfile.SYMTYPE, "sub/run.sh"), b""),
    )
    archive.extract(str(path), str(tmp_path / "out"))
    assert (tmp_path / "out/link").read_text() == "echo"
    assert (tmp_path / "out/sub/run.sh").stat().st_mode & 0o7777 == 0o755


def test_links_out_of_an_archive_are_kept_and_not_written_through(tmp_path: Path) -> None:
    """They may lead to data; and the code could make such links itself."""
    (tmp_path / "data").write_text("outside")
    path = make_tar(
        tmp_path / "x.tar.gz",
        (member("absolute", tarfile.SYMTYPE, str(tmp_path / "data")), b""),
        (member("nowhere", tarfile.SYMTYPE, "../../../no/such"), b""),
        (member("replaced", tarfile.SYMTYPE, str(tmp_path / "data")), b""),
        (member("replaced"), b"inside"),
    )
    archive.extract(str(path), str(tmp_path / "out"))
    assert os.readlink(tmp_path / "out/absolute") == str(tmp_path / "data")
    assert os.readlink(tmp_path / "out/nowhere") == "../../../no/such"
    assert (tmp_path / "out/replaced").read_text() == "inside"
    assert (tmp_path / "data").read_text() == "outside"


def test_packing_is_reproducible(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "b").mkdir(parents=True)
    (folder / "b/w.bin").write_bytes(b"1")
    (folder / "a").write_bytes(b"2")
    archive.pack(archive.entries_of(str(folder)), str(tmp_path / "1.tar.gz"))
    os.utime(folder / "a", (1, 1))
    archive.pack(archive.entries_of(str(folder)), str(tmp_path / "2.tar.gz"))
    assert (tmp_path / "1.tar.gz").read_bytes() == (tmp_path / "2.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "1.tar.gz") as tar:
        assert tar.getnames() == ["a", "b", "b/w.bin"]


@pytest.mark.parametrize("form", ["{path}", "file://{path}"])
@pytest.mark.parametrize("kind", ["folder", "archive", "file"])
def test_local_code(tree: Tree, tmp_path: Path, form: str, kind: str) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "train.py").write_text("print('fetched')")
    path = source
    if kind == "archive":
        path = tmp_path / "sourcedir.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            tar.add(source / "train.py", "train.py")
    elif kind == "file":
        path = source / "train.py"
    tree.hyperparameters(sagemaker_submit_directory=form.format(path=path))
    done = tree.train()
    assert (done.returncode, done.stdout) == (0, "fetched\n"), done.stderr


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08cut"])
def test_unreadable_archive(tree: Tree, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.tar.gz").write_bytes(content)
    tree.hyperparameters(sagemaker_submit_directory=str(tmp_path / "s.tar.gz"))
    done = tree.train()
    assert done.returncode == 1
    assert tree.report["class"] == "client_error"
    assert tree.failure.startswith("Cannot unpack")
    assert "Traceback" not in done.stderr


def test_hostile_archive_ends_the_job(tree: Tree, tmp_path: Path) -> None:
    path = make_tar(tmp_path / "s.tar.gz", *HOSTILE["dot dot"])
    tree.hyperparameters(sagemaker_submit_directory=str(path))
    assert tree.train().returncode == 1
    assert tree.report["class"] == "client_error"
    assert "'../evil' lies outside the directory" in tree.failure


class Web:
    """A folder behind a server of its own, with TLS if there is a certificate."""

    def __init__(self, folder: Path, certificate: Path | None = None) -> None:
        import http.server
        import ssl

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: object) -> None:
                super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

            def log_message(self, *args: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *args: object) -> None:
                """A client that does not trust us hangs up: nothing to print."""

        self.server = Server(("127.0.0.1", 0), Handler)
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Web:
        import threading

        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """What the web serves: an archive of code."""
    folder = tmp_path / "web"
    folder.mkdir()
    make_tar(folder / "s.tar.gz", (member("train.py"), b"print('web')"))
    return folder


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and a self-signed certificate for 127.0.0.1, in one file."""
    backend("openssl", shutil.which("openssl") is not None, "openssl is not installed")
    path = tmp_path / "server.pem"
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=here"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run([*line.split(), *names], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.mark.slow
def test_code_from_the_web(tree: Tree, site: Path) -> None:
    with Web(site) as web:
        tree.hyperparameters(sagemaker_submit_directory=f"{web.url}/s.tar.gz")
        done = tree.train()
        assert (done.returncode, done.stdout) == (0, "web\n"), done.stderr
        (tree.base / "code/train.py").unlink()
        tree.hyperparameters(sagemaker_submit_directory=f"{web.url}/none.tar.gz")
        assert tree.train().returncode == 1
        assert "404" in tree.failure


def test_code_over_https(tree: Tree, site: Path, certificate: Path) -> None:
    with Web(site, certificate) as web:
        tree.hyperparameters(sagemaker_submit_directory=f"{web.url}/s.tar.gz")
        done = tree.train(SSL_CERT_FILE=f"{certificate}.crt")
    assert (done.returncode, done.stdout) == (0, "web\n"), done.stderr


def test_an_untrusted_server_gives_no_code(tree: Tree, site: Path, certificate: Path) -> None:
    with Web(site, certificate) as web:
        tree.hyperparameters(sagemaker_submit_directory=f"{web.url}/s.tar.gz")
        done = tree.train()
    assert done.returncode == 1
    assert tree.report["class"] == "client_error"
    first = tree.failure.splitlines()[0]
    assert first.startswith(f"Cannot fetch the code from {web.url}/s.tar.gz: ")
    assert "certificate" in first
    assert "SSL_CERT_FILE" in first
    assert "Traceback" not in done.stderr
    assert list((tree.base / "code").iterdir()) == []


def test_a_certificate_for_another_name_gives_no_code(tree: Tree, site: Path, certificate: Path) -> None:
    with Web(site, certificate) as web:
        tree.hyperparameters(
            sagemaker_submit_directory=f"{web.url}/s.tar.gz".replace("127.0.0.1", "localhost")
        )
        tree.train(SSL_CERT_FILE=f"{certificate}.crt")
    assert tree.report["class"] == "client_error"
    assert "certificate" in tree.failure.splitlines()[0]


SETUP = "from setuptools import setup; setup(name='{name}', version='1', py_modules=['{module}'])"


def _package(tree: Tree, name: str) -> None:
    tree.script("import sys; print('module of the package', sys.argv[1:])", f"{name}.py")
    tree.script(SETUP.format(name=name, module=name), "setup.py")


def test_package_is_installed_and_run_as_a_module(tree: Tree, tmp_path: Path) -> None:
    name = f"shunter_probe_{os.getpid()}"
    _package(tree, name)
    tree.hyperparameters(f"{name}.py", x="1")
    (tmp_path / "bin").mkdir()
    log = tmp_path / "pip.log"
    fake = f"import sys; open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))"
    (tmp_path / "bin/pip.py").write_text(fake)
    done = tree.train(PYTHONPATH=str(tmp_path / "bin"), SHUNTER_INSTALLER="pip")
    assert (done.returncode, done.stdout) == (0, "module of the package ['-x', '1']\n"), done.stderr
    assert log.read_text() == "install .\n"


def make_package(folder: Path, name: str) -> Path:
    """A wheel with one module."""
    info = f"{name}-1.dist-info"
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "value = 42")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


@pytest.mark.slow
def test_requirements_are_really_installed(tree: Tree, tmp_path: Path) -> None:
    """With the real pip, from a wheel made here, into a folder of this test's own."""
    name = f"shunter_need_{os.getpid()}"
    (tree.base / "code/requirements.txt").write_text(f"{make_package(tmp_path, name)}\n")
    tree.script(f"import {name}; print({name}.value)")
    target = str(tmp_path / "site")
    env = {"PIP_NO_INDEX": "1", "PIP_TARGET": target, "PIP_QUIET": "1", "PYTHONPATH": target}
    done = tree.train(**env, SHUNTER_INSTALLER="pip")
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


@pytest.mark.slow
def test_failed_install_is_distinguished(tree: Tree) -> None:
    (tree.base / "code/requirements.txt").write_text("no-such-package-of-ours==1\n")
    tree.script("print('never')")
    done = tree.train(PIP_NO_INDEX="1", SHUNTER_INSTALLER="pip")
    assert done.returncode == 1
    assert "never" not in done.stdout
    assert tree.report["class"] == "install_error"
    assert tree.failure.startswith("Installing the packages of requirements.txt failed")
    assert "no-such-package-of-ours" in tree.failure.splitlines()[0]


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("requirements.txt", "the packages of requirements.txt"),
        ("setup.py", "the package in the code directory"),
    ],
)
def test_no_installer(tree: Tree, tmp_path: Path, file: str, what: str) -> None:
    tree.script("pass")
    (tree.base / "code" / file).write_text("x\n")
    blocker = tmp_path / "sitecustomize.py"
    blocker.write_text(
        "import importlib.abc, sys\n"
        "class No(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pip': raise ModuleNotFoundError(name)\n"
        "import importlib.util\nreal = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'pip' else real(name, *a)\n"
    )
    assert tree.train(PYTHONPATH=str(tmp_path), SHUNTER_INSTALLER="pip").returncode == 1
    assert tree.report["class"] == "install_error"
    assert tree.failure.startswith(f"Cannot install {what}: ")
    assert "has no pip" in tree.failure


def test_codeartifact_token_is_never_shown(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "boto3.py").write_text(
        "class Client:\n"
        "    def get_authorization_token(self, **k): return {'authorizationToken': 'tok-very-secret'}\n"
        "    def get_repository_endpoint(self, **k): return {'repositoryEndpoint': 'https://d.example/pypi/r/'}\n"
        "def client(name, region_name): return Client()\n"
    )
    (tmp_path / "pip.py").write_text(
        "import os, sys; print(sys.argv); sys.exit('ERROR: no luck at ' + os.environ['PIP_INDEX_URL'])"
    )
    tree.script("pass")
    (tree.base / "code/requirements.txt").write_text("x\n")
    arn = "arn:aws:codeartifact:eu-west-1:123456789012:repository/dom/repo"
    tree.train(PYTHONPATH=str(tmp_path), SHUNTER_INSTALLER="pip", CA_REPOSITORY_ARN=arn)
    assert "https://aws:******@d.example/pypi/r/simple/" in tree.failure
    assert "tok-very-secret" not in tree.failure + str(tree.report)
    tree.train(SHUNTER_INSTALLER="pip", CA_REPOSITORY_ARN="arn:nonsense")
    assert "must read" in tree.failure

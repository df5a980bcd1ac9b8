from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from shunter.workspace.secret_files import is_secret
from shunter.workspace.selection import select
from tests.workspace.conftest import chosen, write

KEY = "-----BEGIN {}PRIVATE KEY-----\nMIIB\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

SECRETS = {
    ".env": "A=1",
    "deploy/.env.production": "A=1",
    "app.env.local": "A=1",
    ".ssh/id_rsa": "x",
    "id_ed25519": "x",
    "server.key": KEY.format(""),
    "tls/server.pem": KEY.format("RSA "),
    "both.pem": CERTIFICATE + KEY.format("EC "),
    "gpg.asc": "-----BEGIN PGP PRIVATE KEY BLOCK-----\n",
    "store.p12": b"\x00",
    "store.PFX": b"\x00",
    "store.jks": b"\x00",
    ".netrc": "machine x",
    ".pypirc": "[pypi]",
    ".npmrc": "//registry.npmjs.org/:_authToken=npm_abc\n",
    ".git-credentials": "https://me:pw@example.com",
    ".aws/credentials": "[default]",
    "credentials": "[default]\naws_secret_access_key = x",
    ".docker/config.json": "{}",
    ".kube/config": "apiVersion: v1",
    "kubeconfig": "apiVersion: v1",
    "credentials.json": '{"type": "service_account", "private_key": "-----BEGIN"}',
    "service-account-prod.json": '{"private_key": "x"}',
    "client_secret.json": '{"installed": {"client_secret": "x"}}',
    "conf/secrets.yaml": "a: b",
    "secrets.toml": "a = 1",
    "secret.json": "{}",
    ".htpasswd": "me:x",
    ".envrc": "export API_TOKEN=abc\n",
}

HARMLESS = {
    ".env.example": "A=",
    ".env.sample": "A=",
    ".env.template": "A=",
    "secrets.example.yaml": "a:",
    "id_rsa.pub": "ssh-rsa AAAA",
    "ca.pem": CERTIFICATE,
    "public.key": "-----BEGIN PUBLIC KEY-----\n",
    "bundle.crt": CERTIFICATE,
    "signature.asc": "-----BEGIN PGP SIGNATURE-----\n",
    ".npmrc": "registry=https://registry.npmjs.org/\n",
    "config.json": "{}",
    "model/config": "x",
    "token": "x",
    "tokenizer.json": "{}",
    "special_tokens.key": "a",
    "secrets.py": "import secrets",
    "src/credentials.py": "x",
    "credentials.json": '{"installed": false}',
    "environment.yml": "x",
    "src/env.py": "x",
    ".environment": "x",
    ".envrc": "export PATH=$PWD/bin:$PATH\nexport API_TOKEN=$(pass show x)\n",
    "monkey.txt": "x",
    "kubeconfig.md": "x",
}


@pytest.mark.parametrize("path", SECRETS)
def test_likely_secrets(project: Path, path: str) -> None:
    write(project, {path: SECRETS[path], "a.py": ""})
    assert is_secret(path, str(project / path))
    assert chosen(project) == {"a.py"}
    assert select(str(project)).report.secrets == [path]


@pytest.mark.parametrize("path", HARMLESS)
def test_harmless_files(project: Path, path: str) -> None:
    write(project, {path: HARMLESS[path]})
    assert chosen(project) == {path}


@pytest.mark.parametrize("path", [".env", "tls/server.pem", ".aws/credentials"])
def test_a_named_secret_travels(project: Path, path: str) -> None:
    write(project, {path: SECRETS[path], "a.py": "", ".shunterignore": f"!/{path}\n"})
    assert chosen(project) == {"a.py", path, ".shunterignore"}
    assert select(str(project)).report.secrets == []


@pytest.mark.parametrize("name", [".dockerignore", ".torchxignore"])
def test_only_shunters_own_file_names_secrets(project: Path, name: str) -> None:
    write(project, {".env": "", "a": "", name: "!.env"})
    assert chosen(project) == {"a", name}


def test_real_keys_and_certificates(project: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=t"]
    command += ["-keyout", "tls.key", "-out", "tls.pem"]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    assert chosen(project) == {"tls.pem"}


def test_a_link_is_no_secret(project: Path) -> None:
    write(project, {"a": ""})
    (project / ".env").symlink_to("/etc/hostname")
    selection = select(str(project))
    assert [path for path, _ in selection.links] == [".env"]
    assert selection.report.secrets == []

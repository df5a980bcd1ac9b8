"""Where the daemon is looked for."""

import hashlib
import json

import pytest

from shunter.docker.daemon_address import SYSTEM_SOCKET, find_daemon, parse_address
from shunter.errors import ConfigError


def add_context(home, name, host, **fields):
    digest = hashlib.sha256(name.encode()).hexdigest()
    folder = home / ".docker" / "contexts" / "meta" / digest
    folder.mkdir(parents=True)
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host, **fields}}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return home / ".docker" / "contexts" / "tls" / digest / "docker"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("unix:///run/d.sock", "unix:///run/d.sock"),
        ("unix://", f"unix://{SYSTEM_SOCKET}"),
        ("tcp://10.0.0.5:2376", "tcp://10.0.0.5:2376"),
        ("tcp://10.0.0.5", "tcp://10.0.0.5:2375"),
        ("10.0.0.5:99", "tcp://10.0.0.5:99"),
        ("http://host:1/", "tcp://host:1"),
        ("https://host", "tcp://host:2376"),
        ("tcp://[::1]:2376", "tcp://[::1]:2376"),
        ("ssh://me@host", "ssh://me@host"),
        ("ssh://me@host:2222/ignored", "ssh://me@host:2222"),
    ],
)
def test_addresses(text, shown):
    assert str(parse_address(text)) == shown


@pytest.mark.parametrize(
    "text", ["npipe:////./pipe/x", "tcp://", "tcp://h:x", "tcp://h:99999", "ssh://-oProxyCommand=x", "fd://"]
)
def test_what_is_no_address(text):
    with pytest.raises(ConfigError, match="is not the address of a Docker daemon"):
        find_daemon({"DOCKER_HOST": text})


def test_host_wins_over_contexts(tmp_path):
    add_context(tmp_path, "far", "tcp://far:1")
    environ = {"HOME": str(tmp_path), "DOCKER_HOST": "unix:///x", "DOCKER_CONTEXT": "far"}
    assert find_daemon(environ).address == "/x"


def test_context_of_variable_and_of_configuration(tmp_path):
    add_context(tmp_path, "far", "tcp://far:1")
    near = add_context(tmp_path, "near", "tcp://near:2", SkipTLSVerify=False)
    near.mkdir(parents=True)
    (tmp_path / ".docker" / "config.json").write_text('{"currentContext": "near"}')
    environ = {"HOME": str(tmp_path)}
    found = find_daemon(environ)
    assert (found.address, found.tls.directory, found.tls.verify) == ("near", str(near), True)
    assert find_daemon({**environ, "DOCKER_CONTEXT": "far"}).address == "far"
    assert find_daemon({**environ, "DOCKER_CONTEXT": "default"}).scheme == "unix"


def test_unknown_context(tmp_path):
    with pytest.raises(ConfigError, match="'nowhere', which does not exist"):
        find_daemon({"HOME": str(tmp_path), "DOCKER_CONTEXT": "nowhere"})


def test_damaged_configuration(tmp_path):
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json"):
        find_daemon({"HOME": str(tmp_path)})


def test_tls(tmp_path):
    environ = {"DOCKER_HOST": "tcp://h", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)}
    found = find_daemon(environ)
    assert (found.port, found.tls.directory, found.tls.verify) == (2376, str(tmp_path), True)
    assert not find_daemon({"DOCKER_HOST": "tcp://h", "DOCKER_TLS": "1", "HOME": "/h"}).tls.verify


def test_rootless_socket(tmp_path, monkeypatch):
    monkeypatch.setattr("shunter.docker.daemon_address.SYSTEM_SOCKET", str(tmp_path / "none"))
    (tmp_path / "docker.sock").touch()
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    assert find_daemon(environ).address == str(tmp_path / "docker.sock")
    assert find_daemon({"HOME": str(tmp_path)}).address == str(tmp_path / "none")

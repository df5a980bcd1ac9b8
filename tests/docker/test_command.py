"""Which daemon the docker command uses, and what is said where there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from shunter.docker.command import DEFAULT_ENDPOINT, DockerCommand, Mount, environment_words
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.errors import ConfigError
from tests.backends import need


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


@pytest.fixture
def context() -> str:
    """The context that the user has chosen."""
    need("docker")
    words = ["docker", "context", "create", "far", "--docker", "host=ssh://me@far.example"]
    subprocess.run(words, check=True, capture_output=True)
    subprocess.run(["docker", "context", "use", "far"], check=True, capture_output=True)
    return "far"


def test_a_variable_names_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.5:2376")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    command = DockerCommand()
    assert (command.endpoint, command.is_local) == ("tcp://10.0.0.5:2376", False)
    pinned = {"DOCKER_HOST": "tcp://10.0.0.5:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": ""}
    assert command.pinned().environ == pinned
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    assert DockerCommand().is_local
    assert command.pinned().environ["DOCKER_HOST"] == "tcp://127.0.0.1:2375"


def test_a_context_names_the_daemon(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = DockerCommand()
    assert (command.endpoint, command.is_local) == ("ssh://me@far.example", False)
    none = {"DOCKER_TLS_VERIFY": "", "DOCKER_CERT_PATH": ""}
    assert command.pinned().environ == {"DOCKER_HOST": "ssh://me@far.example", **none}
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert DockerCommand().endpoint == DEFAULT_ENDPOINT
    assert DockerCommand().pinned().environ == {"DOCKER_HOST": DEFAULT_ENDPOINT, **none}
    monkeypatch.setenv("DOCKER_CONTEXT", "no-such")
    with pytest.raises(ConfigError, match="no-such") as caught:
        assert DockerCommand().endpoint
    assert "docker context ls" in caught.value.hint


def test_a_context_brings_its_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("docker")
    given = tmp_path / "given"
    given.mkdir()
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=daemon"]
    files = ["-keyout", str(given / "key.pem"), "-out", str(given / "cert.pem")]
    subprocess.run([*words, *files], check=True, capture_output=True)
    place = f"host=tcp://far.example:2376,ca={given}/cert.pem,cert={given}/cert.pem,key={given}/key.pem"
    subprocess.run(["docker", "context", "create", "tls", "--docker", place], check=True, capture_output=True)
    monkeypatch.setenv("DOCKER_CONTEXT", "tls")
    pinned = DockerCommand().pinned().environ
    assert (pinned["DOCKER_HOST"], pinned["DOCKER_TLS_VERIFY"]) == ("tcp://far.example:2376", "1")
    for name in ("ca", "cert", "key"):
        kept = Path(pinned["DOCKER_CERT_PATH"]) / f"{name}.pem"
        assert kept.read_bytes() == (given / ("key.pem" if name == "key" else "cert.pem")).read_bytes()


def test_what_is_pinned_does_not_depend_on_another_shells_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    need("docker")
    words = ["docker", "context", "create", "near", "--docker", f"host={DEFAULT_ENDPOINT}"]
    subprocess.run(words, check=True, capture_output=True)
    monkeypatch.setenv("DOCKER_CONTEXT", "near")
    pinned = DockerCommand().pinned()
    monkeypatch.delenv("DOCKER_CONTEXT")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    assert pinned.facts()["ServerVersion"]


def test_without_the_command_the_daemon_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert DockerCommand().is_local
    with pytest.raises(ConfigError, match="not in PATH"):
        DockerCommand().facts()


def test_a_client_of_docker_py_names_the_daemon() -> None:
    unix = SimpleNamespace(_custom_adapter=SimpleNamespace(socket_path="/x/sock"), base_url="http+docker://l")
    assert DockerCommand.of_client(SimpleNamespace(api=unix)).environ == {"DOCKER_HOST": "unix:///x/sock"}
    tcp = SimpleNamespace(base_url="http://10.0.0.5:2375")
    assert DockerCommand.of_client(tcp).environ == {"DOCKER_HOST": "tcp://10.0.0.5:2375"}


def test_a_daemon_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    need("docker")
    with pytest.raises(EngineUnavailableError, match="cannot reach a Docker daemon") as caught:
        DockerCommand({"DOCKER_HOST": f"unix://{tmp_path}/sock"}).facts()
    assert "DOCKER_HOST" in caught.value.hint


def test_a_daemon_tells_of_its_machine() -> None:
    need("docker")
    facts = DockerCommand().facts()
    assert facts["NCPU"] >= 1
    assert facts["ServerVersion"]


def test_a_comma_in_a_path_does_not_end_a_mounts_field() -> None:
    mount = Mount("bind", "/a,b", "/c", read_only=True)
    assert mount.word() == 'type=bind,"source=/a,b",target=/c,readonly'


def test_values_of_variables_are_not_among_the_words() -> None:
    words = environment_words({"TOKEN": "secret", "DOCKER_HOST": "tcp://x"})
    assert words == ["--env", "TOKEN", "--env", "DOCKER_HOST=tcp://x"]

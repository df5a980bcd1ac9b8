from __future__ import annotations

import base64
import json
import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shunter.docker import credentials
from shunter.docker.credentials import (
    Credentials,
    CredentialsError,
    EcrHost,
    credentials_for,
)

SECRET = "s3cr3t:with:colons"


def b64(text):
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Write the Docker client's configuration, let the environment name it, and return its path."""
    folder = tmp_path / "docker"
    folder.mkdir()
    (tmp_path / "bin").mkdir()

    def write(document, **environ):
        text = document if isinstance(document, str) else json.dumps(document)
        (folder / "config.json").write_text(text)
        monkeypatch.setenv("DOCKER_CONFIG", str(folder))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.defpath}")
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        return str(folder / "config.json")

    return write


@pytest.fixture
def helper(tmp_path):
    """Install a credential helper that knows some servers: {server: (user, secret)}."""

    def install(name, known, log=None):
        path = tmp_path / "bin" / f"docker-credential-{name}"
        path.write_text(
            f"#!{sys.executable}\n"
            "import json, sys\n"
            f"known = {known!r}\n"
            "assert sys.argv[1:] == ['get']\n"
            "server = sys.stdin.read().strip()\n"
            f"log = {str(log) if log else None!r}\n"
            "if log: open(log, 'a').write(server + '\\n')\n"
            "if server not in known:\n"
            "    print('credentials not found in native keychain'); sys.exit(1)\n"
            "user, secret = known[server]\n"
            "print(json.dumps({'ServerURL': server, 'Username': user, 'Secret': secret}))\n"
        )
        path.chmod(0o755)

    return install


def test_auth_field(configured):
    path = configured({"auths": {"ghcr.io": {"auth": b64(f"me:{SECRET}")}}})
    found = credentials_for("ghcr.io")
    assert (found.username, found.password, found.host) == ("me", SECRET, "ghcr.io")
    assert found.origin == path
    assert credentials_for("quay.io") is None


@pytest.mark.parametrize(
    "key", ["https://index.docker.io/v1/", "docker.io", "index.docker.io", "registry-1.docker.io"]
)
def test_docker_hub_has_a_special_key(configured, key):
    configured({"auths": {key: {"auth": b64("me:x")}}})
    assert credentials_for("docker.io").username == "me"


def test_tokens(configured):
    configured(
        {
            "auths": {
                "a.example": {"auth": b64("00000000:"), "identitytoken": "refresh-1"},
                "b.example": {"registrytoken": "bearer-1"},
            }
        }
    )
    assert credentials_for("a.example").identity_token == "refresh-1"
    assert credentials_for("b.example").registry_token == "bearer-1"


def test_store_is_asked_for_what_auths_leaves_empty(configured, helper):
    helper("store", {"ghcr.io": ("me", SECRET), "https://index.docker.io/v1/": ("hub", "h")})
    configured({"credsStore": "store", "auths": {"ghcr.io": {}, "https://index.docker.io/v1/": {}}})
    found = credentials_for("ghcr.io")
    assert (found.username, found.password, found.origin) == ("me", SECRET, "docker-credential-store")
    assert credentials_for("docker.io").username == "hub"
    assert credentials_for("quay.io") is None


def test_helper_of_a_host_wins_over_the_store(configured, helper, tmp_path):
    log = tmp_path / "asked"
    helper("own", {"ghcr.io": ("<token>", "refresh-2")}, log)
    helper("store", {"ghcr.io": ("me", SECRET)})
    configured({"credsStore": "store", "credHelpers": {"ghcr.io": "own"}})
    found = credentials_for("ghcr.io")
    assert (found.username, found.password, found.identity_token) == ("", "", "refresh-2")
    assert log.read_text() == "ghcr.io\n"


def test_absent_helper_is_named_with_its_file(configured):
    configured({"credHelpers": {"ghcr.io": "gone"}})
    with pytest.raises(
        CredentialsError, match=r"docker-credential-gone.*ghcr\.io.*config\.json.*not installed"
    ) as caught:
        credentials_for("ghcr.io")
    assert "docker-credential-gone" in caught.value.hint


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'vault is locked' >&2; exit 3", "exit code 3: vault is locked"),
        ("echo not json with hunter2", "has no Username and Secret"),
        ('echo \'{"Username": "me", "password": "hunter2"}\'', "has no Username and Secret"),
        ("echo password=hunter2-hunter2; exit 1", "exit code 1"),
    ],
)
def test_failing_helper_is_explained_without_its_secrets(configured, tmp_path, script, problem):
    path = tmp_path / "bin/docker-credential-odd"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    configured({"credsStore": "odd"})
    with pytest.raises(CredentialsError, match=problem) as caught:
        credentials_for("ghcr.io")
    assert "hunter2" not in str(caught.value)


def test_helper_that_hangs_is_given_up(configured, tmp_path, monkeypatch):
    monkeypatch.setattr(credentials, "HELPER_TIMEOUT", 0.05)
    path = tmp_path / "bin/docker-credential-slow"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    configured({"credsStore": "slow"})
    with pytest.raises(CredentialsError, match="no answer"):
        credentials_for("ghcr.io")


@pytest.mark.parametrize("text", ["{", "[]", "{'auths': secret-token-9}"])
def test_damaged_file_is_named_but_not_shown(configured, text):
    configured(text)
    with pytest.raises(CredentialsError, match=r"config\.json is not") as caught:
        credentials_for("ghcr.io")
    assert "secret-token-9" not in str(caught.value)


@pytest.mark.parametrize("auth", ["!!!", b64("no-colon-secret")])
def test_damaged_entry_says_to_log_in_again(configured, auth):
    configured({"auths": {"ghcr.io": {"auth": auth}}})
    with pytest.raises(CredentialsError, match=r"entry of ghcr\.io") as caught:
        credentials_for("ghcr.io")
    assert caught.value.hint == "Log in again: docker login ghcr.io"
    assert "no-colon-secret" not in str(caught.value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("YTpi"),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["auth", "username", "ghcr.io", "identitytoken"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.dictionaries(st.sampled_from(["auths", "credHelpers", "credsStore"]), _json, max_size=3))
def test_any_file_gives_credentials_or_an_error_of_ours(configured, document):
    configured(document)
    try:
        found = credentials_for("ghcr.io")
    except CredentialsError:
        return
    assert found is None or found.host == "ghcr.io"


def test_podmans_files_are_read_after_dockers(configured, tmp_path, monkeypatch):
    runtime = tmp_path / "run"
    (runtime / "containers").mkdir(parents=True)
    (runtime / "containers/auth.json").write_text(json.dumps({"auths": {"quay.io": {"auth": b64("pod:1")}}}))
    named = tmp_path / "auth.json"
    named.write_text(json.dumps({"auths": {"quay.io": {"auth": b64("named:1")}}}))
    docker = {"auths": {"ghcr.io": {"auth": b64("me:x")}}}
    configured(docker, XDG_RUNTIME_DIR=str(runtime))
    assert credentials_for("quay.io").username == "pod"
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(named))
    assert credentials_for("quay.io").username == "named"
    assert credentials_for("ghcr.io").username == "me"


def test_secrets_are_not_shown():
    shown = repr(Credentials("me", SECRET, "refresh-1", "bearer-1", "ghcr.io", "here"))
    assert "me" in shown
    assert not any(secret in shown for secret in (SECRET, "refresh-1", "bearer-1"))


@pytest.mark.parametrize(
    ("host", "account", "region", "fips"),
    [
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com", "123456789012", "eu-west-1", False),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", "123456789012", "cn-north-1", False),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com", "123456789012", "us-gov-west-1", True),
        ("123456789012.dkr-ecr.us-east-1.on.aws", "123456789012", "us-east-1", False),
        ("public.ecr.aws", "", "us-east-1", False),
    ],
)
def test_hosts_of_ecr(host, account, region, fips):
    assert EcrHost.parse(host) == EcrHost(host, account, region, fips)


@pytest.mark.parametrize(
    "host",
    ["ghcr.io", "dkr.ecr.us-east-1.amazonaws.com", "123456789012.dkr.ecr.us-east-1.amazonaws.com.evil.io"],
)
def test_hosts_of_others(host):
    assert EcrHost.parse(host) is None

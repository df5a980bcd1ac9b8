"""Registries that stumble and refuse, and how long we are patient. Time is a fake one."""

from __future__ import annotations

import os

import pytest

from shunter.image_registry.registry_errors import Purpose, RegistryError, refusal
from tests.registry.conftest import LOGIN
from tests.registry.images import push_image, sha256
from tests.registry.proxies import FakeTime, Fault, http_proxy
from tests.registry.test_blobs import fetched

MIB = 1 << 20


# The registry stumbles


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT"])
def test_stumbling_registry_is_asked_again(registry, connect, repo, status, method):
    content = os.urandom(2 * MIB)
    stumbled = []

    def stumble(seen, _):
        if seen.method == method and len(stumbled) < 2:
            stumbled.append(seen)
            return Fault(status)
        return None

    with http_proxy(registry.port, stumble) as proxy:
        time = FakeTime()
        client = connect(proxy.host, clock=time)
        assert client.upload_blob(repo, content, sha256(content), len(content))
        assert len(time.slept) == 2
    assert fetched(connect(registry.host), repo, sha256(content)) == content


def test_registry_says_when_to_come_back(registry, connect, repo):
    push_image(connect(registry.host), repo, "v1", [{"a": b"1"}])
    late = lambda seen, count: Fault(429, {"Retry-After": "37"}) if count == 2 else None  # noqa: E731
    with http_proxy(registry.port, late) as proxy:
        time = FakeTime()
        connect(proxy.host, clock=time).manifest(repo, "v1")
        assert time.slept == [37.0]


def test_limit_on_the_size_of_requests_is_said(registry, connect, repo):
    with http_proxy(registry.port, lambda seen, _: Fault(413) if seen.method == "PUT" else None) as proxy:
        content = os.urandom(10 * MIB)
        with pytest.raises(RegistryError, match="accepts no request of this size") as caught:
            connect(proxy.host).upload_blob(repo, content, sha256(content), len(content))
        assert "client_max_body_size" in caught.value.hint


# Refusals


def _error(code, message="no"):
    return b'{"errors":[{"code":"%s","message":"%s"}]}' % (code.encode(), message.encode())


ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("host", "status", "body", "message", "hint"),
    [
        (
            ECR,
            404,
            _error("NAME_UNKNOWN"),
            "there is no such repository",
            "aws ecr create-repository --region eu-west-1",
        ),
        (ECR, 403, _error("DENIED"), "does not let the user 'builder'", "ecr:InitiateLayerUpload"),
        (
            "r.example",
            404,
            _error("NAME_UNKNOWN"),
            "there is no such repository: no",
            "Create the repository first",
        ),
        (
            "r.example",
            403,
            _error("DENIED", "quota"),
            "does not let the user .*: quota",
            "docker login r.example",
        ),
        ("r.example", 405, b"", "does not support it", "read-only mirror"),
        ("r.example", 418, b"<html>", "the registry answered 418$", ""),
        ("r.example", 400, _error("X", "\\u001b[31mred"), r"\\x1b\[31mred", ""),
    ],
)
def test_refusals_say_what_to_do(host, status, body, message, hint, connect):
    client = connect(host, LOGIN)
    client._auth._credentials = LOGIN
    error = refusal(Purpose("push", host, "team/x"), status, body, client._auth)
    with pytest.raises(RegistryError, match=message) as caught:
        raise error
    assert f"cannot push to {host}/team/x: " in error.message
    assert hint in caught.value.hint
    assert error.exit_code == 4

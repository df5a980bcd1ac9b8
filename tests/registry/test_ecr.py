"""Tokens of Amazon ECR, from a moto server."""

from __future__ import annotations

import sys

import pytest

from shunter.docker.credentials import CredentialsError, credentials_for
from tests.backends import need
from tests.registry.images import push_image
from tests.registry.proxies import http_proxy
from tests.registry.server import RegistryServer, docker_config, htpasswd

HOST = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


@pytest.fixture
def aws(moto, monkeypatch):
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret-value")
    return moto


@pytest.fixture
def nobody(monkeypatch):
    """No AWS credentials anywhere, and nobody to ask for them."""
    need("moto")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_token_comes_from_aws(aws):
    found = credentials_for(HOST)
    assert (found.username, found.host, found.origin) == ("AWS", HOST, "the AWS credentials")
    assert found.password
    assert found.password not in repr(found)


def test_login_of_docker_wins(aws, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(docker_config(tmp_path / "docker", HOST, "AWS", "p")))
    assert credentials_for(HOST).password == "p"


def test_without_aws_credentials_it_says_what_to_do(nobody):
    with pytest.raises(CredentialsError, match="there are no AWS credentials") as caught:
        credentials_for(HOST)
    assert "aws ecr get-login-password --region eu-west-1 | docker login --username AWS" in caught.value.hint
    assert credentials_for("public.ecr.aws") is None


def test_without_boto3_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(CredentialsError, match=r"boto3.*is not installed") as caught:
        credentials_for(HOST)
    assert "shunter[aws]" in caught.value.hint
    assert credentials_for("public.ecr.aws") is None


def test_refusal_of_aws_is_passed_on_without_secrets(aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{aws}/nowhere-at-all")
    with pytest.raises(CredentialsError, match="cannot get a token for") as caught:
        credentials_for(HOST)
    assert "aws-secret-value" not in str(caught.value)
    assert "ecr:GetAuthorizationToken" in caught.value.hint


def test_login_to_a_registry_with_a_token_of_aws(aws, connect, repo, tmp_path):
    """The name of the registry is ECR's; behind the proxy stands one that knows the token of this AWS."""
    token = credentials_for(HOST).password
    server = RegistryServer(tmp_path / "ecr", htpasswd(tmp_path, {"AWS": token})).start()
    try:
        with http_proxy(server.port) as proxy:
            passed = proxy.passed
            proxy.passed = lambda seen, body: passed(seen._replace(path=seen.path.partition(HOST)[2]), body)
            env = {"http_proxy": f"http://{proxy.host}", "no_proxy": "127.0.0.1"}
            client = connect(HOST, None, environ=env, insecure=True)
            digest = push_image(client, repo, "v1", [{"a": b"1"}])
            assert client.manifest(repo, "v1").digest == digest
    finally:
        server.stop()

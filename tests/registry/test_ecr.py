"""Tokens of Amazon ECR, from a moto server."""

from __future__ import annotations

import sys

import pytest

from tests.backends import need
from tests.registry.server import docker_config
from tests.toolkit.objects import endpoint  # noqa: F401
from trainyard.docker.credentials import CredentialsError, credentials_for

HOST = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


@pytest.fixture
def aws(endpoint, monkeypatch):  # noqa: F811
    need("moto")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret-value")
    return endpoint


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


def test_environment_that_is_handed_over_counts(nobody, endpoint, tmp_path):  # noqa: F811
    env = {
        "HOME": str(tmp_path),
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "AKIAOTHER",
        "AWS_SECRET_ACCESS_KEY": "other-secret-value",
    }
    assert credentials_for(HOST, env).username == "AWS"


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
    assert "trainyard[aws]" in caught.value.hint
    assert credentials_for("public.ecr.aws") is None


def test_refusal_of_aws_is_passed_on_without_secrets(aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{aws}/nowhere-at-all")
    with pytest.raises(CredentialsError, match="cannot get a token for") as caught:
        credentials_for(HOST)
    assert "aws-secret-value" not in str(caught.value)
    assert "ecr:GetAuthorizationToken" in caught.value.hint

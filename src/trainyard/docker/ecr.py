"""Amazon ECR: which hosts are its registries, and tokens for them from the AWS credentials."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from typing import Any

from trainyard.docker.credentials import Credentials, CredentialsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html, general/latest/gr/ecr.html
_PRIVATE = re.compile(
    r"(?P<account>[0-9]{12})\.dkr[.-]ecr(?P<fips>-fips)?\.(?P<region>[a-z0-9-]+)"
    r"\.(?:amazonaws\.(?:com|com\.cn|eu)|on\.aws|on\.amazonwebservices\.com\.cn)"
)
PUBLIC_HOST = "public.ecr.aws"
#: ECR Public issues its tokens in this region only.
PUBLIC_REGION = "us-east-1"


@dataclass(frozen=True)
class EcrHost:
    """A registry of Amazon ECR. ``account`` is "" for ECR Public."""

    host: str
    account: str
    region: str
    fips: bool = False

    @classmethod
    def parse(cls, host: str) -> EcrHost | None:
        """Read a host; None if it is not one of ECR."""
        if host == PUBLIC_HOST:
            return cls(host, "", PUBLIC_REGION)
        match = _PRIVATE.fullmatch(host)
        return cls(host, match["account"], match["region"], bool(match["fips"])) if match else None

    @property
    def is_public(self) -> bool:
        """Whether it is ECR Public, from which anybody may pull."""
        return not self.account


def ecr_credentials(registry: EcrHost, environ: Mapping[str, str]) -> Credentials | None:
    """Return a token for a registry of ECR, good for some hours.

    Returns:
        User ``AWS`` and the token; None for ECR Public without a token, since pulling from it needs none.

    Raises:
        CredentialsError: boto3 is missing, there are no AWS credentials, or AWS refuses.
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )
    except ImportError:
        if registry.is_public:
            return None
        raise CredentialsError(
            f"cannot log in to {registry.host}: boto3, which asks AWS for a token, is not installed",
            hint=f"pip install 'trainyard[aws]', or: {login_line(registry)}",
        ) from None
    try:
        # a profile that is passed hides keys in the environment; one of the environment does not
        profile = None if environ is os.environ else environ.get("AWS_PROFILE") or None
        session = boto3.session.Session(profile_name=profile)
        client: Any = session.client(
            "ecr-public" if registry.is_public else "ecr",
            region_name=registry.region,
            config=Config(use_fips_endpoint=registry.fips or None),
            **_keys(environ),
        )
        answer = client.get_authorization_token()
    except (NoCredentialsError, PartialCredentialsError) as error:
        if registry.is_public:
            return None
        raise CredentialsError(
            f"cannot log in to {registry.host}: there are no AWS credentials",
            hint=f"Set AWS_PROFILE or AWS_ACCESS_KEY_ID, run aws sso login, or: {login_line(registry)}",
        ) from error
    except (BotoCoreError, ClientError) as error:
        if registry.is_public:
            return None
        raise CredentialsError(
            f"cannot get a token for {registry.host} from AWS: {error}",
            hint="The AWS user needs the permission ecr:GetAuthorizationToken.",
        ) from error
    return _from_answer(answer, registry)


def _keys(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the client's settings from an environment other than that of the process."""
    if environ is os.environ:
        return {}
    names = {
        "aws_access_key_id": "AWS_ACCESS_KEY_ID",
        "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "aws_session_token": "AWS_SESSION_TOKEN",
        "endpoint_url": "AWS_ENDPOINT_URL",
    }
    return {key: environ[name] for key, name in names.items() if environ.get(name)}


def _from_answer(answer: dict[str, Any], registry: EcrHost) -> Credentials:
    data = answer["authorizationData"]
    entry = data[0] if isinstance(data, list) else data
    username, _, password = base64.b64decode(entry["authorizationToken"]).decode().partition(":")
    return Credentials(username, password, host=registry.host, origin="the AWS credentials")


def login_line(registry: EcrHost) -> str:
    """Return the shell command that logs in to a registry of ECR."""
    service = "ecr-public" if registry.is_public else "ecr"
    return (
        f"aws {service} get-login-password --region {registry.region}"
        f" | docker login --username AWS --password-stdin {registry.host}"
    )

"""Credentials for registries, by the rules of the ``docker`` command.

The first source with credentials for the host wins: the Docker client's ``config.json`` (``credHelpers``,
``auths``, ``credsStore``), then Podman's ``auth.json``, and for ECR the AWS credentials, through boto3.
https://docs.docker.com/reference/cli/docker/login/ and
https://github.com/containers/image/blob/main/docs/containers-auth.json.5.md
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shunter import system
from shunter.docker.image_reference import HUB_NAMES
from shunter.errors import ConfigError
from shunter.paths import read_regular_file, xdg
from shunter.redaction import redact_text
from shunter.system.identity import home
from shunter.terminal import clean

#: Under this key the ``docker`` command keeps its credentials for Docker Hub.
HUB_KEY = "https://index.docker.io/v1/"
#: The user name by which helpers say that the secret is an identity token.
TOKEN_USER = "<token>"
HELPER_TIMEOUT = 60.0
# https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html, general/latest/gr/ecr.html
_ECR_PRIVATE = re.compile(
    r"(?P<account>[0-9]{12})\.dkr[.-]ecr(?P<fips>-fips)?\.(?P<region>[a-z0-9-]+)"
    r"\.(?:amazonaws\.(?:com|com\.cn|eu)|on\.aws|on\.amazonwebservices\.com\.cn)"
)
ECR_PUBLIC_HOST = "public.ecr.aws"
#: ECR Public issues its tokens in this region only.
ECR_PUBLIC_REGION = "us-east-1"


class CredentialsError(ConfigError):
    """Credentials are configured, but cannot be read."""


@dataclass(frozen=True)
class Credentials:
    """A login for a registry. Secrets are not in its ``repr``.

    Attributes:
        username: name of the user; "" with tokens.
        password: password, or a token that counts as one.
        identity_token: OAuth2 refresh token, exchanged for access tokens.
        registry_token: bearer token, sent as it is.
        host: registry that they are for.
        origin: where they were found, for messages.
    """

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    host: str = ""
    origin: str = ""


def credentials_for(host: str) -> Credentials | None:
    """Return what is configured for a registry.

    Args:
        host: the registry as image names have it: ``docker.io``, ``ghcr.io``, ``localhost:5000``.

    Returns:
        The credentials, or None, which is fine for public images.

    Raises:
        CredentialsError: a file, a helper or AWS's answer is not usable.
    """
    for path in _config_files():
        credentials = _from_config(_read_config(path), host, path)
        if credentials is not None:
            return credentials
    registry = EcrHost.parse(host)
    return ecr_credentials(registry) if registry is not None else None


@contextlib.contextmanager
def login_environment(hosts: Iterable[str]) -> Iterator[dict[str, str]]:
    """Give the variables with which the ``docker`` command logs in to registries.

    None are needed for what the command itself finds in its configuration. Credentials of Podman or of AWS
    are written to a configuration of their own, which is removed afterwards.

    Raises:
        CredentialsError: a file, a helper or AWS's answer is not usable.
    """
    path = next(_config_files())
    directory = os.path.dirname(path)
    config = _read_config(path)
    entries: dict[str, dict[str, str]] = {}
    for host in hosts:
        if _from_config(config, host, path) is None and (login := credentials_for(host)):
            text = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
            entry = {"identitytoken": login.identity_token} if login.identity_token else {"auth": text}
            entries[HUB_KEY if host in HUB_NAMES else host] = entry
    if not entries:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="shunter-") as folder:
        for name in os.listdir(directory) if os.path.isdir(directory) else ():
            if name != "config.json":  # contexts, plug-ins
                os.symlink(os.path.join(directory, name), os.path.join(folder, name))
        config = {**config, "auths": {**_mapping(config, "auths"), **entries}}
        config.pop("credsStore", None)  # which would hide these entries
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        yield {"DOCKER_CONFIG": folder}


def _config_files() -> Iterator[str]:
    """Yield the paths of the configurations, that of the ``docker`` command first."""
    own = os.environ.get("DOCKER_CONFIG") or os.path.join(home(os.environ), ".docker")
    yield os.path.join(own, "config.json")
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        yield named
    if runtime := xdg("XDG_RUNTIME_DIR", os.environ):
        yield os.path.join(runtime, "containers", "auth.json")
    config_home = xdg("XDG_CONFIG_HOME", os.environ) or os.path.join(home(os.environ), ".config")
    yield os.path.join(config_home, "containers", "auth.json")


def _read_config(path: str) -> dict[str, Any]:
    try:
        config = json.loads(read_regular_file(path, special=system.is_pipe_path(path)) or b"{}")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise CredentialsError(
            f"cannot read the registries' credentials in {path}: {error.strerror}"
        ) from error
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):  # the text may hold secrets: it is not shown
        raise CredentialsError(
            f"{path} is not a JSON object", hint="Correct the file, or log in again: docker login"
        )
    return config


def _from_config(config: dict[str, Any], host: str, path: str) -> Credentials | None:
    names = [host, *sorted(HUB_NAMES - {host})] if host in HUB_NAMES else [host]
    helpers = {_bare_host(key): (key, helper) for key, helper in _mapping(config, "credHelpers").items()}
    entries = {_bare_host(key): entry for key, entry in _mapping(config, "auths").items()}
    for name in names:
        key, helper = helpers.get(name, ("", ""))
        if helper:
            return _from_helper(str(helper), host, key, path)
    for name in names:
        credentials = _from_entry(entries.get(name), host, path)
        if credentials is not None:
            return credentials
    if config.get("credsStore"):
        for key in (HUB_KEY,) if host in HUB_NAMES else (host, f"https://{host}"):
            credentials = _from_helper(str(config["credsStore"]), host, key, path)
            if credentials is not None:
                return credentials
    return None


def _mapping(config: dict[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _bare_host(key: str) -> str:
    """Return the host of a key, which may have a scheme and a path: ``https://ghcr.io/v2/``."""
    return key.partition("://")[2].partition("/")[0] if "://" in key else key.partition("/")[0]


def _from_entry(entry: Any, host: str, path: str) -> Credentials | None:
    """Read an entry of ``auths``; None if it is empty, as when a store holds the secret."""
    if not isinstance(entry, dict):
        return None
    identity, registry = str(entry.get("identitytoken") or ""), str(entry.get("registrytoken") or "")
    username, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth"):
        username, password = _decode(str(entry["auth"]), host, path)
    if not (username or password or identity or registry):
        return None
    return Credentials(username, password, identity, registry, host=host, origin=path)


def _decode(auth: str, host: str, path: str) -> tuple[str, str]:
    """Read the ``auth`` field: base64 of ``user:password``."""
    try:
        username, colon, password = base64.b64decode(auth, validate=False).decode().partition(":")
    except ValueError:  # not base64, or not text
        colon = ""
    if not colon:
        raise CredentialsError(
            f"the entry of {host} in {path} is damaged: its auth is not base64 of user:password",
            hint=f"Log in again: docker login {host}",
        )
    return username, password.rstrip("\0")


def _from_helper(helper: str, host: str, key: str, path: str) -> Credentials | None:
    """Ask ``docker-credential-HELPER get``, with the key on its standard input.

    https://github.com/docker/docker-credential-helpers#development
    """
    program = f"docker-credential-{helper}"

    def failure(reason: str) -> CredentialsError:
        return CredentialsError(
            f"cannot ask {program} for the credentials of {host}, as {path} says: {reason}",
            hint=f"Try it: echo {key} | {program} get. Or remove it from {path} and log in again.",
        )

    try:
        answer = subprocess.run(
            [program, "get"], input=key, capture_output=True, text=True, timeout=HELPER_TIMEOUT, check=False
        )
    except FileNotFoundError:
        raise failure("it is not installed") from None
    # the exception's own text may hold what the helper printed
    except subprocess.TimeoutExpired:
        raise failure(f"no answer in {HELPER_TIMEOUT:.0f} seconds") from None
    except (OSError, ValueError) as error:  # a name that no program can have
        raise failure(getattr(error, "strerror", "") or "it cannot be run") from None
    if answer.returncode != 0:
        lines = (answer.stdout.strip() or answer.stderr.strip()).splitlines()
        if any("credentials not found" in line.lower() for line in lines):
            return None
        said = f": {clean(redact_text(lines[-1]))[:300]}" if lines else ""
        raise failure(f"it failed with exit code {answer.returncode}{said}")
    try:
        document = json.loads(answer.stdout)
        username, secret = str(document["Username"]), str(document["Secret"])
    except (ValueError, KeyError, TypeError):  # the text may hold a secret: it is not shown
        raise failure("its answer has no Username and Secret") from None
    if not secret:
        return None
    if username == TOKEN_USER:
        return Credentials(identity_token=secret, host=host, origin=program)
    return Credentials(username, secret, host=host, origin=program)


# ---- Amazon ECR


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
        if host == ECR_PUBLIC_HOST:
            return cls(host, "", ECR_PUBLIC_REGION)
        match = _ECR_PRIVATE.fullmatch(host)
        return cls(host, match["account"], match["region"], bool(match["fips"])) if match else None

    @property
    def is_public(self) -> bool:
        """Whether it is ECR Public, from which anybody may pull."""
        return not self.account


def ecr_credentials(registry: EcrHost) -> Credentials | None:
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
            hint=f"pip install 'shunter[aws]', or: {login_line(registry)}",
        ) from None
    try:
        client: Any = boto3.session.Session().client(
            "ecr-public" if registry.is_public else "ecr",
            region_name=registry.region,
            config=Config(use_fips_endpoint=registry.fips or None),
        )
        with contextlib.closing(client):
            data = client.get_authorization_token()["authorizationData"]
    except (BotoCoreError, ClientError) as error:
        if registry.is_public:
            return None
        problem = f"cannot get a token for {registry.host} from AWS: {error}"
        hint = "The AWS user needs the permission ecr:GetAuthorizationToken."
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            problem = f"cannot log in to {registry.host}: there are no AWS credentials"
            hint = f"Set AWS_PROFILE or AWS_ACCESS_KEY_ID, run aws sso login, or: {login_line(registry)}"
        raise CredentialsError(problem, hint=hint) from error
    token = (data[0] if isinstance(data, list) else data)["authorizationToken"]
    username, _, password = base64.b64decode(token).decode().partition(":")
    return Credentials(username, password, host=registry.host, origin="the AWS credentials")


def login_line(registry: EcrHost) -> str:
    """Return the shell command that logs in to a registry of ECR."""
    service = "ecr-public" if registry.is_public else "ecr"
    return (
        f"aws {service} get-login-password --region {registry.region}"
        f" | docker login --username AWS --password-stdin {registry.host}"
    )

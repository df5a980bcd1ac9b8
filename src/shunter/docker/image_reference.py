"""Names of images: ``[registry[:port]/]repository[:tag][@digest]``.

The grammar is that of https://pkg.go.dev/github.com/distribution/reference, with Docker's rules for names
without a registry: ``python`` is ``docker.io/library/python``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from shunter.errors import ConfigError
from shunter.url_client import is_loopback_host

DOCKER_HUB = "docker.io"
HUB_NAMES = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})
LONGEST_NAME = 255

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_HOST_LABEL = r"(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-]*[A-Za-z0-9])"
_HOST = re.compile(
    rf"(?P<host>{_HOST_LABEL}(?:\.{_HOST_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{{1,5}}))?"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"(?:sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})")
IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_EXAMPLES = "Examples: python:3.12, ghcr.io/me/train:v1, localhost:5000/train@sha256:..."


@dataclass(frozen=True)
class Reference:
    """An image's name, complete: no part depends on defaults.

    Attributes:
        registry: host as it is written, with the port if one is given; ``docker.io`` for Docker Hub.
        repository: path within the registry; official images of Docker Hub have their ``library/``.
        tag: tag, or None, as written: `selector` has the default.
        digest: ``sha256:...``, or None.
    """

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a name.

        Raises:
            ConfigError: the text is not the name of an image in a registry; says which part is wrong.
        """
        if IMAGE_ID.fullmatch(text):
            raise ConfigError(
                f"{text!r} is the id of an image on this machine, not the name of one in a registry",
                hint=f"Give the image a name first: docker tag {text[:19]} REGISTRY/NAME:TAG",
            )
        rest, at, digest = text.partition("@")
        if at and not _DIGEST.fullmatch(digest):
            raise _wrong(text, f"{digest!r} is not a digest (sha256: and 64 hexadecimal digits)")
        tag = None
        if rest.rfind(":") > rest.rfind("/"):
            rest, _, tag = rest.rpartition(":")
            if not _TAG.fullmatch(tag):
                raise _wrong(text, f"{tag!r} is not a tag (letters, digits, '_', '.', '-', at most 128)")
        registry, repository = _split_registry(text, rest)
        _check_repository(text, repository)
        return cls(registry, repository, tag, digest or None)

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    @property
    def selector(self) -> str:
        """What is requested of the registry: the digest, else the tag, else ``latest``."""
        return self.digest or self.tag or "latest"

    def pinned(self, digest: str) -> Reference:
        """Return the image of this digest in the same repository."""
        return replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


def image_problem(text: str) -> str:
    """Return what is wrong with the name or the id of an image; "" if it may be one."""
    if IMAGE_ID.fullmatch(text):
        return ""
    try:
        Reference.parse(text)
    except ConfigError as error:
        return error.message
    return ""


def api_host(registry: str) -> str:
    """Return the host that serves a registry's API: Docker Hub's is not the one in its images' names."""
    return "registry-1.docker.io" if registry in HUB_NAMES else registry


def canonical_registry(registry: str) -> str:
    """Return the canonical name of a registry that has several names."""
    return DOCKER_HUB if registry.lower() in HUB_NAMES else registry


def split_host(host: str) -> tuple[str, int | None]:
    """Split ``host[:port]``, ``[::1]:5000`` into the bare host and the port.

    Raises:
        ConfigError: this is not a host.
    """
    match = _HOST.fullmatch(host)
    if match is None or (match["port"] and not 0 < int(match["port"]) < 65536):
        raise ConfigError(
            f"{host!r} is not a registry's host", hint="Examples: ghcr.io, localhost:5000, [::1]:5000"
        )
    return match["host"].strip("[]"), int(match["port"]) if match["port"] else None


def is_loopback(host: str) -> bool:
    """Tell whether a ``host[:port]`` is this machine: localhost, 127.0.0.0/8 or ::1."""
    return is_loopback_host(split_host(host)[0])


def _split_registry(text: str, rest: str) -> tuple[str, str]:
    """Cut the registry off: a first component with a dot, a colon or a capital, or ``localhost``."""
    first, slash, path = rest.partition("/")
    is_host = slash and (first == "localhost" or any(c in ".:[" or c.isupper() for c in first))
    if not is_host:
        return DOCKER_HUB, rest if "/" in rest else f"library/{rest}"
    try:
        split_host(first)
    except ConfigError as error:
        raise _wrong(text, f"{first!r} is not a registry's host") from error
    registry = canonical_registry(first)
    if registry == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    return registry, path


def _check_repository(text: str, repository: str) -> None:
    bare = repository.removeprefix("library/")
    if not bare:
        raise _wrong(text, "the repository is missing")
    if _REPOSITORY.fullmatch(repository) is None:
        could_be = bare != bare.lower() and _REPOSITORY.fullmatch(bare.lower())
        lower = f"; names of images are lower-case: {bare.lower()!r}" if could_be else ""
        raise _wrong(text, f"{bare!r} is not a repository{lower}")
    if len(repository) > LONGEST_NAME:
        raise _wrong(text, f"the repository is longer than {LONGEST_NAME} characters")


def _wrong(text: str, what: str) -> ConfigError:
    return ConfigError(f"{text!r} is not the name of an image: {what}", hint=_EXAMPLES)

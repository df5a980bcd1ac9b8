"""What goes wrong with registries: the errors, and what an answer or a broken connection means."""

from __future__ import annotations

import json
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple

from shunter.docker.credentials import EcrHost
from shunter.docker.image_reference import api_host, is_loopback
from shunter.errors import BackendError
from shunter.redaction import redact_text
from shunter.terminal import clean
from shunter.url_client import Response

if TYPE_CHECKING:
    from shunter.image_registry.auth import Authorizer

#: Longest answer that is read as a whole, in bytes; manifests and configurations are far smaller.
LONGEST_DOCUMENT = 16 << 20
#: Answers after which the same request may succeed a little later.
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
#: What a registry may say along with a 500 that no waiting will change.
FINAL_CODES = frozenset(
    {
        "DENIED",
        "DIGEST_INVALID",
        "MANIFEST_BLOB_UNKNOWN",
        "MANIFEST_INVALID",
        "MANIFEST_UNVERIFIED",
        "NAME_INVALID",
        "SIZE_INVALID",
        "TAG_INVALID",
        "UNSUPPORTED",
    }
)
FULL_DISK = "no space left"


class RegistryError(BackendError):
    """A registry refused something. ``status`` is that of HTTP; 0 if there was no answer."""

    def __init__(self, message: str, *, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class RegistryAuthError(RegistryError):
    """The registry does not accept our login, or does not permit this."""


class RegistryUnavailableError(RegistryError):
    """The registry could not be reached, or kept failing, until we gave up."""


class ContentMismatchError(RegistryError):
    """What a registry sent does not have the digest that it should have."""


class CancelledError(RegistryError):
    """Another part of the same push failed, or it was interrupted."""


class Trouble(Exception):
    """Something failed that is worth another try. Never leaves this package."""

    def __init__(self, problem: str, *, retry_after: float = 0.0, status: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.retry_after = retry_after
        self.status = status


class Purpose(NamedTuple):
    """What a request is for."""

    verb: str  # "push" or "pull"
    registry: str
    repository: str
    #: Another repository that blobs are mounted from.
    mount_from: str = ""

    @property
    def scopes(self) -> tuple[str, ...]:
        """What a token server is asked for."""
        own = f"repository:{self.repository}:{'pull,push' if self.verb == 'push' else 'pull'}"
        return (own, f"repository:{self.mount_from}:pull") if self.mount_from else (own,)

    def __str__(self) -> str:
        if not self.repository:
            return f"reach {self.registry}"
        return f"{'push to' if self.verb == 'push' else 'pull from'} {self.registry}/{self.repository}"


def read_document(answer: Response) -> bytes:
    """Return the whole body of an answer, and close it.

    Raises:
        RegistryError: it is longer than any document.
        OSError: the connection broke.
    """
    body = bytearray()
    with answer:
        while part := answer.read1():
            body += part
            if len(body) > LONGEST_DOCUMENT:
                place = answer.url.partition("?")[0]  # what follows may be a signature
                raise RegistryError(f"{place} sent a document of more than {LONGEST_DOCUMENT >> 20} MiB")
    return bytes(body)


def codes_and_words(body: bytes) -> tuple[set[str], str]:
    """Read the document of an error: its codes, and what the registry says, at most 300 characters.

    https://github.com/opencontainers/distribution-spec/blob/main/spec.md#error-codes
    """
    try:
        errors = json.loads(body)["errors"]
        entries = [entry for entry in errors if isinstance(entry, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return set(), ""
    words = []
    for entry in entries:
        word = str(entry.get("message") or entry.get("code") or "")
        if FULL_DISK in str(entry.get("detail")).lower():
            word += f" ({FULL_DISK} on device)"
        words.append(word)
    said = clean(redact_text("; ".join(filter(None, words))))
    return {str(entry.get("code", "")) for entry in entries}, said[:300]


def refusal(
    purpose: Purpose, status: int, body: bytes, auth: Authorizer, *, is_denied: bool = False
) -> RegistryError:
    """Return the error for an answer that will not change; ``is_denied``: our login was accepted."""
    codes, said = codes_and_words(body)
    words = f": {said}" if said else ""
    if status == 401 and not is_denied:
        return RegistryAuthError(f"cannot {purpose}: {auth.refused()}", hint=auth.login_hint(), status=401)
    if status in (401, 403) or "DENIED" in codes:
        what = f"the registry does not let {auth.who()} do it{words}"
        return RegistryAuthError(f"cannot {purpose}: {what}", hint=_permission(purpose, auth), status=status)
    what, hint = f"the registry answered {status}{words}", ""
    if "NAME_UNKNOWN" in codes or (status == 404 and purpose.verb == "push"):
        what, hint = (
            f"there is no such repository{words}",
            "Create the repository first, or correct its name.",
        )
        if ecr := EcrHost.parse(purpose.registry):
            hint = (
                f"Create it: aws {'ecr-public' if ecr.is_public else 'ecr'} create-repository"
                f" --region {ecr.region} --repository-name {purpose.repository}"
            )
    elif status == 413:
        what = "it accepts no request of this size (413)"
        hint = "A proxy in front of the registry limits the size; nginx calls it client_max_body_size."
    elif status == 405 or "UNSUPPORTED" in codes:
        what = f"the registry does not support it{words}"
        hint = "It may be a read-only mirror; push to another registry."
    elif status == 507 or FULL_DISK in said:
        what = f"the registry has no space left{words}"
        hint = "Free space in the registry's storage, or push to another registry."
    return RegistryError(f"cannot {purpose}: {what}", hint=hint, status=status)


def _permission(purpose: Purpose, auth: Authorizer) -> str:
    """Say how to get the permission for something."""
    if auth.credentials is None:
        return f"{auth.login_hint()}. Or correct the name: registries often say this of missing images."
    if EcrHost.parse(purpose.registry):
        pull = "ecr:BatchGetImage, ecr:GetDownloadUrlForLayer, ecr:BatchCheckLayerAvailability"
        push = "ecr:InitiateLayerUpload, ecr:UploadLayerPart, ecr:CompleteLayerUpload, ecr:PutImage"
        return f"The AWS user needs {pull}" + (f", {push}." if purpose.verb == "push" else ".")
    return f"Ask for the permission to {purpose.verb}, or use another account. {auth.login_hint()}"


def unavailable(purpose: Purpose, trouble: Trouble, seconds: float) -> RegistryUnavailableError:
    """Return the error for a registry that could not be reached, or kept failing."""
    tried = f" (tried for {seconds:.0f} seconds)" if seconds >= 1 else ""
    scheme = "http" if is_loopback(purpose.registry) else "https"
    url = f"{scheme}://{api_host(purpose.registry)}/v2/"
    hint = f"Check that the registry is up and can be reached: curl -I {url}"
    if trouble.status == 429:
        hint = "It limits the number of requests: wait, or log in, which often raises the limit."
    return RegistryUnavailableError(
        f"cannot {purpose}: {trouble.problem}{tried}", hint=hint, status=trouble.status
    )


def connection_trouble(error: OSError, purpose: Purpose, *, insecure: bool = False) -> Exception:
    """Return what to raise when there was no answer: `Trouble`, or an error if trying again cannot help."""
    registry = purpose.registry
    no_host = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"its certificate is not trusted: {error.verify_message}"
        hint = (
            f"Put its authority's certificate into /etc/docker/certs.d/{registry}/ca.crt,"
            " or name a file with it in SSL_CERT_FILE."
        )
    elif isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        what = f"the TLS connection failed: {error.reason or error}"
        hint = "" if insecure else f"If it speaks http only: export SHUNTER_INSECURE_REGISTRIES={registry}"
    elif isinstance(error, socket.gaierror) and error.errno in no_host:
        what, hint = "there is no host of this name", "Check the name of the registry."
    elif isinstance(error, TimeoutError):
        return Trouble("no answer in time")
    else:
        reason = error.strerror or str(error) or type(error).__name__
        return Trouble(reason[:1].lower() + reason[1:])
    return RegistryUnavailableError(f"cannot {purpose}: {what}", hint=hint)

"""The errors of AWS: our classes for them, and the one place that reads the SDK's exceptions."""

from __future__ import annotations

import re
from collections.abc import Callable

from shunter.errors import AccessError, BackendError, ConfigError, ShunterError

_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_FORBIDDEN = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized"})
_INVALID_CREDENTIALS = frozenset(
    [
        "AuthFailure",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    ]
)
#: The codes of all services that mean "too many requests".
THROTTLED = frozenset(
    [
        "LimitExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    ]
)
# "User: arn:aws:iam::1:user/me is not authorized to perform: batch:SubmitJob on resource: ..."
_DENIAL = re.compile(
    r"(?:User: (?P<who>\S+) )?is not authorized to perform: (?P<action>[\w-]+:\w+)"
    r"(?: on resource: (?P<resource>\S+))?"
)
_LOGIN = "Log in again (`aws sso login`, or renew the variables AWS_ACCESS_KEY_ID, ... of this shell)."


class AwsError(BackendError):
    """AWS refused a request or could not be reached.

    Attributes:
        operation: what was asked for, such as ``batch:SubmitJob``.
        code: AWS's name of the error; "" if there was no answer.
        lost_answer: whether the request may have been carried out nevertheless.
    """

    def __init__(
        self, message: str, *, hint: str = "", operation: str = "", code: str = "", lost_answer: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.operation = operation
        self.code = code
        self.lost_answer = lost_answer


class AwsCredentialsError(AwsError, AccessError):
    """The credentials are missing, expired or invalid."""


class AwsForbiddenError(AwsError, AccessError):
    """The identity lacks a permission."""


class AwsThrottledError(AwsError):
    """AWS still received too many requests after several attempts."""


class AwsUnreachableError(AwsError):
    """No answer came."""


#: What to do where no region is known.
REGION_HINT = "Give it with -cfg region=us-east-1, AWS_DEFAULT_REGION or the profile."


def missing_sdk(error: ImportError) -> ConfigError:
    """Return the error for an installation without the SDK."""
    return ConfigError(
        f"AWS needs the package {error.name!r}, which is not installed",
        hint="Install it: pip install 'shunter[aws]'",
    )


def translate(
    error: Exception, operation: str, identity: Callable[[], str] = lambda: "", profile: str | None = None
) -> ShunterError:
    """Return our error for one of the SDK's.

    Args:
        error: what the SDK raised.
        operation: what was asked for, such as ``batch:SubmitJob``: also the permission that it needs.
        identity: returns the ARN of the caller; called only if a permission is missing and AWS does not say
            whose.
        profile: the profile that the credentials come from, if one was named.
    """
    from botocore import exceptions as sdk

    if isinstance(error, ShunterError):
        return error
    if isinstance(error, sdk.ClientError):
        return _refusal(error, operation, identity, profile)
    if isinstance(error, sdk.ProfileNotFound):
        return ConfigError(
            f"there is no AWS profile {profile!r}" if profile else str(error),
            hint="`aws configure list-profiles` shows those of ~/.aws/config.",
        )
    if isinstance(error, sdk.NoRegionError):
        return ConfigError(f"no AWS region is given for {operation}", hint=REGION_HINT)
    if isinstance(error, sdk.InvalidRegionError):
        return ConfigError(f"the AWS region is not valid: {error}", hint=REGION_HINT)
    if isinstance(error, sdk.ParamValidationError):
        return ConfigError(f"{operation}: the request is not valid: {error}")
    first_line = str(error).strip().split("\n")[0]
    kind: type[AwsError] = AwsUnreachableError
    hint, lost_answer = "Check the network, the region, and AWS_ENDPOINT_URL if it is set.", True
    if isinstance(error, (sdk.NoCredentialsError, sdk.PartialCredentialsError)):
        kind, text, lost_answer = AwsCredentialsError, f"there are no AWS credentials{_of(profile)}", False
        hint = "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`."
    elif isinstance(error, (sdk.CredentialRetrievalError, sdk.SSOError, sdk.TokenRetrievalError)):
        kind, hint, lost_answer = AwsCredentialsError, _LOGIN, False
        text = f"the AWS credentials{_of(profile)} could not be obtained: {error}"
    elif isinstance(error, (sdk.HTTPClientError, sdk.ConnectionError)):
        text = f"AWS cannot be reached: {first_line}"
        lost_answer = not isinstance(error, (sdk.EndpointConnectionError, sdk.ConnectTimeoutError))
    elif isinstance(error, sdk.BotoCoreError):
        kind, text, hint = AwsError, first_line, ""
    else:  # the answer is not from AWS, such as a proxy's page, or is incomplete
        text = f"the answer cannot be read: {type(error).__name__}: {first_line}"
        hint = "A proxy may have answered in its place, or the connection broke."
    return kind(f"{operation}: {text}", hint=hint, operation=operation, lost_answer=lost_answer)


def _refusal(error: Exception, operation: str, identity: Callable[[], str], profile: str | None) -> AwsError:
    answer = getattr(error, "response", {})
    details = answer.get("Error", {})
    code, message = str(details.get("Code", "")), str(details.get("Message", "")).strip()
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    whose = _of(profile)
    look = f"`aws sts get-caller-identity` shows whether they work. {_LOGIN}"
    kind: type[AwsError] = AwsError
    hint, lost_answer = "", False
    if code in _FORBIDDEN:
        return _denial(message, operation, code, identity)
    if code in _EXPIRED:
        kind, text, hint = AwsCredentialsError, f"the AWS credentials{whose} have expired", _LOGIN
    elif code in _INVALID_CREDENTIALS:
        text = f"AWS does not accept the credentials{whose}: {message or code}"
        kind, hint = AwsCredentialsError, look
    elif code in THROTTLED or status == 429:
        text = f"AWS still throttles the requests ({code or status}) after several attempts"
        kind, hint = AwsThrottledError, "Try again later."
    elif code == "400":  # the answer to a HEAD has no body
        text = f"AWS refuses the request and does not say why; most often the credentials{whose} have expired"
        hint = look
    else:
        text, lost_answer = message or code or f"HTTP status {status}", status >= 500
    return kind(f"{operation}: {text}", hint=hint, operation=operation, code=code, lost_answer=lost_answer)


def _denial(message: str, operation: str, code: str, identity: Callable[[], str]) -> AwsForbiddenError:
    found = _DENIAL.search(message)
    who = (found["who"] if found else None) or identity() or "the identity in use"
    action = found["action"] if found else operation
    resource = f" on {found['resource']}" if found and found["resource"] else ""
    return AwsForbiddenError(
        f"{who} lacks the permission {action}{resource}",
        hint="Have it added to its policy; `shunter doctor` prints the policy that is needed.",
        operation=operation,
        code=code,
    )


def _of(profile: str | None) -> str:
    return f" of the profile {profile!r}" if profile else ""


def failure_kind(error: BaseException) -> str:
    """Classify an error of `translate`: ``expired`` credentials, ``transient``, or ``final``."""
    if isinstance(error, AwsError) and error.code in _EXPIRED:
        return "expired"
    passes = isinstance(error, (AwsThrottledError, AwsUnreachableError))
    return "transient" if passes or (isinstance(error, AwsError) and error.lost_answer) else "final"

"""What goes wrong with AWS, as our errors. The one place that reads the SDK's exceptions."""

from __future__ import annotations

import re

from trainyard.errors import AccessError, BackendError, ConfigError, TrainyardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_FORBIDDEN = {
    *("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized"),
    *("403", "Forbidden"),  # of a HEAD, whose answer has no body
}
_INVALID_CREDENTIALS = {
    "AuthFailure",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_THROTTLED = {
    "LimitExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
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
        code: AWS's own name of the error; "" if there was no answer.
        lost_answer: whether the request may have been carried out all the same.
    """

    def __init__(
        self, message: str, *, hint: str = "", operation: str = "", code: str = "", lost_answer: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.operation = operation
        self.code = code
        self.lost_answer = lost_answer


class AwsCredentialsError(AwsError, AccessError):
    """There are no credentials, or they are no longer or not at all valid."""


class AwsForbiddenError(AwsError, AccessError):
    """The identity lacks a permission."""


class AwsThrottledError(AwsError):
    """Too many requests, even after waiting and trying again."""


class AwsUnreachableError(AwsError):
    """No answer came."""


def missing_sdk(error: ImportError) -> ConfigError:
    """Return the error for an installation without the SDK."""
    return ConfigError(
        f"AWS needs the package {error.name!r}, which is not installed",
        hint="Install it: pip install 'trainyard[aws]'",
    )


def translate(
    error: Exception, operation: str, identity: Callable[[], str] = lambda: "", profile: str | None = None
) -> TrainyardError:
    """Return our error for one of the SDK's.

    Args:
        error: what the SDK raised.
        operation: what was asked for, such as ``batch:SubmitJob``: also the permission that it needs.
        identity: tells who asked; called only where a permission is missing and AWS does not say whose.
        profile: the profile that the credentials come from, if one was named.
    """
    from botocore import exceptions as sdk

    if isinstance(error, TrainyardError):
        return error
    if isinstance(error, sdk.ClientError):
        return _refusal(error, operation, identity, profile)
    if isinstance(error, sdk.ProfileNotFound):
        return ConfigError(
            f"there is no AWS profile {profile!r}" if profile else str(error),
            hint="`aws configure list-profiles` shows those of ~/.aws/config.",
        )
    if isinstance(error, (sdk.NoRegionError, sdk.InvalidRegionError)):
        return ConfigError(
            f"no AWS region is given for {operation}"
            if isinstance(error, sdk.NoRegionError)
            else f"the AWS region is not valid: {error}",
            hint="Give it with -cfg region=us-east-1, AWS_DEFAULT_REGION or the profile.",
        )
    return _without_answer(error, operation, profile)


def _without_answer(error: Exception, operation: str, profile: str | None) -> TrainyardError:
    from botocore import exceptions as sdk

    if isinstance(error, (sdk.NoCredentialsError, sdk.PartialCredentialsError)):
        return AwsCredentialsError(
            f"{operation}: there are no AWS credentials{_of(profile)}",
            hint="Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`.",
            operation=operation,
        )
    if isinstance(error, (sdk.CredentialRetrievalError, sdk.SSOError, sdk.TokenRetrievalError)):
        return AwsCredentialsError(
            f"{operation}: the AWS credentials{_of(profile)} could not be had: {error}",
            hint=_LOGIN,
            operation=operation,
        )
    if isinstance(error, sdk.ParamValidationError):
        return ConfigError(f"{operation}: the request is not valid: {error}")
    if isinstance(error, (sdk.HTTPClientError, sdk.ConnectionError)):
        return AwsUnreachableError(
            f"{operation}: AWS cannot be reached: {_short(error)}",
            hint="Check the network, the region, and AWS_ENDPOINT_URL if it is set.",
            operation=operation,
            lost_answer=not isinstance(error, (sdk.EndpointConnectionError, sdk.ConnectTimeoutError)),
        )
    if isinstance(error, sdk.BotoCoreError):
        return AwsError(f"{operation}: {_short(error)}", operation=operation, lost_answer=True)
    # What comes back is no answer of AWS's: a proxy's page, a connection that broke within it.
    return AwsUnreachableError(
        f"{operation}: the answer cannot be read: {type(error).__name__}: {_short(error)}",
        hint="Something between here and AWS answers in its place, or the connection broke.",
        operation=operation,
        lost_answer=True,
    )


def _refusal(error: Exception, operation: str, identity: Callable[[], str], profile: str | None) -> AwsError:
    answer = getattr(error, "response", {})
    details = answer.get("Error", {})
    code, message = str(details.get("Code", "")), str(details.get("Message", "")).strip()
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _EXPIRED:
        return AwsCredentialsError(
            f"{operation}: the AWS credentials{_of(profile)} have expired",
            hint=_LOGIN,
            operation=operation,
            code=code,
        )
    if code in _FORBIDDEN:
        return _denial(message, operation, code, identity)
    if code in _INVALID_CREDENTIALS:
        return AwsCredentialsError(
            f"{operation}: AWS does not accept the credentials{_of(profile)}: {message or code}",
            hint="`aws sts get-caller-identity` shows whether they work. " + _LOGIN,
            operation=operation,
            code=code,
        )
    if code in _THROTTLED or status == 429:
        return AwsThrottledError(
            f"{operation}: AWS asks for fewer requests ({code or status}), after several attempts",
            hint="Try again in a while.",
            operation=operation,
            code=code,
        )
    if code == "400":  # the answer to a HEAD has no body
        return AwsError(
            f"{operation}: AWS refuses the request and does not say why; most often the credentials"
            f"{_of(profile)} have expired",
            hint="`aws sts get-caller-identity` shows whether they work. " + _LOGIN,
            operation=operation,
            code=code,
        )
    text = message or code or f"HTTP status {status}"
    return AwsError(f"{operation}: {text}", operation=operation, code=code, lost_answer=status >= 500)


def _denial(message: str, operation: str, code: str, identity: Callable[[], str]) -> AwsForbiddenError:
    found = _DENIAL.search(message)
    who = (found["who"] if found else None) or identity() or "the identity in use"
    action = found["action"] if found else operation
    resource = f" on {found['resource']}" if found and found["resource"] else ""
    return AwsForbiddenError(
        f"{who} lacks the permission {action}{resource}",
        hint="Have it added to its policy; `trainyard doctor` prints the policy that is needed.",
        operation=operation,
        code=code,
    )


def _of(profile: str | None) -> str:
    return f" of the profile {profile!r}" if profile else ""


def _short(error: Exception) -> str:
    return str(error).strip().split("\n")[0]

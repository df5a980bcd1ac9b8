"""Errors as the service answers them."""

from __future__ import annotations


class ApiError(Exception):
    """An answer that is an error.

    Args:
        code: such as ``ValidationException``.
        message: the service's words, where they are known.
        status: of HTTP.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


def invalid(message: str) -> ApiError:
    """Return the error for a request that makes no sense."""
    return ApiError("ValidationException", message)


def not_found() -> ApiError:
    """Return the error for a job that does not exist; the service has no other for it."""
    return ApiError("ValidationException", "Requested resource not found.")

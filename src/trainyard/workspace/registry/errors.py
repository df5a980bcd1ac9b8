"""What goes wrong with registries."""

from __future__ import annotations

from trainyard.errors import BackendError


class RegistryError(BackendError):
    """A registry refused something. ``status`` is that of HTTP; 0 if there was no answer."""

    def __init__(self, message: str, *, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class RegistryAuthError(RegistryError):
    """The registry does not know us, or does not let us do this."""


class RegistryUnavailableError(RegistryError):
    """The registry could not be reached, or kept failing, for as long as we were patient."""


class ContentMismatchError(RegistryError):
    """What a registry sent is not what its digest says."""


class CancelledError(RegistryError):
    """Another part of the same push failed, or it was interrupted."""

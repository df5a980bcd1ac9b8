"""What can be wrong with a Docker daemon, or with what it is asked for."""

from __future__ import annotations

from shunter.errors import AccessError, BackendError


class EngineError(BackendError):
    """The daemon answered with an error. ``status`` is HTTP's; the message is the daemon's own."""

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class EngineUnavailableError(BackendError):
    """No daemon answers, or it went away in the middle of an answer. Says nothing of any container."""


class EngineForbiddenError(EngineUnavailableError, AccessError):
    """This user may not use the daemon."""


class NoSubnetLeftError(BackendError):
    """All addresses for networks are in use; those of other jobs become free when the jobs end."""

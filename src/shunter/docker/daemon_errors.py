"""What can be wrong with a Docker daemon."""

from __future__ import annotations

from shunter.errors import AccessError, BackendError


class EngineUnavailableError(BackendError):
    """No daemon answers, or it went away in the middle of an answer. Says nothing of any container."""


class EngineForbiddenError(EngineUnavailableError, AccessError):
    """This user may not use the daemon."""


class NoSubnetLeftError(BackendError):
    """All addresses for networks are in use; those of other jobs become free when the jobs end."""

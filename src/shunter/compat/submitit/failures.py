"""The exceptions of submitit."""

from __future__ import annotations


class UncompletedJobError(RuntimeError):
    """A job has no result: it was cancelled or killed, or has not ended."""


class FailedJobError(UncompletedJobError):
    """The function raised an exception, which is the cause of this one."""


class FailedSubmissionError(RuntimeError):
    """A job could not be submitted; the cause says why."""

"""Handles: ``{scheduler}://{session}/{app_id}``, the name by which a job is reached from anywhere."""

from __future__ import annotations

import re
from typing import NamedTuple

from shunter.errors import MalformedAppHandleException

AppHandle = str

# The greedy session keeps an app id free of slashes even where the session has some (a queue's ARN).
_HANDLE = r"(?P<scheduler>[^:/\s]+)://(?P<session>.*)/(?P<app_id>[^/\s]+)"


class LatestOfSeveral(UserWarning):
    """Says which job a name means that several jobs have."""


class ParsedAppHandle(NamedTuple):
    """The three parts of a handle. The session may be empty."""

    scheduler_backend: str
    session_name: str
    app_id: str

    def __str__(self) -> str:
        return make_app_handle(self.scheduler_backend, self.session_name, self.app_id)


def make_app_handle(scheduler_backend: str, session_name: str, app_id: str) -> AppHandle:
    """Join the parts of a handle."""
    return f"{scheduler_backend}://{session_name}/{app_id}"


def parse_app_handle(app_handle: AppHandle) -> ParsedAppHandle:
    """Split a handle into its parts.

    Raises:
        MalformedAppHandleException: it is not of the form ``scheduler://[session]/app_id``.
    """
    match = re.fullmatch(_HANDLE, app_handle)
    if match is None:
        raise MalformedAppHandleException(
            f"{app_handle!r} is not a job handle: {_what_is_wrong(app_handle)}",
            hint="A handle looks like local_cwd://shunter/train-x1y2z3.",
        )
    return ParsedAppHandle(match["scheduler"], match["session"], match["app_id"])


def _what_is_wrong(text: str) -> str:
    scheduler, separator, rest = text.partition("://")
    if not separator:
        return "it has no '://' after the scheduler"
    if not scheduler:
        return "the scheduler before '://' is missing"
    if "/" not in rest:
        return "it has no '/' between session and app id"
    return "the app id after the last '/' is missing or contains white space"

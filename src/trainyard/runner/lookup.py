"""From the id or handle that a user types to the handle of a job."""

from __future__ import annotations

import re

from trainyard.errors import UnknownAppException, UsageError
from trainyard.specs.handles import parse_app_handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainyard.runner.history import History

MOST_CANDIDATES = 10

# An id with the random suffix of our ids: it is complete.
_WHOLE_ID = re.compile(r"[^/\s]+://.*/[^/\s]+-[23456789bcdfghjkmnpqrtvwxyz]{10}")


def resolve(text: str | None, history: Callable[[], History]) -> str:
    """Return the handle that a text names; see `Runner.resolve_handle`. The history is opened if needed."""
    if text and _WHOLE_ID.fullmatch(text):
        return text
    if text is None or text in ("", "-"):
        return _latest(history())
    scheduler, separator, rest = text.partition("://")
    if not separator:
        return _only(text, text, None, history())
    if history().find(text) is not None:
        return text
    if history().handles(text, limit=1):
        return _only(text, text, None, history())
    if "/" not in rest:
        return _only(text, rest, scheduler, history())
    parse_app_handle(text)  # a job of another machine, or of another user
    return text


def _latest(history: History) -> str:
    record = history.latest()
    if record is None:
        raise UnknownAppException(
            "there is no latest job: the history is empty",
            hint="Start one with `trainyard run`, or name a job by its handle.",
        )
    return record.handle


def _only(text: str, beginning: str, scheduler: str | None, history: History) -> str:
    """Return the handle of the only job with this id, or else whose id begins with it."""
    handles = history.with_id(beginning, scheduler) or history.handles(
        beginning, scheduler, MOST_CANDIDATES + 1
    )
    if not handles:
        raise _unknown(text)
    if len(handles) > 1:
        number = max(len(handles), history.count_handles(beginning, scheduler))
        shown = "".join(f"\n  {handle}" for handle in handles[:MOST_CANDIDATES])
        more = f"\n  and {number - MOST_CANDIDATES} more" if number > MOST_CANDIDATES else ""
        raise UsageError(
            f"{text!r} matches {number} jobs:{shown}{more}",
            hint="Give more of the id, or the complete handle.",
        )
    return handles[0]


def _unknown(text: str) -> UnknownAppException:
    return UnknownAppException(
        f"no job in the history has an id that begins with {text!r}",
        hint="`trainyard list` shows the jobs; name a job that is not listed by its complete handle.",
    )

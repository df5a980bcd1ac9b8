"""From what a person types to the handle of a job."""

from __future__ import annotations

import re

from trainyard.errors import UnknownAppException, UsageError
from trainyard.specs.handles import parse_app_handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainyard.runner.history import History
    from trainyard.runner.records import JobRecord

MOST_CANDIDATES = 10

# An id with the random suffix that ours end in: nobody types half of it by chance.
_WHOLE_ID = re.compile(r"[^/\s]+://.*/[^/\s]+-[23456789bcdfghjkmnpqrtvwxyz]{10}")


def resolve(text: str | None, history: Callable[[], History]) -> str:
    """Return the handle that a text means; see `Runner.resolve_handle`. The history is opened if needed."""
    if text and _WHOLE_ID.fullmatch(text):
        return text
    if text is None or text in ("", "-"):
        return _latest(history())
    scheduler, separator, rest = text.partition("://")
    if not separator:
        return _only(text, history().matching(text))
    if history().find(text) is not None:
        return text
    by_handle = history().matching(text)
    by_id = history().matching(rest, scheduler) if "/" not in rest else []
    if by_handle or by_id:
        return _only(text, by_handle or by_id)
    if "/" not in rest:
        raise _unknown(text)
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


def _only(text: str, records: list[JobRecord]) -> str:
    exact = [record.handle for record in records if text in (record.app_id, record.handle)]
    handles = list(dict.fromkeys(exact or [record.handle for record in records]))
    if not handles:
        raise _unknown(text)
    if len(handles) > 1:
        shown = "".join(f"\n  {handle}" for handle in handles[:MOST_CANDIDATES])
        more = f"\n  and {len(handles) - MOST_CANDIDATES} more" if len(handles) > MOST_CANDIDATES else ""
        raise UsageError(
            f"{text!r} is the beginning of {len(handles)} jobs:{shown}{more}",
            hint="Give more of the id, or the whole handle.",
        )
    return handles[0]


def _unknown(text: str) -> UnknownAppException:
    return UnknownAppException(
        f"no job in the history has an id that begins with {text!r}",
        hint="`trainyard list` shows the jobs; one that is not in it is named by its whole handle.",
    )

"""The replicas that a command is given: ``HANDLE/ROLE/0,1`` and ``ROLE/ID``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shunter.errors import UsageError, did_you_mean
from shunter.specs.limits import MOST_REPLICAS, cut, whole_number

Wanted = tuple[str, "frozenset[int] | None"]


def split_target(text: str) -> tuple[str, list[Wanted]]:
    """Split ``HANDLE[/ROLE[/0,1]]`` into the job and the wanted replicas (an empty list: all).

    The job is a handle, the beginning of an id, ``-`` or nothing.
    """
    scheduler, separator, rest = text.partition("://")
    parts = (rest if separator else text).split("/")
    in_handle = 2 if separator else 1  # session and app id, or the id alone
    if len(parts) > in_handle + 2:
        return text, []
    job = "/".join(parts[:in_handle])
    selection = "/".join(parts[in_handle:]).strip("/")
    return (f"{scheduler}://{job}" if separator else job), [parse_wanted(selection)] if selection else []


def parse_wanted(text: str) -> Wanted:
    """Read ``ROLE``, ``ROLE/0``, ``ROLE/0,2`` or ``ROLE/0-3``.

    Raises:
        UsageError: it is none of these.
    """
    role, slash, ids = text.partition("/")
    if not role or (slash and not ids):
        raise _bad(text)
    return role, _parse_ids(ids, text) if ids else None


def _parse_ids(ids: str, text: str) -> frozenset[int]:
    numbers: set[int] = set()
    for part in ids.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise _bad(text)
        try:
            low, high = (whole_number(number, 0, MOST_REPLICAS) for number in (first, last or first))
        except ValueError as error:
            raise UsageError(f"{cut(text)!r} does not name replicas: {error}") from None
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def _bad(text: str) -> UsageError:
    return UsageError(
        f"{text!r} does not name replicas", hint="Examples: trainer, trainer/0, trainer/0,2, trainer/0-3."
    )


def select(replicas: Sequence[tuple[str, int]], wanted: Iterable[Wanted]) -> list[tuple[str, int]]:
    """Return the wanted replicas in the job's order; all if none are named.

    Raises:
        UsageError: the job has no such role or replica.
    """
    choices = list(wanted)
    if not choices:
        return list(replicas)
    chosen: set[tuple[str, int]] = set()
    for role, ids in choices:
        there = {k for name, k in replicas if name == role}
        if not there:
            roles = dict.fromkeys(name for name, _ in replicas)
            raise UsageError(f"the job has no role {role!r}", hint=did_you_mean(role, roles))
        missing = sorted((ids or frozenset()) - there)
        if missing:
            raise UsageError(
                f"the role {role!r} has no replica {missing[0]}",
                hint=f"It has {len(there)}: {min(there)} to {max(there)}.",
            )
        chosen.update((role, k) for k in (there if ids is None else ids))
    return [replica for replica in replicas if replica in chosen]

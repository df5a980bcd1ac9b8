"""What ships a job's code: planned in a dry run, shipped when the job is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar, cast

from shunter.progress import Progress
from shunter.workspace.manifest import Manifest
from shunter.workspace.selection import Report

T = TypeVar("T")
#: How many times a workspace that is being written to is read.
ATTEMPTS = 3


class Shipment(Protocol):
    """What a scheduler ships for one job. Making one reads files; only `ship` writes anything."""

    @property
    def manifest(self) -> Manifest | None:
        """What is shipped; None if it is nothing but the toolkit."""

    @property
    def report(self) -> Report:
        """What the user should know of it."""

    def plan(self) -> dict[str, Any]:
        """Return what will be shipped, as JSON values that a dry run shows."""

    def ship(self, progress: Progress) -> dict[str, str]:
        """Bring the code to where the job can reach it; what is there is not sent again.

        Returns:
            The references that the plan put into the request -> the exact ones that replace them: an image
            by its digest.

        Raises:
            ShunterError: it could not be brought there. Nothing incomplete is ever used.
        """


def replace_references(value: T, references: Mapping[str, str]) -> T:
    """Return a request with planned references replaced by real ones, in whatever it is nested.

    Only texts that are equal to a planned reference are replaced; the original is left as it is.
    """
    return cast("T", _replaced(value, references)) if references else value


def _replaced(value: Any, references: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return references.get(value, value)
    if isinstance(value, dict):
        return {key: _replaced(item, references) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_replaced(item, references) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: _replaced(getattr(value, field.name), references)
            for field in fields(value)
            if field.init
        }
        return replace(value, **changed)
    return value

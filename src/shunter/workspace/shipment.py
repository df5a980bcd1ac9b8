"""What ships a job's code: planned in a dry run, shipped when the job is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar, cast

from shunter.progress import Progress
from shunter.workspace.manifest import Manifest

T = TypeVar("T")
#: How many times a workspace that is being written to is read.
ATTEMPTS = 3


@dataclass
class Report:
    """What the user should know of a workspace besides its files.

    Attributes:
        problems: paths and what is wrong with them. They are not fatal.
        secrets: files that were left out since they most likely hold a secret.
        left_out: by rule (``git``, an ignore file's name, ``default``) what it left out. A directory stands
            for all that is in it.
        notes: how the files were chosen, where that is not plain.
    """

    problems: list[tuple[str, str]] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: A secret by its path in its project, whose ignore file can name it.
    secret_example: str = ""

    def warnings(self) -> list[str]:
        """Return in words what the user should know."""
        lines = list(self.notes)
        if self.secrets:
            more = f" and {len(self.secrets) - 5} more" if len(self.secrets) > 5 else ""
            lines.append(
                f"left out, since it looks like a secret: {', '.join(self.secrets[:5])}{more}"
                f" (to ship it, name it in .shunterignore: !/{self.secret_example})"
            )
        # links stay as they are, and a job may find what they point to
        lost = [problem for problem in self.problems if not problem[1].startswith("points to ")]
        lines += [f"left out: {path} {what}" for path, what in lost[:5]]
        if len(lost) > 5:
            lines.append(f"{len(lost) - 5} more could not be shipped (`shunter workspace show`)")
        return lines

    def leave_out(self, reason: str, path: str) -> None:
        """Note that a rule left a path out."""
        self.left_out.setdefault(reason, []).append(path)

    def add(self, other: Report, prefix: str) -> None:
        """Take over another project's report, its paths below a prefix."""
        self.problems += [(prefix + path, what) for path, what in other.problems]
        self.secrets += [prefix + path for path in other.secrets]
        self.secret_example = self.secret_example or other.secret_example
        for reason, paths in other.left_out.items():
            self.left_out.setdefault(reason, []).extend(prefix + path for path in paths)
        self.notes += [note for note in other.notes if note not in self.notes]


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

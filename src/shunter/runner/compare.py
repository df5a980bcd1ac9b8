"""What differs between two jobs of the history: code, arguments, options, environment, definition."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shunter.runner.records import JobRecord
from shunter.specs.training import METADATA_KEY, specification
from shunter.workspace.code_store import Store
from shunter.workspace.manifest import Manifest

#: Sections of a comparison, in the order in which they are shown.
SECTIONS = ("arguments", "options", "environment", "job", "origin")
_LONGEST = 60


@dataclass
class FileChange:
    """A path of the workspace that was "added", "removed" or "modified"; contents may be None."""

    path: str
    change: str
    before: bytes | None
    after: bytes | None

    def texts(self) -> tuple[list[str], list[str]] | None:
        """Return the lines before and after; None if either is binary, or no longer stored."""
        if self.before is None or self.after is None or b"\0" in self.before + self.after:
            return None
        old, new = (content.decode(errors="replace").splitlines() for content in (self.before, self.after))
        return old, new


class Comparison:
    """The differences between two jobs.

    Args:
        first: the one job.
        second: the other; it may be planned.
        store: where the code of both is.
        manifest: the code of the second job, if it is not stored yet.

    Attributes:
        first: the one job.
        second: the other.
        code: "same", "changed", or why the code cannot be compared.
        files: what changed in the code.
        values: section -> name -> pair of the old and the new value, None where there was none.
    """

    def __init__(
        self, first: JobRecord, second: JobRecord, store: Store, manifest: Manifest | None = None
    ) -> None:
        self.first = first
        self.second = second
        self.code, self.files = _compare_code(first, second, store, manifest)
        self.values = {
            section: _differences(_facts(first)[section], _facts(second)[section]) for section in SECTIONS
        }

    def __bool__(self) -> bool:
        """Tell whether there are known differences."""
        return self.code == "changed" or any(self.values.values())

    def summary(self) -> Iterator[str]:
        """Return a line for the code and one for each other difference, except the place of submission."""
        if self.code != "same" and not self.code.startswith("unknown"):
            names = ", ".join(file.path for file in self.files)
            yield f"code: {names}" if names else f"code: {self.code}"
        for section in SECTIONS:
            if section == "origin":
                continue
            for name, (old, new) in self.values[section].items():
                yield f"{name}: {_text(old)} -> {_text(new)}"

    def to_json(self) -> dict[str, Any]:
        """Return the differences as JSON values."""
        return {
            "first": self.first.handle,
            "second": self.second.handle,
            "code": {
                "result": self.code,
                "fingerprints": [self.first.fingerprint, self.second.fingerprint],
                "files": [{"path": file.path, "change": file.change} for file in self.files],
            },
            **{
                section: {name: list(pair) for name, pair in differences.items()}
                for section, differences in self.values.items()
            },
        }


def _compare_code(
    first: JobRecord, second: JobRecord, store: Store, manifest: Manifest | None
) -> tuple[str, list[FileChange]]:
    without = [record.handle for record in (first, second) if not record.fingerprint]
    if len(without) == 2:
        return "unknown: neither job has a workspace", []
    if without:
        return f"unknown: {without[0]} has no workspace", []
    if first.fingerprint == second.fingerprint:
        return "same", []
    old = store.manifest(str(first.fingerprint))
    new = manifest or store.manifest(str(second.fingerprint))
    if old is None or new is None:
        gone = first if old is None else second
        return f"changed, but the code of {gone.handle} is no longer stored", []
    return "changed", list(_file_changes(old, new, store))


def _file_changes(old: Manifest, new: Manifest, store: Store) -> Iterator[FileChange]:
    before = {entry.path: entry for entry in old.entries}
    after = {entry.path: entry for entry in new.entries}
    for path in sorted(before.keys() | after.keys()):
        one, other = before.get(path), after.get(path)
        if one == other:
            continue
        change = "added" if one is None else "removed" if other is None else "modified"
        yield FileChange(path, change, _content(one, store), _content(other, store))


def _content(entry: Any, store: Store) -> bytes | None:
    if entry is None:
        return b""
    if entry.kind == "link":
        return f"link to {entry.target}\n".encode(errors="surrogateescape")
    return store.read_blob(entry.digest) if entry.kind == "file" else b""


def _facts(record: JobRecord) -> dict[str, dict[str, Any]]:
    """Return the facts of a job that are compared, by section and name."""
    app = record.app
    roles = {role["name"]: role for role in app.get("roles", [])}
    arguments = record.component_args
    named = arguments if isinstance(arguments, dict) else {"": arguments or []}
    return {
        "arguments": {
            "component": record.component,
            **{f"component {k}".strip(): v for k, v in named.items()},
        }
        | {f"{name}: command": [role["entrypoint"], *role["args"]] for name, role in roles.items()},
        "options": {"scheduler": record.scheduler, **record.cfg},
        "environment": {"python": record.python}
        | {f"{name}: {key}": value for name, role in roles.items() for key, value in role["env"].items()},
        "job": {"name": app.get("name"), **_flat("metadata", app.get("metadata"))}
        | {
            key: value
            for name, role in roles.items()
            for field, nested in _without_command(role).items()
            if field not in ("name", "args", "env", "entrypoint")
            for key, value in _flat(f"{name}: {field}", nested).items()
        },
        "origin": {
            "directory": record.cwd,
            "workspace": record.workspace,
            "commit": record.git_commit,
            "uncommitted changes": record.git_dirty,
            "user": record.user,
            "host": record.host,
            **{f"image of {role}": image for role, image in (record.images or {}).items()},
        },
    }


def _without_command(role: dict[str, Any]) -> dict[str, Any]:
    """Return a role, its training specification without the facts that the role has too."""
    spec = specification(role["metadata"])
    own = {key: spec[key] for key in spec if key not in ("program", "arguments", "host_count")}
    return {**role, "metadata": {**role["metadata"], METADATA_KEY: own}} if spec else role


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Flatten nested objects into names with dots. An empty object counts as absent."""
    if not isinstance(value, dict):
        return {name: value}
    return {
        key: item for inner, nested in value.items() for key, item in _flat(f"{name}.{inner}", nested).items()
    }


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys([*old, *new])
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _text(value: Any) -> str:
    """Return a value for one line."""
    text = "(none)" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."

"""Putting the code of an experiment back into the current directory, without losing anything."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field

from shunter.errors import ConfigError
from shunter.lab import lab_file
from shunter.lab.experiments import current_code
from shunter.lab.lab_file import Lab
from shunter.workspace.code_store import Store
from shunter.workspace.manifest import Entry, Manifest
from shunter.workspace.snapshot import kept_snapshot

_SHOWN = 10


@dataclass
class Restored:
    """What `restore` did.

    Attributes:
        fingerprint: the code that is there now.
        written: paths that were written.
        removed: paths that the experiment did not have, and others of the lab did.
        left: paths that no experiment has had; they stay.
        kept: fingerprint of the code that was there before, if it was kept since no experiment had it.
    """

    fingerprint: str
    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    kept: str = ""


def restore(name: str, target: str = "", *, force: bool = False) -> Restored:
    """Make the code of the current directory that of an experiment; by default of the best one.

    Files that no job gets (ignored ones, Git's) are not touched.

    Args:
        name: the lab's.
        target: the number of an experiment, or ``@FINGERPRINT`` of code that is kept.
        force: also overwrite files whose content no experiment has; the code that is there is kept before.

    Raises:
        ConfigError: there is no such experiment; or content would be lost: nothing was changed.
        WorkspaceError: the code is no longer kept.
    """
    lab, store = lab_file.read(name), Store()
    wanted = kept_snapshot(_fingerprint(lab, target), store).manifest
    current = current_code(may_be_empty=True)
    there = current.manifest.by_path
    known = _known(lab, store)
    result = Restored(wanted.fingerprint)
    differing = [entry for entry in wanted.entries if there.get(entry.path) != entry]
    surplus = [entry for entry in reversed(current.manifest.entries) if entry.path not in wanted.by_path]
    lost = [
        each.path
        for entry in differing
        if (each := there.get(entry.path)) is not None and each.kind != "dir" and _content(each) not in known
    ]
    # what jobs do not get, such as ignored files, is not in the snapshot
    lost += [e.path for e in differing if e.path not in there and e.kind != "dir" and os.path.lexists(e.path)]
    if lost and not force:
        raise ConfigError(
            f"no experiment of {name} has the present content of {_listed(lost)}; nothing was changed",
            hint=f'Try it (shunter lab try {name} "..."), or put it aside; --force keeps a copy.',
        )
    if lost:
        store.add(current)
        result.kept = current.manifest.fingerprint
    for entry in surplus:
        if entry.kind == "dir":
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(entry.path)
        elif _content(entry) in known:
            os.unlink(entry.path)
            result.removed.append(entry.path)
        else:
            result.left.append(entry.path)
    for entry in differing:  # sorted, so that a directory comes before what is in it
        _write(entry, store)
        result.written.append(entry.path)
    return result


def _fingerprint(lab: Lab, target: str) -> str:
    if target.startswith("@"):
        return target[1:]
    if not target:
        if lab.best is None:
            raise ConfigError(f"the lab {lab.name} has no best experiment: its baseline has not succeeded")
        return lab.best.fingerprint
    experiment = lab.numbered(int(target)) if target.isdecimal() else None
    if experiment is not None:
        return experiment.fingerprint
    raise ConfigError(
        f"the lab {lab.name} has no experiment {target!r}", hint=f"`shunter lab {lab.name}` shows them."
    )


def _known(lab: Lab, store: Store) -> set[tuple[str, str]]:
    """Return the content that experiments of the lab have, of files and links."""
    manifests: list[Manifest | None] = [store.manifest(each.fingerprint) for each in lab.experiments]
    return {_content(entry) for manifest in manifests if manifest is not None for entry in manifest.entries}


def _content(entry: Entry) -> tuple[str, str]:
    return entry.kind, entry.digest or entry.target


def _write(entry: Entry, store: Store) -> None:
    """Bring one entry into the current directory, each file whole or not at all."""
    path, partial = entry.path, f"{entry.path}.shunter-new"
    if entry.kind == "dir":
        if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
            os.unlink(path)
        os.makedirs(path, exist_ok=True)
        os.chmod(path, entry.mode)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    if entry.kind == "link":
        os.symlink(entry.target, partial)
    else:
        shutil.copyfile(store.require(entry), partial)
        os.chmod(partial, entry.mode)
    os.replace(partial, path)


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more

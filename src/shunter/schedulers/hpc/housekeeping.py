"""Find what jobs left on shared storage: folders, code that no folder refers to, hosts to avoid."""

from __future__ import annotations

import json
import posixpath
import time
from collections.abc import Iterator, Sequence

from shunter._toolkit import host_ledger
from shunter.schedulers.api import Check
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.shared_folder import job_folder
from shunter.schedulers.hpc.storage import Storage
from shunter.schedulers.responses import Leftover, ListAppResponse
from shunter.specs.status import is_terminal

#: Code that is younger may belong to a job that is being submitted.
SPARED_SECONDS = 86400.0


def leftovers(
    storage: Storage, shared: str, rows: Sequence[ListAppResponse], older_than: float, now: float
) -> list[Leftover]:
    """Return the folders of old jobs, and the unused copies of code, that could be removed.

    Args:
        storage: the shared storage.
        shared: the folder of all jobs and code on it.
        rows: all jobs of this user.
        older_than: seconds; what has been used more recently is left out.
        now: seconds since the epoch.
    """
    ages = {row.app_id: now - (row.ended_at or row.submitted_at or now) for row in rows}
    old = [row.app_id for row in rows if is_terminal(row.state) and ages[row.app_id] >= older_than]
    names = storage.names(posixpath.join(shared, "jobs"))
    removable = [*set(names).intersection(old)]
    folders = [job_folder(shared, app_id) for app_id in removable]
    found = [
        Leftover(folder, folder, ages[app_id], size, app_id, results=has_results)
        for app_id, folder, (size, _, has_results) in zip(
            removable, folders, storage.usage(folders), strict=True
        )
    ]
    return found + _unused_code(storage, shared, names, max(older_than, SPARED_SECONDS), now)


def _unused_code(
    storage: Storage, shared: str, jobs: Sequence[str], older_than: float, now: float
) -> list[Leftover]:
    """Return copies of code that no job with a folder uses."""
    parent = posixpath.join(shared, "code")
    names = storage.names(parent)
    if not names:
        return []
    documents = storage.read([posixpath.join(job_folder(shared, app_id), "job.json") for app_id in jobs])
    used = set()
    for content in documents:
        try:
            used.add(posixpath.basename(str(json.loads(content or b"{}").get("workdir"))))
        except (ValueError, AttributeError):
            return []  # which code that job has is not known
    unused = [posixpath.join(parent, name) for name in names if name not in used]
    return [
        Leftover(path, path, now - changed, size, fingerprint=posixpath.basename(path).partition(".")[0])
        for path, (size, changed, _) in zip(unused, storage.usage(unused), strict=True)
        if changed and now - changed >= older_than
    ]


def avoided_hosts(storage: Storage, shared: str, now: float) -> Iterator[Check]:
    """Show which hosts retries avoid, and why: those on which jobs failed by no fault of their own.

    Args:
        storage: the shared storage.
        shared: the folder of all jobs and code on it.
        now: seconds since the epoch.
    """
    path = posixpath.join(shared, host_ledger.FILE_NAME)
    (content,) = storage.read([path])
    ledger = host_ledger.parse(content or b"{}", now)
    for failure_class, hosts in sorted(ledger.items()):
        for host, entry in sorted(hosts.items(), key=lambda item: -float(item[1]["last"])):
            last = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(entry["last"])))
            yield Check(
                "host",
                None,
                f"{host}: {entry.get('count')} x {failure_class}, last at {last} "
                f"in {entry.get('job')}: {entry.get('evidence')}",
                f"Retries avoid it for {host_ledger.KEPT_SECONDS / 3600:g} hours from then. "
                f"If it works again, remove it from {path}.",
            )


def shared_folder_check(commands: Commands, shared: str) -> Check:
    """Check whether the shared folder can be written, and is on storage that nodes could see."""
    answer = commands.shell('mkdir -p -- "$1" && [ -w "$1" ] && df -P -T -- "$1" | tail -n 1', [shared])
    hint = "The nodes must see it by this path; another one: -cfg shared_dir=DIR."
    if answer.code != 0:
        return Check("shared folder", False, f"{shared} cannot be written: {answer.words}", hint)
    kind = [*answer.text.split(), "?", "?"][1]
    return Check("shared folder", None if kind in ("tmpfs", "overlay") else True, f"{shared} ({kind})", hint)

"""Hosts on which jobs failed through no fault of the jobs, in a file on a cluster's shared storage.

The file is a JSON object. For each failure class (``node``) and host it has ``count``, ``first`` and ``last``
(seconds since the epoch), and ``job`` and ``evidence`` of the last failure. Entries older than `KEPT_SECONDS`
are dropped, and each class has at most `MOST_HOSTS`. It may be edited or removed at any time.
"""

from __future__ import annotations

import json
import os
from typing import Any

FILE_NAME = "bad-hosts.json"
KEPT_SECONDS = 24 * 3600.0
MOST_HOSTS = 64
_LONGEST_EVIDENCE = 200


def parse(text: str | bytes, now: float) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what a ledger says: by class and host; {} if it cannot be read."""
    try:
        found = json.loads(text)
        return {
            str(name): {
                str(host): entry
                for host, entry in hosts.items()
                if isinstance(entry, dict) and now - float(entry.get("last", 0)) < KEPT_SECONDS
            }
            for name, hosts in found.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def read(path: str, now: float) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what the ledger in a file says; {} without one."""
    try:
        with open(path, "rb") as file:
            return parse(file.read(1 << 20), now)
    except OSError:
        return {}


def add(path: str, failure_class: str, host: str, job: str, evidence: str, now: float) -> None:
    """Note that a job failed on a host.

    Raises:
        OSError: the file cannot be written.
    """
    ledger = read(path, now)
    hosts = ledger.setdefault(failure_class, {})
    entry = hosts.setdefault(host, {"count": 0, "first": now})
    entry.update(
        count=int(entry.get("count", 0)) + 1, last=now, job=job, evidence=evidence[:_LONGEST_EVIDENCE]
    )
    latest = sorted(hosts, key=lambda name: float(hosts[name]["last"]), reverse=True)
    ledger[failure_class] = {name: hosts[name] for name in latest[:MOST_HOSTS]}
    partial = f"{path}.{os.uname().nodename}.{os.getpid()}.tmp"
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump({name: hosts for name, hosts in ledger.items() if hosts}, file, indent=1)
    os.replace(partial, path)

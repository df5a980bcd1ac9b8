"""Helpers of ``torchx log`` (``torchx.cli.cmd_log``)."""

from __future__ import annotations

import re
import sys

from shunter.specs.app import AppDef

ID_FORMAT = "SCHEDULER://[SESSION_NAME]/APP_ID/[ROLE_NAME/[REPLICA_IDS,...]]"
_IDENTIFIER = re.compile(r"[^:/]+://[^/]*/[^/]+(/[^/]+(/(\d+,?)+)?)?")


def validate(job_identifier: str) -> None:
    """Exit with a message unless the identifier names a job, a role or replicas of a role."""
    if not _IDENTIFIER.fullmatch(job_identifier):
        print(f"{job_identifier} is not of the form {ID_FORMAT}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


def find_role_replicas(app: AppDef, role_name: str | None) -> list[tuple[str, int]]:
    """Return the replicas of a job, or of one role, as pairs of role and index."""
    roles = [role for role in app.roles if role_name is None or role.name == role_name]
    return [(role.name, index) for role in roles for index in range(role.num_replicas)]


def _prefix_line(prefix: str, line: str) -> str:
    """Put a prefix before a line, and after each line feed or carriage return within it."""
    if "\r" in line:
        line = line.replace("\r", f"\r{prefix}")
    if "\n" in line[:-1]:
        line = line[:-1].replace("\n", f"\n{prefix}") + line[-1:]
    return line if line.startswith("\r") else f"{prefix}{line}"

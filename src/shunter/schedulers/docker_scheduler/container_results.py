"""Results that are in a container, or in what is mounted there: `docker cp` gives them as a tar archive."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from typing import IO, Any

from shunter.docker.command import DockerCommand, DockerRefused
from shunter.schedulers.archived_results import ArchivedResults

#: An archive without members.
_EMPTY = bytes(1024)


def is_mounted(path: str, mounts: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether a directory of a container is the user's own mount, or in one."""
    targets = [str(mount.get("dst_path", "")).rstrip("/") for mount in mounts]
    return any(f"{path}/".startswith(f"{target}/") for target in targets if target)


def results_in(docker: DockerCommand, container: str, folder: str) -> ArchivedResults:
    """Return the results in a directory of a container, which may have ended.

    Args:
        docker: the command for its daemon.
        container: its name.
        folder: path in it, whose last name is ``model``, ``output`` or ``checkpoints``.
    """

    def open_file() -> IO[bytes]:
        copy = tempfile.TemporaryFile(prefix="shunter-results-")  # noqa: SIM115 - the archive keeps it
        try:
            docker.print_to(copy, "cp", f"{container}:{folder}", "-")
        except DockerRefused as error:
            if not error.is_absent:
                raise
            copy.truncate(0)
            copy.write(_EMPTY)
        copy.seek(0)
        return copy

    return ArchivedResults(f"{container}:{folder}", open_file)

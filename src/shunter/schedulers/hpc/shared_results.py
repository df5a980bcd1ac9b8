"""Results on the storage of a cluster that is reached over ssh."""

from __future__ import annotations

from collections.abc import Iterator

from shunter.schedulers.hpc.storage import Storage
from shunter.schedulers.kept_results import INTERNAL, ResultFile, part_of

#: How much of a file one command reads.
PART_BYTES = 8 << 20


class SharedResults:
    """Results below a base directory of the storage.

    Args:
        storage: the cluster's storage.
        base: the directory that has ``model``, ``output`` and ``checkpoints``.
    """

    def __init__(self, storage: Storage, base: str) -> None:
        self.base = base
        self.left_out: list[str] = []
        self._storage = storage

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedResults) and self.base == other.base

    def __hash__(self) -> int:
        return hash(self.base)

    @property
    def checkpoints_at(self) -> str:
        """Where other jobs of the cluster can read its checkpoints."""
        return f"{self.base}/checkpoints"

    def files(self) -> list[ResultFile]:
        """Return the files; links to other results are files, links to elsewhere are left out."""
        self.left_out = []
        found = []
        for path, size, modified in self._storage.results(self.base):
            if path == INTERNAL:
                continue
            if size is None:
                self.left_out.append(f"{path} is a link that leads out of the results, or no file")
            else:
                found.append(ResultFile(path, size, modified))
        return sorted(found, key=lambda file: file.path)

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the content of a file from a byte on, a part with each command."""
        part_of(path)
        while part := self._storage.read_result(self.base, path, offset, PART_BYTES):
            yield part
            offset += len(part)

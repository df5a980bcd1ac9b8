"""Small results that a job without an output wrote to its log at its end."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator

from shunter._toolkit import logged_results
from shunter.errors import ConfigError
from shunter.progress import Progress, Silent
from shunter.schedulers.archived_results import ArchivedResults
from shunter.schedulers.kept_results import ResultFile


class LoggedResults:
    """The results in a replica's log, which is read when they are first needed.

    Args:
        name: the replica, in messages.
        backend: name of the scheduler.
        has_ended: whether the job has ended.
        read_log: returns the lines of the log.
    """

    def __init__(
        self, name: str, backend: str, has_ended: bool, read_log: Callable[[], Iterable[str]]
    ) -> None:
        self.name = name
        self._backend = backend
        self._has_ended = has_ended
        self._read_log = read_log
        self._archive: ArchivedResults | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoggedResults) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def left_out(self) -> list[str]:
        """What was too large for the log, or is not to be fetched."""
        return self._archive.left_out if self._archive else []

    def prepare(self, progress: Progress) -> None:
        """Read the log.

        Raises:
            ConfigError: it has no results that are complete.
            BackendError: it cannot be read.
        """
        if self._archive is None:
            self._archive = self._read(progress)

    def files(self) -> list[ResultFile]:
        """Return the files. Raises as `prepare`."""
        return self._loaded().files()

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the content of a file from a byte on. Raises as `prepare`."""
        return self._loaded().read(path, offset)

    def _loaded(self) -> ArchivedResults:
        self.prepare(Silent())
        assert self._archive is not None
        return self._archive

    def _read(self, progress: Progress) -> ArchivedResults:
        progress.step(f"reading the log of {self.name}")
        results = logged_results.read(self._encoded(progress))
        if results is not None:
            packed = results.packed
            archive = ArchivedResults(f"the log of {self.name}", lambda: io.BytesIO(packed))
            archive.left_out += [f"{each} is too large for the log, and is lost" for each in results.left_out]
            return archive
        if not self._has_ended:
            raise ConfigError(
                f"{self.name} has no output, so its results come with its log when it has ended",
                hint="Wait for its end. With --output s3://BUCKET/PREFIX they are sent to storage.",
            )
        raise kept_nowhere(
            self._backend,
            self.name,
            ", and its log has none that are complete: they were too large for it (then it says so), or "
            "the job was killed before it had written them",
        )

    def _encoded(self, progress: Progress) -> Iterator[bytes]:
        size = 0
        for line in self._read_log():
            data = line.encode("utf-8", "replace")
            size += len(data)
            progress.advance("log", size, 0)
            yield data


def kept_nowhere(backend: str, name: str, more: str = "") -> ConfigError:
    """Return the error for results that cannot be had."""
    return ConfigError(
        f"{backend} keeps the results of {name} nowhere that can be read from here{more}",
        hint="Have the next job send them to storage: run it with --output s3://BUCKET/PREFIX, or with a "
        "directory that it and this machine share.",
    )

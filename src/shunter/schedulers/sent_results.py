"""Results that a job sent to its output: a folder of S3, or a directory that this machine sees."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import IO, Any

from shunter._toolkit.store import Item, Place, Store, StoreError
from shunter.errors import BackendError, ConfigError, UnknownAppException
from shunter.progress import Progress, Silent
from shunter.schedulers.archived_results import ArchivedResults
from shunter.schedulers.fetched_archive import fetched_archive
from shunter.schedulers.kept_results import BLOCK, ResultFile, no_such_file, part_of
from shunter.schedulers.lines import check_replicas
from shunter.schedulers.logged_results import LoggedResults, kept_nowhere
from shunter.schedulers.responses import DescribeAppResponse
from shunter.specs.status import is_terminal
from shunter.specs.training import checkpoints_in

#: Archives that jobs send, and the directory whose files each has; the first two names are SageMaker's.
_ARCHIVES = {"model.tar.gz": "model", "output.tar.gz": "output/data", "results.tar.gz": ""}
#: Folders that jobs send, unpacked.
_FOLDERS = {
    "model": "model",
    "data": "output/data",
    "output": "output/data",
    "intermediate": "output/intermediate",
}


def results_sent_by(
    backend: str,
    app_id: str,
    response: DescribeAppResponse | None,
    role_name: str,
    k: int,
    client: Callable[[], Any] | None = None,
    read_log: Callable[[], Iterable[str]] | None = None,
) -> SentResults | LoggedResults:
    """Return the results that a replica sent to its job's output, or wrote to its log at its end.

    Args:
        backend: name of the scheduler.
        app_id: the job.
        response: what the scheduler says of it; None if it does not know it.
        role_name: the replica's role.
        k: its index.
        client: makes the client of S3; by default one is made as boto3 does by itself.
        read_log: returns the lines of the replica's log, if jobs without an output write small results there.

    Raises:
        UnknownAppException: there is no such job.
        UsageError: it has no such replica.
        ConfigError: it has no output and no log, or an output that this machine does not see.
    """
    if response is None:
        raise UnknownAppException(f"{backend} has no job {app_id!r}")
    known = [(role.role, replica.id) for role in response.roles_statuses for replica in role.replicas]
    roles = {role.name: role for role in response.roles}
    known += [(role.name, index) for role in response.roles for index in range(role.num_replicas)]
    check_replicas(app_id, [(role_name, k)], dict.fromkeys(known))
    uri = response.results or ""
    if not uri:
        if read_log is None:
            raise kept_nowhere(backend, app_id)
        return LoggedResults(f"{app_id} {role_name}/{k}", backend, is_terminal(response.state), read_log)
    if uri.startswith("/") and not os.path.exists(uri):
        raise ConfigError(
            f"the results of {app_id} are in {uri}, which this machine does not see, or does not yet",
            hint="Mount that storage here, or use --output s3://BUCKET/PREFIX.",
        )
    role = roles.get(role_name)
    checkpoints = checkpoints_in(role.env) if role is not None else ""
    store = Store(warn=lambda text: None, client=client)
    if uri.endswith("-*/output"):  # each point of a sweep has its own
        return SentResults(f"{uri.removesuffix('*/output')}{k}/output", "", checkpoints, store)
    return SentResults(uri, f"algo-{k + 1}" if k else "", checkpoints, store)


class SentResults:
    """Results below a URI, packed or not.

    Args:
        uri: the folder that has ``model.tar.gz`` or ``model/``: ``s3://bucket/prefix/JOB/output``, or a path;
            "" if it has sent nothing but checkpoints.
        host: name of the host whose results they are; "" for the first one, or for all where they are merged.
        checkpoints: URI of its checkpoints; "" if they went nowhere.
        store: reads S3.
    """

    def __init__(self, uri: str, host: str = "", checkpoints: str = "", store: Store | None = None) -> None:
        self.uri = uri
        self.host = host
        self.checkpoints = checkpoints
        self.left_out: list[str] = []
        self._store = store or Store(warn=lambda text: None)
        self._archives: dict[str, tuple[Item, ArchivedResults]] = {}
        self._items: dict[str, Item] = {}
        self._progress: Progress = Silent()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SentResults):
            return False
        return (self.uri, self.host, self.checkpoints) == (other.uri, other.host, other.checkpoints)

    def __hash__(self) -> int:
        return hash((self.uri, self.host, self.checkpoints))

    @property
    def checkpoints_at(self) -> str:
        """Where other jobs can read its checkpoints; "" if nowhere."""
        return self.checkpoints

    def prepare(self, progress: Progress) -> None:
        """Fetch the archives. Raises as `files`."""
        self._progress = progress
        self.files()

    def files(self) -> list[ResultFile]:
        """Return the files that have been sent so far.

        Raises:
            BackendError: they cannot be read.
            StateStoreError: an archive cannot be written to this machine's disk.
        """
        self.left_out = []
        self._items = {}
        seen: dict[str, Item] = {}
        for item in self._listing(self.uri) if self.uri else ():
            path = item.path
            if self.host:
                host, _, path = path.partition("/")
                if host != self.host:
                    continue
            if path in _ARCHIVES:
                seen[path] = item
            folder, _, rest = path.partition("/")
            if folder in _FOLDERS and rest:
                self._items[f"{_FOLDERS[folder]}/{rest}"] = item
        if self.checkpoints:
            for item in self._listing(self.checkpoints):
                self._items[f"checkpoints/{item.path}"] = item
        self._keep_archives(seen)
        found = [ResultFile(path, item.size, _time_of(item)) for path, item in self._items.items()]
        for item, archive in self._archives.values():
            # toolkits pack without times: a file is as old as its archive
            found += [replace(file, modified=file.modified or _time_of(item)) for file in archive.files()]
            self.left_out += archive.left_out
        return found

    def _listing(self, uri: str) -> list[Item]:
        place = Place.of(uri)
        if not place.bucket and not os.path.exists(place.key):
            return []
        try:
            return self._store.listing(place)
        except StoreError as error:
            raise BackendError(f"cannot list the results: {error}") from error

    def _keep_archives(self, seen: dict[str, Item]) -> None:
        """Keep what was read of archives that are still the same, and forget the others."""
        for name in list(self._archives):
            before = self._archives[name][0]
            now = seen.get(name)
            if now is None or (now.tag, now.size, _time_of(now)) != (
                before.tag,
                before.size,
                _time_of(before),
            ):
                del self._archives[name]
        for name, item in seen.items():
            if name not in self._archives:
                archive = ArchivedResults(item.place.uri, self._opener(item), _ARCHIVES[name])
                self._archives[name] = item, archive

    def _opener(self, item: Item) -> Callable[[], IO[bytes]]:
        def open_file() -> IO[bytes]:
            if not item.place.bucket:
                return open(item.place.key, "rb")
            return fetched_archive(self._store, item, self._progress)

        return open_file

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the content of a file from a byte on."""
        part_of(path)
        if not self._items and not self._archives:
            self.files()
        if path in self._items:
            yield from self._read(self._items[path], offset)
            return
        for _, archive in self._archives.values():
            if not archive.prefix or path.startswith(f"{archive.prefix}/"):
                yield from archive.read(path, offset)
                return
        raise no_such_file(path)

    def _read(self, item: Item, offset: int) -> Iterator[bytes]:
        try:
            if item.place.bucket:
                yield from self._store.chunks(item.place, item.tag, offset)
                return
            with open(item.place.key, "rb") as file:
                file.seek(offset)
                while block := file.read(BLOCK):
                    yield block
        except (StoreError, OSError) as error:
            raise BackendError(f"cannot read {item.place.uri}: {error}") from error


def _time_of(item: Item) -> float | None:
    if item.place.bucket:
        return float(item.modified)
    try:
        return os.stat(item.place.key).st_mtime
    except OSError:
        return None

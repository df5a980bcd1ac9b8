"""Input channels: complete before the start (File, FastFile), as they are read (Pipe), or file systems.

FastFile shows the same files as File, read-only. Those of S3 are nevertheless fetched before the start: what
the service does lazily needs a special file system. What one job has fetched, the next one finds in the cache
(`object_cache`).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from shunter._toolkit import channels, store
from shunter.schedulers.sagemaker_local_scheduler.filesystems import directory_of
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import Host, Shown, channels_of, input_mode
from shunter.schedulers.sagemaker_local_scheduler.object_cache import Cache
from shunter.schedulers.sagemaker_local_scheduler.pipes import Piece, PipeFeeder

T = TypeVar("T")


class Channels:
    """The channels of a job.

    Args:
        request: the request.
        hosts: all hosts.
        data_store: where they come from.
        views: directory of this machine for data that hosts can only read.
        file_systems: a directory of this machine for the id of every file system.
    """

    def __init__(
        self,
        request: dict[str, Any],
        hosts: list[Host],
        data_store: store.Store,
        views: str,
        file_systems: dict[str, str],
    ) -> None:
        self._request = request
        self._hosts = hosts
        self._store = data_store
        self._views = views
        self._file_systems = file_systems
        self._cache = Cache(data_store)
        self._listings: dict[str, list[store.Item]] = {}
        self._lines: dict[str, list[list[Piece]]] = {}

    def prepare(self, host: Host, data: str) -> dict[str, Shown]:
        """Bring a host's File channels into its directory ``input/data``.

        Returns the channels that are shown from another directory of this machine.

        Raises:
            store.StoreError: a channel's data cannot be fetched.
            Cancelled: the job is to end.
        """
        shown = {}
        for channel in channels_of(self._request, host):
            name, mode = channel["ChannelName"], input_mode(self._request, channel)
            folder = os.path.join(data, name)
            source = channel["DataSource"].get("FileSystemDataSource")
            if source is not None:
                os.makedirs(folder, exist_ok=True)
                path = directory_of(source, self._file_systems)
                shown[name] = Shown(path, source["FileSystemAccessMode"] == "ro")
            elif mode == "FastFile":
                os.makedirs(folder, exist_ok=True)
                shown[name] = Shown(self._local_folder(channel) or self._view(channel, host), True)
            elif mode == "File":
                channels.copy_items(self._share(channel, host), folder, self._copy)
        return shown

    def _view(self, channel: dict[str, Any], host: Host) -> str:
        """Return a directory with the files of a channel; the hosts that get the same share it."""
        sharer = host.name if _is_sharded(channel) else "all"
        folder = os.path.join(self._views, channel["ChannelName"], sharer)
        if not os.path.isdir(folder):
            channels.copy_items(self._share(channel, host), folder, self._link)
        return folder

    def _copy(self, item: store.Item, path: str) -> None:
        """Give a host its own copy of a file."""
        (self._cache.copy if item.place.bucket else self._store.download)(item, path)

    def _link(self, item: store.Item, path: str) -> None:
        """Give a host a file that it can only read."""
        (self._cache.link if item.place.bucket else self._store.download)(item, path)

    def pipes(self, host: Host, data: str) -> list[PipeFeeder]:
        """Return the feeders of a host's Pipe channels; their first fifos exist."""
        feeders = []
        for channel in channels_of(self._request, host):
            if input_mode(self._request, channel) == "Pipe":
                self._pieces(channel)  # mistakes in them are reported before the start
                feeders.append(
                    PipeFeeder(
                        os.path.join(data, channel["ChannelName"]),
                        self._epochs(channel, host),
                        self._store,
                        is_gzip=channel.get("CompressionType") == "Gzip",
                        is_record_io=channel.get("RecordWrapperType") == "RecordIO",
                    )
                )
        return feeders

    def _epochs(self, channel: dict[str, Any], host: Host) -> Callable[[int], Sequence[Piece]]:
        """Return a function that gives a host's pieces of an epoch, in order.

        All pieces are ordered first, and then distributed: from a shuffled channel, a host gets different
        ones in each epoch.
        """

        def pieces(epoch: int) -> Sequence[Piece]:
            groups = self._shared(channel, host, _shuffled(self._pieces(channel), channel, epoch))
            return [piece for group in groups for piece in group]

        return pieces

    def _pieces(self, channel: dict[str, Any]) -> Sequence[Sequence[Piece]]:
        """Return the pieces of a channel in groups: one object each, or the attributes of one line each."""
        source = channel["DataSource"]["S3DataSource"]
        if source["S3DataType"] != "AugmentedManifestFile":
            return [[item] for item in self._listing(channel)]
        name = channel["ChannelName"]
        if name not in self._lines:
            place = store.Place.parse(source["S3Uri"])
            self._lines[name] = read_augmented(self._store, place, source["AttributeNames"])
        return self._lines[name]

    def _share(self, channel: dict[str, Any], host: Host) -> Sequence[store.Item]:
        """Return the objects of a channel that a host gets."""
        return self._shared(channel, host, self._listing(channel))

    def _shared(self, channel: dict[str, Any], host: Host, everything: Sequence[T]) -> Sequence[T]:
        source = channel["DataSource"].get("S3DataSource", {})
        sharers = [other for other in self._hosts if channel in channels_of(self._request, other)]
        distribution = source.get("S3DataDistributionType", channels.REPLICATED)
        return channels.share(everything, distribution, sharers.index(host), len(sharers))

    def _listing(self, channel: dict[str, Any]) -> list[store.Item]:
        name = channel["ChannelName"]
        if name not in self._listings:
            source = channel["DataSource"]["S3DataSource"]
            place = store.Place.parse(source["S3Uri"])
            if source["S3DataType"] == "ManifestFile":
                items = read_manifest(self._store, place)
            else:
                items = self._store.listing(place, is_prefix=True)
            if not items:
                raise store.StoreError(f"no object is found for the channel {name!r} at {source['S3Uri']}")
            self._listings[name] = items
        return self._listings[name]

    def _local_folder(self, channel: dict[str, Any]) -> str:
        source = channel["DataSource"]["S3DataSource"]
        place = store.Place.parse(source["S3Uri"])
        is_whole = source["S3DataType"] == "S3Prefix" and not _is_sharded(channel)
        return place.key if is_whole and not place.bucket and os.path.isdir(place.key) else ""


def _is_sharded(channel: dict[str, Any]) -> bool:
    source = channel["DataSource"].get("S3DataSource", {})
    return bool(source.get("S3DataDistributionType") == channels.SHARDED)


def _shuffled(groups: Sequence[T], channel: dict[str, Any], epoch: int) -> list[T]:
    """Return the groups in the order of an epoch, which depends only on the channel's seed and the epoch."""
    order = list(groups)
    config = channel.get("ShuffleConfig")
    if config:
        random.Random(f"{config['Seed']}:{epoch}").shuffle(order)
    return order


# ---- manifests: files that name the objects of a channel
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html; those with attributes:
# https://docs.aws.amazon.com/sagemaker/latest/dg/augmented-manifest.html

_REFERENCE = "-ref"


def read_manifest(data_store: store.Store, place: store.Place) -> list[store.Item]:
    """Return the objects that a manifest names, in its order.

    Raises:
        store.StoreError: it is not a manifest, or names an object that does not exist.
    """
    text = b"".join(data_store.chunks(place))
    try:
        head, *names = json.loads(text)
        prefix = head["prefix"]
        places = [(name, store.Place.parse(prefix + name)) for name in names]
    except (ValueError, TypeError, KeyError) as error:
        raise store.StoreError(f"{place.uri} is not a manifest: {error}") from None
    items = []
    for name, where in places:
        found = [item for item in data_store.listing(where, is_prefix=True) if item.place == where]
        if not found:
            raise store.StoreError(f"{place.uri} names {where.uri}, which does not exist")
        if ".." in name.split("/"):
            raise store.StoreError(f"{place.uri} names {name!r}, which would leave the channel's directory")
        items.append(store.Item(where, found[0].size, name.lstrip("/"), found[0].tag, found[0].modified))
    return items


def read_augmented(data_store: store.Store, place: store.Place, attributes: list[str]) -> list[list[Piece]]:
    """Return what each line of an augmented manifest brings: its attributes, in the order that is asked for.

    The value of an attribute whose name ends in ``-ref`` is the URI of an object, which is fetched when its
    turn comes. A text is brought without its quotes, any other value as JSON.

    Raises:
        store.StoreError: it is not an augmented manifest, or a line lacks an attribute.
    """
    text = b"".join(data_store.chunks(place)).decode("utf-8", "surrogateescape")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_line(f"line {number} of {place.uri}", line, attributes) for number, line in lines]


def _line(where: str, line: str, attributes: Iterable[str]) -> list[Piece]:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise store.StoreError(f"{where} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise store.StoreError(f"{where} is not a JSON object")
    missing = [name for name in attributes if name not in values]
    if missing:
        raise store.StoreError(f"{where} has no attribute {', '.join(map(repr, missing))}")
    return [_piece(where, name, values[name]) for name in attributes]


def _piece(where: str, name: str, value: Any) -> Piece:
    if not name.endswith(_REFERENCE):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return text.encode("utf-8", "surrogateescape")
    if not isinstance(value, str):
        raise store.StoreError(
            f"{where}: the attribute {name!r} is {value!r}, which is not the URI of an object"
        )
    try:
        place = store.Place.parse(value)
    except store.StoreError as error:
        raise store.StoreError(f"{where}: the attribute {name!r}: {error}") from None
    return store.Item(place, 0, name)

"""Input channels: whole before the start (File, FastFile), as they are read (Pipe), or shown where they lie.

FastFile shows the same files as File, read-only. Those of S3 are fetched before the start all the same: what
the service does lazily needs a file system of its own. What one job has fetched, the next one does not: see
`cache`.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from trainyard.schedulers.aws.sagemaker_local.data.cache import Cache
from trainyard.schedulers.aws.sagemaker_local.data.filesystems import directory_of
from trainyard.schedulers.aws.sagemaker_local.data.manifests import Piece, read_augmented, read_manifest
from trainyard.schedulers.aws.sagemaker_local.data.objects import (
    Item,
    Objects,
    Place,
    StoreFailure,
    in_parallel,
)
from trainyard.schedulers.aws.sagemaker_local.data.pipes import PipeFeeder
from trainyard.schedulers.aws.sagemaker_local.hosts.layout import Host, Shown, channels_of, input_mode

T = TypeVar("T")


class Channels:
    """The channels of a job.

    Args:
        request: the request.
        hosts: all hosts.
        objects: the store.
        views: directory of this machine in which data are put together that are only shown.
        file_systems: a directory of this machine for the id of every file system.
    """

    def __init__(
        self,
        request: dict[str, Any],
        hosts: list[Host],
        objects: Objects,
        views: str,
        file_systems: dict[str, str],
    ) -> None:
        self._request = request
        self._hosts = hosts
        self._objects = objects
        self._views = views
        self._file_systems = file_systems
        self._cache = Cache(objects)
        self._listings: dict[str, list[Item]] = {}
        self._lines: dict[str, list[list[Piece]]] = {}

    def prepare(self, host: Host, data: str) -> dict[str, Shown]:
        """Bring a host's File channels into its directory ``input/data``.

        Returns the channels that are shown from another directory of this machine.

        Raises:
            StoreFailure: a channel's data are not to be had.
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
                os.makedirs(folder, exist_ok=True)
                in_parallel(functools.partial(self._bring, folder, False), self._share(channel, host))
        return shown

    def _view(self, channel: dict[str, Any], host: Host) -> str:
        """Return a directory with the files of a channel; the hosts that get the same share it."""
        sharer = host.name if _is_sharded(channel) else "all"
        folder = os.path.join(self._views, channel["ChannelName"], sharer)
        if not os.path.isdir(folder):
            os.makedirs(folder)
            in_parallel(functools.partial(self._bring, folder, True), self._share(channel, host))
        return folder

    def _bring(self, folder: str, is_fixed: bool, item: Item) -> None:
        self._objects.check()
        path = os.path.join(folder, item.path)
        if not item.place.bucket:
            self._objects.fetch(item, path)
        elif is_fixed:
            self._cache.link(item, path)
        else:
            self._cache.copy(item, path)

    def pipes(self, host: Host, data: str) -> list[PipeFeeder]:
        """Return what feeds a host's Pipe channels; their first fifos exist."""
        feeders = []
        for channel in channels_of(self._request, host):
            if input_mode(self._request, channel) == "Pipe":
                self._pieces(channel)  # what is wrong with them is told before the start
                feeders.append(
                    PipeFeeder(
                        os.path.join(data, channel["ChannelName"]),
                        self._epochs(channel, host),
                        self._objects,
                        is_gzip=channel.get("CompressionType") == "Gzip",
                        is_record_io=channel.get("RecordWrapperType") == "RecordIO",
                    )
                )
        return feeders

    def _epochs(self, channel: dict[str, Any], host: Host) -> Callable[[int], Sequence[Piece]]:
        """Return what gives a host's pieces of an epoch, in order.

        The order of all is made first, and then shared out: with a shuffled channel, a host gets others in
        each epoch.
        """

        def pieces(epoch: int) -> Sequence[Piece]:
            groups = self._shared(channel, host, _shuffled(self._pieces(channel), channel, epoch))
            return [piece for group in groups for piece in group]

        return pieces

    def _pieces(self, channel: dict[str, Any]) -> Sequence[Sequence[Piece]]:
        """Return what a channel brings: an object each, or the attributes of a line each."""
        source = channel["DataSource"]["S3DataSource"]
        if source["S3DataType"] != "AugmentedManifestFile":
            return [[item] for item in self._listing(channel)]
        name = channel["ChannelName"]
        if name not in self._lines:
            place = Place.parse(source["S3Uri"])
            self._lines[name] = read_augmented(self._objects, place, source["AttributeNames"])
        return self._lines[name]

    def _share(self, channel: dict[str, Any], host: Host) -> list[Item]:
        """Return the objects of a channel that a host gets."""
        return self._shared(channel, host, self._listing(channel))

    def _shared(self, channel: dict[str, Any], host: Host, everything: list[T]) -> list[T]:
        if not _is_sharded(channel):
            return everything
        sharers = [other for other in self._hosts if channel in channels_of(self._request, other)]
        return everything[sharers.index(host) :: len(sharers)]

    def _listing(self, channel: dict[str, Any]) -> list[Item]:
        name = channel["ChannelName"]
        if name not in self._listings:
            source = channel["DataSource"]["S3DataSource"]
            place = Place.parse(source["S3Uri"])
            if source["S3DataType"] == "ManifestFile":
                items = read_manifest(self._objects, place)
            else:
                items = self._objects.listing(place)
            if not items:
                raise StoreFailure(f"no object is found for the channel {name!r} at {source['S3Uri']}")
            self._listings[name] = items
        return self._listings[name]

    def _local_folder(self, channel: dict[str, Any]) -> str:
        source = channel["DataSource"]["S3DataSource"]
        place = Place.parse(source["S3Uri"])
        is_whole = source["S3DataType"] == "S3Prefix" and not _is_sharded(channel)
        return place.key if is_whole and not place.bucket and os.path.isdir(place.key) else ""


def _is_sharded(channel: dict[str, Any]) -> bool:
    source = channel["DataSource"].get("S3DataSource", {})
    return bool(source.get("S3DataDistributionType") == "ShardedByS3Key")


def _shuffled(groups: Sequence[T], channel: dict[str, Any], epoch: int) -> list[T]:
    """Return what a channel brings in an epoch's order, which depends on the channel's seed alone."""
    order = list(groups)
    config = channel.get("ShuffleConfig")
    if config:
        random.Random(f"{config['Seed']}:{epoch}").shuffle(order)
    return order

"""Input channels: whole before the start (File, FastFile), or as they are read (Pipe).

FastFile shows the same files as File, read-only. They are fetched before the start all the same: what the
service does lazily needs a file system of its own.
"""

from __future__ import annotations

import functools
import json
import os
import random
from typing import Any

from trainyard.schedulers.aws.sagemaker_local.layout import Host, channels_of, input_mode
from trainyard.schedulers.aws.sagemaker_local.objects import (
    Item,
    Objects,
    Place,
    StoreFailure,
    copy_file,
    in_parallel,
)
from trainyard.schedulers.aws.sagemaker_local.pipes import PipeFeeder


class Channels:
    """The channels of a job.

    Args:
        request: the request.
        hosts: all hosts.
        objects: the store.
    """

    def __init__(self, request: dict[str, Any], hosts: list[Host], objects: Objects) -> None:
        self._request = request
        self._hosts = hosts
        self._objects = objects
        self._listings: dict[str, list[Item]] = {}

    def prepare(self, host: Host, data: str) -> dict[str, str]:
        """Bring a host's File and FastFile channels into its directory ``input/data``.

        Returns the FastFile channels that can be shown as they lie on this machine: name -> directory.

        Raises:
            StoreFailure: a channel's data are not to be had.
            Cancelled: the job is to end.
        """
        shown = {}
        for channel in channels_of(self._request, host):
            mode = input_mode(self._request, channel)
            folder = os.path.join(data, channel["ChannelName"])
            if mode == "Pipe":
                continue
            os.makedirs(folder, exist_ok=True)
            source = self._local_folder(channel)
            if mode == "FastFile" and source:
                shown[channel["ChannelName"]] = source
                continue
            items = self._share(channel, host)
            in_parallel(functools.partial(self._bring, folder), items)
        return shown

    def _bring(self, folder: str, item: Item) -> None:
        self._objects.check()
        self._objects.fetch(item, os.path.join(folder, item.path))

    def copy_between(self, host: Host, source: str, target: str) -> None:
        """Copy channels that another host has got already, where all hosts get the same."""
        for channel in channels_of(self._request, host):
            folder = os.path.join(source, channel["ChannelName"])
            if _is_sharded(channel) or not os.path.isdir(folder):
                continue
            for where, _, names in os.walk(folder):
                into = os.path.join(target, os.path.relpath(where, source))
                os.makedirs(into, exist_ok=True)
                for name in names:
                    self._objects.check()
                    copy_file(os.path.join(where, name), os.path.join(into, name))

    def pipes(self, host: Host, data: str) -> list[PipeFeeder]:
        """Return what feeds a host's Pipe channels; their first fifos exist."""
        feeders = []
        for channel in channels_of(self._request, host):
            if input_mode(self._request, channel) == "Pipe":
                items = self._share(channel, host)
                feeders.append(
                    PipeFeeder(
                        os.path.join(data, channel["ChannelName"]),
                        functools.partial(_shuffled, items, channel),
                        self._objects,
                        is_gzip=channel.get("CompressionType") == "Gzip",
                        is_record_io=channel.get("RecordWrapperType") == "RecordIO",
                    )
                )
        return feeders

    def _share(self, channel: dict[str, Any], host: Host) -> list[Item]:
        """Return the objects of a channel that a host gets."""
        items = self._listing(channel)
        if not _is_sharded(channel):
            return items
        sharers = [other for other in self._hosts if channel in channels_of(self._request, other)]
        return items[sharers.index(host) :: len(sharers)]

    def _listing(self, channel: dict[str, Any]) -> list[Item]:
        name = channel["ChannelName"]
        if name not in self._listings:
            source = channel["DataSource"]["S3DataSource"]
            place = Place.parse(source["S3Uri"])
            if source["S3DataType"] == "ManifestFile":
                items = self._manifest(place)
            else:
                items = self._objects.listing(place)
            if not items:
                raise StoreFailure(f"no object is found for the channel {name!r} at {source['S3Uri']}")
            self._listings[name] = items
        return self._listings[name]

    def _manifest(self, place: Place) -> list[Item]:
        text = b"".join(self._objects.chunks(place))
        try:
            head, *names = json.loads(text)
            prefix = head["prefix"]
            places = [(name, Place.parse(prefix + name)) for name in names]
        except (ValueError, TypeError, KeyError) as error:
            raise StoreFailure(f"{place.uri} is not a manifest: {error}") from None
        items = []
        for name, where in places:
            found = [item for item in self._objects.listing(where) if item.place == where]
            if not found:
                raise StoreFailure(f"{place.uri} names {where.uri}, which does not exist")
            if ".." in name.split("/"):
                raise StoreFailure(f"{place.uri} names {name!r}, which would leave the channel's directory")
            items.append(Item(where, found[0].size, name.lstrip("/")))
        return items

    def _local_folder(self, channel: dict[str, Any]) -> str:
        source = channel["DataSource"]["S3DataSource"]
        place = Place.parse(source["S3Uri"])
        is_whole = source["S3DataType"] == "S3Prefix" and not _is_sharded(channel)
        return place.key if is_whole and not place.bucket and os.path.isdir(place.key) else ""


def _is_sharded(channel: dict[str, Any]) -> bool:
    source = channel["DataSource"].get("S3DataSource", {})
    return bool(source.get("S3DataDistributionType") == "ShardedByS3Key")


def _shuffled(items: list[Item], channel: dict[str, Any], epoch: int) -> list[Item]:
    """Return the objects in an epoch's order, which depends on the channel's seed alone."""
    config = channel.get("ShuffleConfig")
    if not config:
        return items
    order = list(items)
    random.Random(f"{config['Seed']}:{epoch}").shuffle(order)
    return order

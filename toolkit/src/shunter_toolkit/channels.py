"""Puts the data of a channel where the contract says: linked, copied or downloaded, sharded on request."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from . import kernel, log
from .errors import ConfigError
from .store import Item, Place, Store, copy_file, in_parallel

T = TypeVar("T")

REPLICATED = "FullyReplicated"
SHARDED = "ShardedByS3Key"
LINK, COPY = "link", "copy"


def share(everything: Sequence[T], distribution: str, host: int, hosts: int) -> Sequence[T]:
    """Return one host's part of a channel: everything, or with ``ShardedByS3Key`` every n-th item."""
    return everything[host::hosts] if distribution == SHARDED else everything


def copy_items(items: Sequence[Item], folder: str, put: Callable[[Item, str], None]) -> None:
    """Put every item at its path below a folder, several at the same time."""
    os.makedirs(folder, exist_ok=True)
    in_parallel(lambda item: put(item, os.path.join(folder, item.path)), items)


@dataclass
class Channel:
    """One channel of a job document.

    Args:
        name: its name; the data appears in ``input/data/<name>``.
        uri: ``s3://bucket/prefix``, ``file:///path`` or a path.
        mode: for local data, ``link`` (default) or ``copy``.
        distribution: ``FullyReplicated`` (default) or ``ShardedByS3Key``.
        content_type: noted in ``inputdataconfig.json``.
    """

    name: str
    uri: str
    mode: str = LINK
    distribution: str = REPLICATED
    content_type: str = ""

    def __post_init__(self) -> None:
        name, mode, distribution = self.name, self.mode, self.distribution
        if mode not in (LINK, COPY):
            raise ConfigError(f"Channel {name!r}: mode must be link or copy, not {mode!r}.")
        if distribution not in (REPLICATED, SHARDED):
            raise ConfigError(
                f"Channel {name!r}: distribution must be {REPLICATED} or {SHARDED}, not {distribution!r}."
            )
        if not name or "/" in name or name in (".", ".."):
            raise ConfigError(f"Channel {name!r}: a channel's name is one path segment, such as training.")

    def config(self) -> dict[str, Any]:
        """The channel as an entry of ``inputdataconfig.json``."""
        entry = {
            "TrainingInputMode": "File",
            "S3DistributionType": self.distribution,
            "RecordWrapperType": "None",
        }
        if self.content_type:
            entry["ContentType"] = self.content_type
        return entry

    def prepare(self, target: str, host: int, hosts: int) -> None:
        """Put the data in place.

        Args:
            target: the channel's directory.
            host: this host's number among those that share the data, from 0.
            hosts: how many hosts share it.

        Raises:
            ConfigError: there is nothing at the URI.
            StoreError: it cannot be read.
        """
        started = time.monotonic()
        place = Place.of(self.uri)
        if not place.bucket and not os.path.exists(place.key):
            raise ConfigError(
                f"Channel {self.name!r}: there is nothing at {place.key}. Mount it there or change its uri."
            )
        if os.path.islink(target):
            os.unlink(target)
        is_whole_folder = not place.bucket and self.distribution == REPLICATED and os.path.isdir(place.key)
        if is_whole_folder and self.mode == LINK and not os.path.exists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(place.key, target)
            return
        if is_whole_folder and os.path.realpath(place.key) == os.path.realpath(target):
            return
        store = Store()
        items = store.listing(place)
        if not items and not is_whole_folder:
            raise ConfigError(
                f"Channel {self.name!r}: there is nothing at {self.uri}. Check the bucket and the prefix."
            )
        mine = share(items, self.distribution, host, hosts)
        copy_items(mine, target, _downloads(store) if place.bucket else self._local_file)
        size = sum(item.size for item in mine) / 1e6
        seconds = time.monotonic() - started
        log.info(f"Channel {self.name}: {len(mine)} of {len(items)} files, {size:.1f} MB in {seconds:.1f} s")

    def _local_file(self, item: Item, target: str) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.lexists(target):
            os.unlink(target)
        if self.mode == LINK:
            os.symlink(item.place.key, target)
        else:
            copy_file(item.place.key, target)


def _downloads(store: Store) -> Callable[[Item, str], None]:
    """Return a function that fetches an item unless a file of its size and tag is there already."""

    def download(item: Item, path: str) -> None:
        is_there = os.path.isfile(path) and os.path.getsize(path) == item.size
        if not (is_there and kernel.tag_of(path) == item.tag):
            store.download(item, path)
            # if the file system cannot store the tag, the item will be fetched again next time
            with contextlib.suppress(OSError):
                kernel.set_tag(path, item.tag)

    return download


def restore(place: Place, folder: str, store: Store | None = None) -> int:
    """Bring earlier checkpoints back into a folder; return how many files there were.

    Raises:
        StoreError: the store refused.
        Cancelled: the job is to end.
    """
    os.makedirs(folder, exist_ok=True)
    if not place.bucket and not os.path.isdir(place.key):
        return 0
    store = store or Store()
    items = [item for item in store.listing(place) if not item.path.endswith(".partial")]
    copy_items(items, folder, _downloads(store) if place.bucket else store.download)
    return len(items)

"""Puts the data of a channel where the contract says: linked, copied or downloaded, sharded if asked."""

from __future__ import annotations

import contextlib
import os
import time

from . import kernel, log, store
from .errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REPLICATED = "FullyReplicated"
SHARDED = "ShardedByS3Key"
LINK, COPY = "link", "copy"


class Channel:
    """One channel of a job document.

    Args:
        name: its name; the data appears in ``input/data/<name>``.
        uri: ``s3://bucket/prefix``, ``file:///path`` or a path.
        mode: for local data, ``link`` (default) or ``copy``.
        distribution: ``FullyReplicated`` (default) or ``ShardedByS3Key``.
        content_type: noted in ``inputdataconfig.json``.
    """

    def __init__(
        self, name: str, uri: str, mode: str = LINK, distribution: str = REPLICATED, content_type: str = ""
    ) -> None:
        if mode not in (LINK, COPY):
            raise ConfigError(f"Channel {name!r}: mode must be link or copy, not {mode!r}.")
        if distribution not in (REPLICATED, SHARDED):
            raise ConfigError(
                f"Channel {name!r}: distribution must be {REPLICATED} or {SHARDED}, not {distribution!r}."
            )
        if not name or "/" in name or name in (".", ".."):
            raise ConfigError(f"Channel {name!r}: a channel's name is one path segment, such as training.")
        self.name = name
        self.uri = uri
        self.mode = mode
        self.distribution = distribution
        self.content_type = content_type

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
            host: this host's place among those that share the data, from 0.
            hosts: how many share it.

        Raises:
            ConfigError: there is nothing at the URI.
            StoreError: it cannot be read.
        """
        started = time.monotonic()
        scheme, _, prefix = store.split_uri(self.uri)
        if scheme == "file" and not os.path.exists(prefix):
            raise ConfigError(
                f"Channel {self.name!r}: there is nothing at {prefix}. Mount it there or change its uri."
            )
        _remove_link(target)
        if scheme == "file" and self.distribution == REPLICATED and os.path.isdir(prefix):
            self._whole_folder(prefix, target)
            return
        origin = store.open_store(self.uri)
        items = origin.listing(prefix)
        if not items:
            raise ConfigError(
                f"Channel {self.name!r}: there is nothing at {self.uri}. Check the bucket and the prefix."
            )
        mine = items[host::hosts] if self.distribution == SHARDED else items
        os.makedirs(target, exist_ok=True)
        if scheme == "file":
            for item in mine:
                self._one_file(item.key, os.path.join(target, store.relative_key(item, prefix)))
        else:
            _download(origin, mine, prefix, target)
        size = sum(item.size for item in mine) / 1e6
        seconds = time.monotonic() - started
        log.info(f"Channel {self.name}: {len(mine)} of {len(items)} files, {size:.1f} MB in {seconds:.1f} s")

    def _whole_folder(self, source: str, target: str) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if self.mode == LINK and not os.path.exists(target):
            os.symlink(source, target)
        elif os.path.realpath(source) != os.path.realpath(target):
            os.makedirs(target, exist_ok=True)
            for item in store.FolderStore().listing(source):
                self._one_file(item.key, os.path.join(target, os.path.relpath(item.key, source)))

    def _one_file(self, source: str, target: str) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.lexists(target):
            os.unlink(target)
        if self.mode == LINK:
            os.symlink(source, target)
        else:
            import shutil

            shutil.copy2(source, target)


def _download(origin: store.Store, items: list[store.Item], prefix: str, target: str) -> None:
    """Fetch what is not there yet: a file of the right size and tag from an earlier attempt stays."""

    def fetch(item: store.Item) -> None:
        path = os.path.join(target, store.relative_key(item, prefix))
        if not (
            os.path.isfile(path) and os.path.getsize(path) == item.size and kernel.tag_of(path) == item.tag
        ):
            origin.download(item.key, path)
            _mark(path, item.tag)

    store.in_parallel(fetch, items)


def _mark(path: str, tag: str) -> None:
    """Note on the file itself which content it is; where the file system cannot, it is fetched again next
    time.
    """
    with contextlib.suppress(OSError):
        kernel.set_tag(path, tag)


def _remove_link(target: str) -> None:
    if os.path.islink(target):
        os.unlink(target)


def restore(uri: str, folder: str) -> int:
    """Bring earlier checkpoints back into a folder; return how many files there were.

    Raises:
        StoreError: the store refused.
    """
    os.makedirs(folder, exist_ok=True)
    scheme, _, prefix = store.split_uri(uri)
    origin = store.open_store(uri)
    items = origin.listing(prefix)
    if scheme == "file":
        store.in_parallel(
            lambda item: origin.download(item.key, os.path.join(folder, store.relative_key(item, prefix))),
            items,
        )
    else:
        _download(origin, items, prefix, folder)
    return len(items)

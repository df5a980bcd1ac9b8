"""Where channels come from and results go: S3 through boto3, or a folder that this container sees."""

from __future__ import annotations

import os
import time

from . import log, resources
from .errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    T = TypeVar("T")

THREADS = 16
ATTEMPTS = 5
_BLOCK = 1024 * 1024


class Item:
    """One object: its key, size in bytes, and the store's tag of its content (an MD5 where it is 32 hex
    digits).
    """

    def __init__(self, key: str, size: int, tag: str) -> None:
        self.key = key
        self.size = size
        self.tag = tag.strip('"')


def split_uri(uri: str) -> tuple[str, str, str]:
    """Split into scheme, bucket and key: ``s3://b/p/q`` -> ("s3", "b", "p/q"); a path has scheme "file".

    Raises:
        StoreError: another scheme, or no bucket.
    """
    scheme, found, rest = uri.partition("://")
    if not found:
        return "file", "", os.path.abspath(uri)
    if scheme == "file":
        return "file", "", os.path.abspath(rest)
    if scheme == "s3":
        bucket, _, key = rest.partition("/")
        if bucket:
            return "s3", bucket, key
    raise StoreError(f"Cannot use {uri!r}: give a path, file:///path or s3://bucket/prefix.")


def open_store(uri: str) -> Store:
    """The store that a URI lies in.

    Raises:
        StoreError: unknown scheme, or no client library for it in the image.
    """
    scheme, bucket, _ = split_uri(uri)
    return S3Store(bucket) if scheme == "s3" else FolderStore()


def join(prefix: str, *parts: str) -> str:
    """Join key parts with single slashes."""
    return "/".join([prefix.rstrip("/"), *parts]) if prefix else "/".join(parts)


class Store:
    """The three things that the toolkit asks of a store. Keys are full: the store has no current folder."""

    def listing(self, prefix: str) -> list[Item]:
        """What lies under a prefix taken as a folder, or the one object of that key; sorted by key."""
        raise NotImplementedError

    def download(self, key: str, path: str) -> None:
        """Fetch one object to a file, which appears complete or not at all."""
        raise NotImplementedError

    def upload(self, path: str, key: str) -> None:
        """Store a file under a key, which shows the old content or the new, never a part."""
        raise NotImplementedError


class FolderStore(Store):
    """Keys are absolute paths of this file system."""

    def listing(self, prefix: str) -> list[Item]:
        """See :meth:`Store.listing`."""
        if os.path.isfile(prefix):
            return [Item(prefix, os.path.getsize(prefix), "")]
        paths = [os.path.join(where, name) for where, _, names in os.walk(prefix) for name in names]
        return [Item(path, os.path.getsize(path), "") for path in sorted(paths) if os.path.isfile(path)]

    def download(self, key: str, path: str) -> None:
        """See :meth:`Store.download`."""
        self._copy(key, path)

    def upload(self, path: str, key: str) -> None:
        """See :meth:`Store.upload`."""
        self._copy(path, key)

    def _copy(self, source: str, target: str) -> None:
        import shutil

        partial = f"{target}.partial-{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
            shutil.copy2(source, partial)
            os.replace(partial, target)
        except OSError as error:
            raise StoreError(f"Cannot copy {source} to {target}: {error}.") from None


class S3Store(Store):
    """One S3 bucket.

    Credentials, region and endpoint come from boto3's usual places, or ``S3_ENDPOINT_URL``.
    """

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        resources.load_site_packages()
        try:
            import boto3  # type: ignore[import-not-found, import-untyped, unused-ignore]
            import botocore.config  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError:
            raise StoreError(
                f"Cannot reach s3://{bucket}: this image has no boto3. "
                "Add it (`pip install boto3`) in the image."
            ) from None
        settings = botocore.config.Config(
            max_pool_connections=THREADS, retries={"mode": "standard", "max_attempts": 5}
        )
        try:
            self._client: Any = boto3.client(
                "s3", endpoint_url=os.environ.get("S3_ENDPOINT_URL"), config=settings
            )
        except Exception as error:
            raise StoreError(f"Cannot reach s3://{bucket}: {error}") from None

    def listing(self, prefix: str) -> list[Item]:
        """See :meth:`Store.listing`. Every page is read."""
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        items = self._list(folder)
        if not items and prefix and not prefix.endswith("/"):
            items = [item for item in self._list(prefix) if item.key == prefix]
        return items

    def _list(self, prefix: str) -> list[Item]:
        def pages() -> list[Item]:
            paginator = self._client.get_paginator("list_objects_v2")
            return [
                Item(entry["Key"], entry["Size"], entry["ETag"])
                for page in paginator.paginate(Bucket=self.bucket, Prefix=prefix)
                for entry in page.get("Contents", ())
                if not entry["Key"].endswith("/")
            ]

        return sorted(self._asked(f"list s3://{self.bucket}/{prefix}", pages), key=lambda item: item.key)

    def download(self, key: str, path: str) -> None:
        """See :meth:`Store.download`.

        What an earlier attempt fetched of the same content is not fetched again.
        """
        where = f"fetch s3://{self.bucket}/{key}"
        head = self._asked(where, lambda: self._client.head_object(Bucket=self.bucket, Key=key))
        item = Item(key, head["ContentLength"], head["ETag"])
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        partial = f"{path}.{item.tag[:16]}.partial"
        for attempt in range(ATTEMPTS):
            try:
                self._append(item, partial)
                break
            except Exception as error:
                if attempt == ATTEMPTS - 1 or _is_refusal(error):
                    raise StoreError(f"Cannot {where}: {error}") from None
                log.warning(
                    f"Interrupted at {_size(partial)} of {item.size} bytes, going on: {where} ({error})"
                )
                time.sleep(0.1 * 2**attempt)
        if _is_md5(item.tag) and "ServerSideEncryption" not in head:
            self._verify(item, partial, where)
        os.replace(partial, path)

    def _append(self, item: Item, partial: str) -> None:
        """Fetch what is still missing of an object."""
        have = _size(partial)
        if have > item.size:
            os.unlink(partial)
            have = 0
        if have == item.size and os.path.exists(partial):
            return
        span = {"Range": f"bytes={have}-"} if have else {}
        answer = self._client.get_object(Bucket=self.bucket, Key=item.key, IfMatch=item.tag, **span)
        with open(partial, "ab") as file:
            for block in answer["Body"].iter_chunks(_BLOCK):
                file.write(block)
        if _size(partial) != item.size:
            raise OSError(f"{_size(partial)} bytes came instead of {item.size}")

    def _verify(self, item: Item, partial: str, where: str) -> None:
        import hashlib

        digest = hashlib.md5()  # the store's own tag, to find damage; not a protection against anybody
        with open(partial, "rb") as file:
            for block in iter(lambda: file.read(_BLOCK), b""):
                digest.update(block)
        if digest.hexdigest() != item.tag:
            os.unlink(partial)
            raise StoreError(
                f"Cannot {where}: the checksum is {digest.hexdigest()}, not {item.tag}. Run the job again."
            )

    def upload(self, path: str, key: str) -> None:
        """See :meth:`Store.upload`. Large files go up in parts."""
        where = f"store {path} as s3://{self.bucket}/{key}"
        self._asked(where, lambda: self._client.upload_file(path, self.bucket, key))

    def _asked(self, where: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except Exception as error:
            hint = " Check the bucket, the prefix and the job's permissions." if _is_refusal(error) else ""
            raise StoreError(f"Cannot {where}: {error}.{hint}") from None


def _is_refusal(error: Exception) -> bool:
    """Whether asking again cannot help: the store answered, with 4xx."""
    status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return bool(400 <= status < 500 and status != 429)


def _is_md5(tag: str) -> bool:
    return len(tag) == 32 and all(c in "0123456789abcdef" for c in tag)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def in_parallel(work: Callable[[T], None], items: Iterable[T], threads: int = THREADS) -> None:
    """Do the work for every item on a few threads; the first error is raised, and what has not begun is
    dropped.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    with ThreadPoolExecutor(threads, thread_name_prefix="trainyard-store") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def relative_key(item: Item, prefix: str) -> str:
    """The path of an object below a prefix, safe to join to a folder.

    Raises:
        StoreError: the key would leave the folder.
    """
    if item.key == prefix:
        return os.path.basename(item.key)
    relative = item.key[len(prefix.rstrip("/")) :].lstrip("/") if prefix else item.key
    if any(part in ("..", "") for part in relative.split("/")):
        raise StoreError(
            f"Refused to fetch {item.key!r}: as a path it would not stay inside the channel's directory."
        )
    return relative

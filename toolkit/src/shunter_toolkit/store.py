"""Reads and writes a job's data: in S3 through boto3, or in files that this process can access.

All data is moved here: the toolkit uses it inside the job, the launcher's ``sagemaker_local`` around the job.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import IO, Any, TypeVar
from urllib.parse import unquote

from . import kernel, log, resources
from .errors import StoreError as StoreError

T = TypeVar("T")

THREADS = 16
#: How many times a broken download is resumed without a byte of progress.
ATTEMPTS = 5
#: How many seconds a store may be unreachable.
PATIENCE = 20.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
BLOCK = 1 << 20


class Cancelled(Exception):
    """The job is being stopped, so the operation in progress was abandoned."""


@dataclass(frozen=True)
class Place:
    """A place in a store.

    Args:
        bucket: of S3; "" for files.
        key: the object's key, or an absolute path.
    """

    bucket: str
    key: str

    @classmethod
    def parse(cls, uri: str) -> Place:
        """Read ``s3://bucket/key``, ``file:///path`` or ``/path``.

        Raises:
            StoreError: it is something else.
        """
        scheme, found, rest = uri.partition("://")
        if not found and uri.startswith("/"):
            return cls("", os.path.abspath(uri))
        if scheme == "file":
            return cls("", os.path.abspath(_unquoted(rest)))
        if scheme == "s3":
            bucket, _, key = rest.partition("/")
            if bucket:
                return cls(bucket, key)
        raise StoreError(f"Cannot use {uri!r}: give /path, file:///path or s3://bucket/prefix.")

    @classmethod
    def of(cls, uri: str) -> Place:
        """Read the same, or a path that may be relative to the current directory."""
        return cls.parse(uri if "://" in uri else os.path.abspath(uri))

    def join(self, *parts: str) -> Place:
        """Return a place below this one."""
        return Place(self.bucket, "/".join([self.key.rstrip("/"), *parts]) if self.key else "/".join(parts))

    @property
    def uri(self) -> str:
        """The place as a URI."""
        return f"s3://{self.bucket}/{self.key}" if self.bucket else f"file://{self.key}"


def _unquoted(path: str) -> str:
    plain = unquote(path)
    return path if os.path.exists(path) and not os.path.exists(plain) else plain


@dataclass(eq=False)
class Item:
    """An object or a file.

    Args:
        place: where it is.
        size: in bytes.
        path: below what was listed.
        tag: the ETag of S3 (an MD5 where it is 32 hexadecimal digits); "" for a file.
        modified: when S3 says it was written, in seconds since the epoch.
    """

    place: Place
    size: int
    path: str
    tag: str = ""
    modified: int = 0

    def __post_init__(self) -> None:
        self.tag = self.tag.strip('"')


class Store:
    """Reads and writes objects and files, and tries again while S3 is unreachable.

    Credentials, region and endpoint come from boto3's usual places, or ``S3_ENDPOINT_URL``.

    Args:
        patience: how many seconds S3 may be unreachable.
        cancelled: set when the job is being stopped; downloads in progress are then abandoned.
        region: region of S3 where the environment names none.
        warn: called with messages about what is tried again.
        client: makes the client of S3; by default it is made of what the environment says.
    """

    def __init__(
        self,
        patience: float = PATIENCE,
        cancelled: threading.Event | None = None,
        region: str | None = None,
        warn: Callable[[str], None] = log.warning,
        client: Callable[[], Any] | None = None,
    ) -> None:
        self.patience = patience
        self.cancelled = cancelled or threading.Event()
        self._region = region
        self._warn = warn
        self._make = client or self._make_client
        self._lock = threading.Lock()
        self._made: Any = None

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make_client(self) -> Any:
        resources.load_site_packages()
        try:
            import boto3  # type: ignore[import-not-found, import-untyped, unused-ignore]
            from botocore.config import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
                Config,
            )
        except ImportError:
            raise StoreError(
                "Cannot reach S3: boto3 is not installed here. Install it (`pip install boto3`); for a "
                "container, in its image."
            ) from None
        settings = Config(
            max_pool_connections=2 * THREADS,
            connect_timeout=5,
            read_timeout=30,
            retries={"mode": "standard", "max_attempts": 2},
        )
        try:
            session = boto3.Session()
            return session.client(
                "s3",
                region_name=session.region_name or self._region,
                endpoint_url=os.environ.get("S3_ENDPOINT_URL"),
                config=settings,
            )
        except Exception as error:
            raise StoreError(f"Cannot reach S3: {error}") from error

    @property
    def endpoint(self) -> str:
        """The endpoint of S3."""
        return str(self._client.meta.endpoint_url)

    # ---- reading

    def listing(self, place: Place, *, is_prefix: bool = False) -> list[Item]:
        """Return the objects or files of a place taken as a folder, or the one object there; sorted by path.

        Args:
            place: the folder or object.
            is_prefix: whether to include all objects whose keys begin with it (``train/x`` too for
                ``s3://bucket/tr``), like SageMaker's ``S3Prefix``. Objects in the place as a folder are named
                relative to it, others by what follows the last ``/`` of the place.

        Raises:
            StoreError: it cannot be listed, or two objects would have the same path.
        """
        if not place.bucket:
            return sorted(_files(place.key), key=lambda item: item.path)
        folder = f"{place.key.rstrip('/')}/" if place.key else ""
        found = self._entries(place.bucket, place.key if is_prefix else folder)
        if not found and not is_prefix and not place.key.endswith("/"):
            found = [entry for entry in self._entries(place.bucket, place.key) if entry["Key"] == place.key]
        items: dict[str, Item] = {}
        for entry in found:
            cut = len(folder) if entry["Key"].startswith(folder) else place.key.rfind("/") + 1
            item = _item(place.bucket, entry, cut)
            other = items.setdefault(item.path, item)
            if other is not item:
                raise StoreError(f"{other.place.uri} and {item.place.uri} would both be {item.path}")
        return sorted(items.values(), key=lambda item: item.path)

    def _entries(self, bucket: str, prefix: str) -> list[dict[str, Any]]:
        def pages() -> list[dict[str, Any]]:
            paginator = self._client.get_paginator("list_objects_v2")
            return [
                entry
                for page in paginator.paginate(Bucket=bucket, Prefix=prefix)
                for entry in page.get("Contents", ())
                if not entry["Key"].endswith("/")
            ]

        return self.persist(f"list s3://{bucket}/{prefix}", pages)

    def find(self, place: Place) -> Item:
        """Return one object of S3.

        Raises:
            StoreError: it is not there.
        """
        head = self.persist(f"fetch {place.uri}", lambda: self._head(place))
        return Item(place, head["ContentLength"], os.path.basename(place.key), head["ETag"])

    def _head(self, place: Place) -> Any:
        return self._client.head_object(Bucket=place.bucket, Key=place.key)

    def chunks(self, place: Place, tag: str = "", start: int = 0) -> Iterator[bytes]:
        """Yield the content of an object or file; of an object, only if it still is what the tag names.

        Args:
            place: where it is.
            tag: its ETag; "" for whatever is there.
            start: the byte to begin with.

        Raises:
            StoreError: it cannot be read, or has changed.
        """
        if not place.bucket:
            try:
                with open(place.key, "rb") as file:
                    while block := file.read(BLOCK):
                        yield block
            except OSError as error:
                raise StoreError(f"Cannot fetch {place.uri}: {error.strerror or error}") from error
            return
        done, failures = start, 0
        while True:
            answer = self._part(place, tag, done)
            tag = answer["ETag"]
            try:
                for block in answer["Body"].iter_chunks(BLOCK):
                    done += len(block)
                    failures = 0
                    yield block
            except Exception as error:
                failures += 1
                if failures == ATTEMPTS:
                    raise StoreError(f"Cannot fetch {place.uri}: {_plain(error)}") from error
                self._warn(f"Interrupted after {done} bytes, going on: fetch {place.uri} ({_plain(error)})")
                self.cancelled.wait(FIRST_PAUSE * 2 ** (failures - 1))
            else:
                return

    def _part(self, place: Place, tag: str, start: int) -> Any:
        """Ask for an object from a byte on, if it still is what the tag names."""
        conditions = {"IfMatch": tag} if tag else {}
        if start:
            conditions["Range"] = f"bytes={start}-"
        return self.persist(
            f"fetch {place.uri}",
            lambda: self._client.get_object(Bucket=place.bucket, Key=place.key, **conditions),
        )

    def write(self, item: Item, file: IO[bytes], start: int = 0) -> None:
        """Write an object's content, from a byte on, to a file.

        Raises:
            StoreError: it cannot be read, or has changed since it was listed.
            Cancelled: the job is to end.
        """
        count = start
        for block in self.chunks(item.place, item.tag, start):
            self.raise_if_cancelled()
            file.write(block)
            count += len(block)
        if count != item.size:
            raise StoreError(
                f"{item.place.uri} changed while it was fetched: {count} bytes came instead of {item.size}."
            )

    def download(self, item: Item, path: str) -> None:
        """Fetch an object to a file, which appears complete or not at all.

        What an earlier attempt has fetched of the same content is not fetched again.

        Raises:
            StoreError: it cannot be read or written, or was damaged on the way.
            Cancelled: the job is to end.
        """
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            if not item.place.bucket:
                self.make(lambda partial: copy_file(item.place.key, partial), Place("", path))
                return
            partial = f"{path}.{item.tag[:16]}.partial"
            have = os.path.getsize(partial) if os.path.exists(partial) else 0
            if have > item.size:
                os.unlink(partial)
                have = 0
            if have < item.size or not have:
                with open(partial, "ab") as file:
                    self.write(item, file, have)
            if not self._is_intact(item, partial):
                os.unlink(partial)
                raise StoreError(f"Cannot fetch {item.place.uri}: its checksum is wrong. Run the job again.")
            os.replace(partial, path)
        except OSError as error:
            raise StoreError(f"Cannot fetch {item.place.uri}: {error}") from error

    def _is_intact(self, item: Item, path: str) -> bool:
        if len(item.tag) != 32 or not all(c in "0123456789abcdef" for c in item.tag):
            return True
        digest = hashlib.md5()  # the store's own tag, to find damage; not a protection against anybody
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(BLOCK), b""):
                digest.update(block)
        if digest.hexdigest() == item.tag:
            return True
        # an object encrypted with its owner's key has a tag that looks like an MD5 but is not
        head = self.persist(f"fetch {item.place.uri}", lambda: self._head(item.place))
        return head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head

    # ---- writing

    def check_target(self, place: Place) -> None:
        """Check that results can be written to a place, as far as that can be known beforehand.

        Raises:
            StoreError: the bucket does not exist, or the folder cannot be made.
            Cancelled: the job is to end.
        """
        if not place.bucket:
            try:
                os.makedirs(place.key, exist_ok=True)
            except OSError as error:
                raise StoreError(f"Cannot make {place.key}: {error.strerror}") from error
            return
        try:
            self.persist(f"find {place.uri}", lambda: self._client.head_bucket(Bucket=place.bucket))
        except StoreError as error:
            status = _status(error.__cause__)
            if status == 404:
                raise StoreError(f"There is no bucket {place.bucket}.") from None
            if not status:  # only this request may have been refused
                raise

    def upload(self, path: str, place: Place) -> None:
        """Store a file, which appears there complete or not at all. It is sent even if the job is to end.

        Raises:
            StoreError: it cannot be stored.
        """
        if not place.bucket:
            self.make(lambda partial: copy_file(path, partial), place)
            return
        # An upload in parts becomes an object with its last request, and not before.
        self.persist(
            f"store {place.uri}",
            lambda: self._client.upload_file(path, place.bucket, place.key),
            may_cancel=False,
        )

    def make(self, write: Callable[[str], None], place: Place) -> None:
        """Have a file written to a place; it appears there complete or not at all.

        Raises:
            StoreError: it cannot be written.
        """
        partial = f"{place.key}.{os.getpid()}.{threading.get_ident()}.partial"
        try:
            os.makedirs(os.path.dirname(place.key) or ".", exist_ok=True)
            write(partial)
            os.replace(partial, place.key)
        except OSError as error:
            raise StoreError(f"Cannot store {place.uri}: {error}") from error
        finally:
            if os.path.exists(partial):
                os.unlink(partial)

    # ---- patience

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if the job is to end."""
        if self.cancelled.is_set():
            raise Cancelled

    def persist(self, what: str, action: Callable[[], T], *, may_cancel: bool = True) -> T:
        """Do something, and repeat it while S3 is unreachable, for ``patience`` seconds.

        Raises:
            StoreError: S3 refuses, or stays unreachable.
            Cancelled: the job is to end.
        """
        deadline = time.monotonic() + self.patience
        pause = FIRST_PAUSE
        while True:
            if may_cancel:
                self.raise_if_cancelled()
            try:
                return action()
            except StoreError:
                raise
            except Exception as error:
                left = deadline - time.monotonic()
                if not _is_outage(error) or left <= 0:
                    refused = 400 <= _status(error) < 500
                    hint = " Check the bucket, the prefix and the job's permissions." if refused else ""
                    raise StoreError(f"Cannot {what}: {_plain(error)}.{hint}") from error
            if may_cancel:
                self.cancelled.wait(min(pause, left))
            else:
                time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


def _item(bucket: str, entry: dict[str, Any], cut: int) -> Item:
    key = entry["Key"]
    parts = [part for part in key[cut:].split("/") if part not in ("", ".")]
    if ".." in parts or not parts:
        raise StoreError(f"Refused to fetch {key!r}: as a path it would not stay inside the folder.")
    return Item(
        Place(bucket, key),
        entry["Size"],
        "/".join(parts),
        entry["ETag"],
        int(entry["LastModified"].timestamp()),
    )


def _status(error: BaseException | None) -> int:
    """Return the HTTP status that S3 answered with; 0 if it did not answer."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return 0
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _is_outage(error: BaseException) -> bool:
    """Whether a later attempt may succeed: the store did not answer, or was overloaded."""
    status = _status(error)
    if status:
        return status >= 500 or status == 429
    from boto3.exceptions import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        Boto3Error,
    )
    from botocore.exceptions import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        HTTPClientError,
        IncompleteReadError,
        NoCredentialsError,
    )

    if isinstance(error, Boto3Error):  # of an upload in parts: wraps what happened
        cause = error.__cause__ or error.__context__
        return cause is not None and _is_outage(cause)
    if isinstance(error, NoCredentialsError):
        return False
    if isinstance(error, (HTTPClientError, IncompleteReadError, ConnectionError, TimeoutError)):
        return True
    return type(error).__module__.startswith("urllib3")


def _plain(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


# ---- files


def _files(path: str) -> list[Item]:
    if os.path.isfile(path):
        return [Item(Place("", path), os.path.getsize(path), os.path.basename(path))]
    if not os.path.isdir(path):
        raise StoreError(f"There is no file or directory {path}.")
    try:
        return [
            Item(Place("", full), os.path.getsize(full), name) for name, full in files_below(path).items()
        ]
    except OSError as error:
        raise StoreError(f"Cannot read {error.filename}: {error.strerror or error}.") from error


def files_below(root: str) -> dict[str, str]:
    """Return the files of a directory: name below it -> path.

    Links are followed. Left out are links to a directory that contains them (its content is included anyway)
    and everything that is not a file: dangling links, sockets, FIFOs.

    Raises:
        OSError: a directory cannot be read.
    """
    found: dict[str, str] = {}
    info = os.stat(root)
    _collect(root, "", {(info.st_dev, info.st_ino)}, found)
    return found


def _collect(directory: str, prefix: str, above: set[tuple[int, int]], found: dict[str, str]) -> None:
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path = os.path.join(directory, name)
        try:
            info = os.stat(path)
        except FileNotFoundError:
            continue  # a link to nothing
        except OSError:
            if not os.path.islink(path):
                raise
            continue  # links that lead to each other
        identity = (info.st_dev, info.st_ino)
        if stat.S_ISREG(info.st_mode):
            found[prefix + name] = path
        elif stat.S_ISDIR(info.st_mode) and identity not in above:
            _collect(path, f"{prefix}{name}/", above | {identity}, found)


def copy_file(source: str, target: str) -> None:
    """Copy a file's content and times; share the blocks on disk if the file system can."""
    copy_content(source, target)
    shutil.copystat(source, target)


def copy_content(source: str, target: str) -> None:
    """Copy a file's content; share the blocks on disk if the file system can."""
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            kernel.share_blocks(old.fileno(), new.fileno())
        except OSError:
            shutil.copyfileobj(old, new, BLOCK)


def in_parallel(work: Callable[[T], None], items: Iterable[T], threads: int = THREADS) -> None:
    """Do the work for every item, on a few threads; after an error, begin no more and raise it."""
    with ThreadPoolExecutor(threads, thread_name_prefix="shunter-store") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise

"""Where channels come from and results go: S3, or a folder of this machine."""

from __future__ import annotations

import functools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import IO, Any, TypeVar
from urllib.parse import unquote

from trainyard import system
from trainyard.schedulers.aws.localfiles import files_below
from trainyard.schedulers.exec.process.documents import is_full_disk

T = TypeVar("T")

BLOCK = 1 << 20
THREADS = 8
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


class StoreFailure(Exception):
    """What was wanted of a store could not be had. The message is meant for a job's failure reason."""


class Cancelled(Exception):
    """The job is to end, so what was under way has been given up."""


@dataclass(frozen=True)
class Place:
    """A place in a store: a bucket ("" for this machine's files) and a key or an absolute path."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, uri: str) -> Place:
        """Read ``s3://bucket/key``, ``file:///path`` or ``/path``.

        Raises:
            StoreFailure: it is something else.
        """
        if uri.startswith("s3://"):
            bucket, _, key = uri[5:].partition("/")
            if bucket:
                return cls(bucket, key)
        elif uri.startswith("file://"):
            return cls("", os.path.abspath(unquote(uri[7:])))
        elif uri.startswith("/"):
            return cls("", os.path.abspath(uri))
        raise StoreFailure(f"{uri!r} is neither s3://bucket/key nor file:///path")

    def join(self, *parts: str) -> Place:
        """Return a place below this one."""
        return Place(self.bucket, "/".join([self.key.rstrip("/"), *parts]) if self.key else "/".join(parts))

    @property
    def uri(self) -> str:
        """The place as a URI."""
        return f"s3://{self.bucket}/{self.key}" if self.bucket else f"file://{self.key}"


@dataclass(frozen=True)
class Item:
    """An object: where it is, how large, and its path below what was listed.

    Attributes:
        place: where it is.
        size: in bytes.
        path: below what was listed.
        tag: what S3 calls its content, the ETag; "" for a file of this machine.
        modified: when it was written last, in seconds since the epoch, as S3 says.
    """

    place: Place
    size: int
    path: str
    tag: str = ""
    modified: int = 0


class Objects:
    """Reads and writes objects, with patience where a store does not answer.

    Args:
        cancelled: set when the job is to end; what is being fetched is then given up.
        patience: seconds for which a store may be out of reach.
        region: region of S3 where the environment has none.
    """

    def __init__(self, cancelled: threading.Event, patience: float, region: str) -> None:
        self.cancelled = cancelled
        self.patience = patience
        self._region = region
        self._lock = threading.Lock()
        self._made: Any = None

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                try:
                    import boto3
                    from botocore.config import Config
                except ImportError:
                    raise StoreFailure("s3:// needs boto3: pip install 'trainyard[aws]'") from None
                settings = Config(
                    max_pool_connections=2 * THREADS,
                    connect_timeout=5,
                    read_timeout=30,
                    retries={"mode": "standard", "max_attempts": 2},
                )
                session = boto3.Session()
                region = session.region_name or self._region
                self._made = session.client("s3", config=settings, region_name=region)
            return self._made

    @property
    def endpoint(self) -> str:
        """Where S3 is asked."""
        return str(self._client.meta.endpoint_url)

    # ---- reading

    def listing(self, place: Place) -> list[Item]:
        """Return what lies below a place, or the one object there, sorted by path.

        In S3 those are all objects whose keys begin with it: of ``s3://bucket/tr`` also ``train/x``. Those
        below it as a folder are named from there, others by what follows the last ``/`` of the place.

        Raises:
            StoreFailure: it cannot be listed, or two objects would have the same name.
        """
        if not place.bucket:
            return sorted(_files(place.key), key=lambda item: item.path)
        found = self._keys(place)
        folder = f"{place.key.rstrip('/')}/" if place.key else ""
        items: dict[str, Item] = {}
        for entry in found:
            cut = len(folder) if entry["Key"].startswith(folder) else place.key.rfind("/") + 1
            item = _item(place.bucket, entry, cut)
            other = items.setdefault(item.path, item)
            if other is not item:
                raise StoreFailure(f"{other.place.uri} and {item.place.uri} would both be {item.path}")
        return sorted(items.values(), key=lambda item: item.path)

    def _keys(self, place: Place) -> list[dict[str, Any]]:
        def pages() -> list[dict[str, Any]]:
            paginator = self._client.get_paginator("list_objects_v2")
            return [
                entry
                for page in paginator.paginate(Bucket=place.bucket, Prefix=place.key)
                for entry in page.get("Contents", ())
                if not entry["Key"].endswith("/")
            ]

        return self.persist(f"list {place.uri}", pages)

    def chunks(self, place: Place, tag: str = "") -> Iterator[bytes]:
        """Yield the content of an object; of S3, only if it still is that which the tag names."""
        if not place.bucket:
            with open(place.key, "rb") as file:
                while block := file.read(BLOCK):
                    yield block
            return
        where = f"fetch {place.uri}"
        known = {"IfMatch": tag} if tag else {}
        answer = self.persist(
            where, lambda: self._client.get_object(Bucket=place.bucket, Key=place.key, **known)
        )
        done, tag = 0, answer["ETag"]
        while True:
            try:
                for block in answer["Body"].iter_chunks(BLOCK):
                    done += len(block)
                    yield block
            except Exception as error:
                if not _is_outage(error):
                    raise StoreFailure(f"cannot {where}: {error}") from error
            else:
                return
            answer = self._rest_of(place, done, tag)

    def _rest_of(self, place: Place, done: int, tag: str) -> Any:
        """Ask for what is still missing of an object, if it still is the same one."""
        span = {"Range": f"bytes={done}-", "IfMatch": tag}
        return self.persist(
            f"fetch {place.uri}",
            lambda: self._client.get_object(Bucket=place.bucket, Key=place.key, **span),
        )

    def fetch(self, item: Item, path: str) -> None:
        """Fetch an object to a file, which appears whole or not at all."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        partial = f"{path}.partial"
        try:
            if not item.place.bucket:
                copy_file(item.place.key, partial)
            else:
                with open(partial, "wb") as file:
                    self.write(item, file)
            os.replace(partial, path)
        except OSError as error:
            raise StoreFailure(f"cannot fetch {item.place.uri}: {error}") from error
        finally:
            if os.path.exists(partial):
                os.unlink(partial)

    def write(self, item: Item, file: IO[bytes]) -> None:
        """Write an object's content to a file; the very object that was listed.

        Raises:
            StoreFailure: it cannot be had, or has changed meanwhile.
        """
        count = 0
        for block in self.chunks(item.place, item.tag):
            self.check()
            file.write(block)
            count += len(block)
        if count != item.size:
            raise StoreFailure(
                f"{item.place.uri} changed while it was fetched: {count} bytes came instead of {item.size}"
            )

    # ---- writing

    def check_target(self, place: Place) -> None:
        """Look whether results could go to a place, as far as that can be known beforehand.

        Raises:
            StoreFailure: the bucket does not exist, or the directory cannot be made.
            Cancelled: the job is to end.
        """
        if not place.bucket:
            try:
                os.makedirs(place.key, exist_ok=True)
            except OSError as error:
                raise StoreFailure(f"cannot make {place.key}: {error.strerror}") from error
            return
        try:
            self.persist(f"find {place.uri}", lambda: self._client.head_bucket(Bucket=place.bucket))
        except StoreFailure as error:
            response = getattr(error.__cause__, "response", {})
            if response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
                raise StoreFailure(f"there is no bucket {place.bucket}") from None
            if not response:  # a refusal may be of this question alone
                raise

    def store(self, path: str, place: Place) -> None:
        """Store a file, which appears there whole or not at all. Is not given up when the job is to end."""
        if not place.bucket:
            self.make(functools.partial(copy_file, path), place)
            return
        # An upload in parts becomes an object with its last request, and not before.
        self.persist(
            f"store {place.uri}",
            lambda: self._client.upload_file(path, place.bucket, place.key),
            may_cancel=False,
        )

    def make(self, write: Callable[[str], None], place: Place) -> None:
        """Have a file of this machine written where it is to lie; it appears there whole or not at all."""
        partial = f"{place.key}.{os.getpid()}.{threading.get_native_id()}.partial"
        try:
            os.makedirs(os.path.dirname(place.key), exist_ok=True)
            write(partial)
            os.replace(partial, place.key)
        except OSError as error:
            raise StoreFailure(f"cannot store {place.uri}: {error}") from error
        finally:
            if os.path.exists(partial):
                os.unlink(partial)

    # ---- patience

    def await_room(
        self, action: Callable[[], T], *, may_cancel: bool = True, patience: float | None = None
    ) -> T:
        """Do something, again and again while a disk is full, for as long as there is patience.

        Args:
            action: what to do.
            may_cancel: whether it is given up when the job is to end.
            patience: seconds; by default as long as for a store that is out of reach.

        Raises:
            OSError: the disk stays full.
            StoreFailure: the same, of a store on this machine.
        """
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        pause = FIRST_PAUSE
        while True:
            if may_cancel:
                self.check()
            try:
                return action()
            except (OSError, StoreFailure) as error:
                left = deadline - time.monotonic()
                if not is_full_disk(error) or left <= 0:
                    raise
            if may_cancel:
                self.cancelled.wait(min(pause, left))
            else:
                time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def check(self) -> None:
        """Raise `Cancelled` if the job is to end."""
        if self.cancelled.is_set():
            raise Cancelled

    def persist(self, what: str, action: Callable[[], T], *, may_cancel: bool = True) -> T:
        """Do something, again and again while the store is out of reach, for as long as there is patience."""
        deadline = time.monotonic() + self.patience
        pause = FIRST_PAUSE
        while True:
            if may_cancel:
                self.check()
            try:
                return action()
            except StoreFailure:
                raise
            except Exception as error:
                left = deadline - time.monotonic()
                if not _is_outage(error) or left <= 0:
                    raise StoreFailure(f"cannot {what}: {_plain(error)}") from error
            if may_cancel:
                self.cancelled.wait(min(pause, left))
            else:
                time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


def in_parallel(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Do the work for every item on a few threads; the first error is raised, the rest dropped."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="objects") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def copy_file(source: str, target: str) -> None:
    """Copy a file's content and times; shares the blocks where the file system can."""
    copy_content(source, target)
    shutil.copystat(source, target)


def copy_content(source: str, target: str) -> None:
    """Copy a file's content; shares the blocks where the file system can."""
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            system.share_blocks(old.fileno(), new.fileno())
        except OSError:
            shutil.copyfileobj(old, new, BLOCK)


def _files(path: str) -> list[Item]:
    if os.path.isfile(path):
        return [Item(Place("", path), os.path.getsize(path), os.path.basename(path))]
    if not os.path.isdir(path):
        raise StoreFailure(f"there is no file or directory {path}")
    try:
        return [
            Item(Place("", full), os.path.getsize(full), name) for name, full in files_below(path).items()
        ]
    except OSError as error:
        raise StoreFailure(f"cannot read {error.filename}: {error.strerror or error}") from error


def _item(bucket: str, entry: dict[str, Any], cut: int) -> Item:
    key = entry["Key"]
    path = _safe(key[cut:], key)
    return Item(
        Place(bucket, key), entry["Size"], path, entry["ETag"], int(entry["LastModified"].timestamp())
    )


def _safe(path: str, key: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or not parts:
        raise StoreFailure(f"the key {key!r} cannot be the name of a file")
    return "/".join(parts)


def _is_outage(error: Exception) -> bool:
    """Tell whether a store may be there again if it is asked later."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "ResponseMetadata" in response:
        status = response["ResponseMetadata"].get("HTTPStatusCode", 0)
        return bool(status >= 500 or status == 429)
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import HTTPClientError, IncompleteReadError, NoCredentialsError

    if isinstance(error, Boto3Error):  # of an upload in parts: wraps what happened
        cause = error.__cause__ or error.__context__
        return _is_outage(cause) if isinstance(cause, Exception) else False
    if isinstance(error, NoCredentialsError):
        return False
    if isinstance(error, (HTTPClientError, IncompleteReadError, ConnectionError, TimeoutError)):
        return True
    return type(error).__module__.startswith("urllib3")


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())

"""Bringing things to S3: each under a name made from its content, whole or not at all, once.

An object of S3 appears when all of it has arrived, so one that is there is whole. What consists of several
objects gets a mark beside it when the last of them has arrived, and does not count as there without it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError
from trainyard.schedulers.aws.errors import AwsError, AwsForbiddenError
from trainyard.schedulers.aws.localfiles import files_below
from trainyard.schedulers.aws.sagemaker import names
from trainyard.schedulers.aws.session import AwsSession
from trainyard.workspace.index import Index

if TYPE_CHECKING:
    from trainyard.workspace.progress import Progress

#: Larger objects go in parts, some of them at a time.
PART_BYTES = 16 << 20
THREADS = 8
_MISSING = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchBucket"})


class Storage:
    """S3, as jobs are brought to it.

    Args:
        session: whose it is.
        kms_key: key that objects are encrypted with; None for the bucket's own encryption.
        kms_bucket: the bucket that this holds for.
    """

    def __init__(self, session: AwsSession, kms_key: str | None = None, kms_bucket: str = "") -> None:
        self._session = session
        self._kms_key = kms_key
        self._kms_bucket = kms_bucket

    def has(self, uri: str, size: int | None = None) -> bool:
        """Tell whether there is an object, and of this size if one is given."""
        bucket, key = names.split_s3(uri)
        try:
            found = self._session.call("s3", "HeadObject", Bucket=bucket, Key=key)
        except AwsForbiddenError:
            return False  # without permission to list, S3 says 403 of what is not there; the upload will tell
        except AwsError as error:
            if error.code in _MISSING:
                return False
            raise
        return size is None or found.get("ContentLength") == size

    def put(self, path: Path, uri: str, progress: Progress, label: str = "") -> None:
        """Upload a file. It is there whole when this returns, and not at all if it raises.

        Raises:
            AwsError: it could not be uploaded.
        """
        from s3transfer.manager import TransferConfig, TransferManager

        bucket, key = names.split_s3(uri)
        size = path.stat().st_size
        config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)
        advance = _Advance(progress, label or path.name, size)
        try:
            with TransferManager(self._session.client("s3"), config) as manager:
                # leaving the block by an exception, Ctrl-C too, takes back the parts that have arrived
                manager.upload(
                    str(path), bucket, key, self._encryption(bucket), subscribers=[advance]
                ).result()
        except (KeyboardInterrupt, ConfigError, AwsError):
            raise
        except Exception as error:
            raise _no_bucket(self._session.translated(error, "s3", "PutObject"), bucket) from error

    def put_bytes(self, content: bytes, uri: str) -> None:
        """Upload a small object."""
        bucket, key = names.split_s3(uri)
        params: dict[str, Any] = {"Bucket": bucket, "Key": key, "Body": content, **self._encryption(bucket)}
        self._session.call("s3", "PutObject", **params)

    def put_local(self, path: str, parent: str, progress: Progress) -> str:
        """Upload a file or directory below ``parent``, unless its content is there; returns its URI.

        A directory's URI ends in a slash.

        Raises:
            ConfigError: there is nothing, or a file changes while it is uploaded.
            AwsError: it could not be uploaded.
        """
        files = _files(path)
        digests = _digests(path, files)
        listing = "".join(f"{digest} {name}\n" for name, digest in sorted(digests.items()))
        content = hashlib.sha256(os.fsencode(listing)).hexdigest()[:40]
        single = os.path.isfile(path)
        uri = f"{parent.rstrip('/')}/{content}/"
        mark = f"{parent.rstrip('/')}/{content}.complete"
        result = uri + os.path.basename(path) if single else uri
        if self.has(mark):
            progress.done(f"{path} is in S3 already")
            return result
        progress.step(f"uploading {path}")
        for name, file in files.items():
            self.put(Path(file), uri + name, progress, name)
        if _digests(path, _files(path)) != digests:
            raise ConfigError(f"{path} was changed while it was uploaded", hint="Submit the job again.")
        self.put_bytes(os.fsencode(listing), mark)
        return result

    def _encryption(self, bucket: str) -> dict[str, str]:
        if not self._kms_key or bucket != self._kms_bucket:
            return {}
        return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self._kms_key}


class _Advance:
    """Passes on how far an upload is; s3transfer calls it from several threads."""

    def __init__(self, progress: Progress, label: str, size: int) -> None:
        self._progress, self._label, self._size = progress, label, size
        self._done = 0
        self._lock = threading.Lock()

    def on_queued(self, future: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def on_progress(self, future: Any, bytes_transferred: int, **kwargs: Any) -> None:
        """Pass it on."""
        with self._lock:
            self._done += bytes_transferred
            self._progress.advance(self._label, self._done, self._size)

    def on_done(self, future: Any, **kwargs: Any) -> None:
        """Do nothing."""


def _files(path: str) -> dict[str, str]:
    """Return the files of a directory, or the file itself: name below the directory -> path."""
    if os.path.isfile(path):
        return {os.path.basename(path): path}
    if not os.path.isdir(path):
        raise ConfigError(f"there is no file or directory {path}, which the job's data is to come from")
    try:
        found = files_below(path)
    except OSError as error:
        raise _unreadable(error) from error
    if not found:
        raise ConfigError(f"there are no files in {path}, which the job's data is to come from")
    return found


def _no_bucket(error: Exception, bucket: str) -> Exception:
    """Return an error, or if it is that a bucket is missing, one that says which."""
    if not isinstance(error, AwsError) or error.code != "NoSuchBucket":
        return error
    return AwsError(
        f"s3:PutObject: there is no bucket {bucket}",
        hint=f"Make it (`aws s3 mb s3://{bucket}`), or name another: output_path, code_location.",
        operation=error.operation,
        code=error.code,
    )


def _unreadable(error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot read {error.filename}, which is data of the job: {error.strerror or error}",
        hint="Mend it, or leave it out of the channel's directory.",
    )


def _digests(path: str, files: dict[str, str]) -> dict[str, str]:
    root = path if os.path.isdir(path) else os.path.dirname(path)
    index = Index(f"{root}#data")
    digests = {}
    for name, file in files.items():
        try:
            digests[name] = _digest(index, name, file)
        except OSError as error:
            raise _unreadable(error) from error
    index.save()
    return digests


def _digest(index: Index, name: str, file: str) -> str:
    from trainyard.workspace.index import hash_file

    known = index.digest(name, os.stat(file))
    if known is not None:
        return known
    digest, info, began = hash_file(os.path.realpath(file))
    index.remember(name, info, digest, began)
    return digest

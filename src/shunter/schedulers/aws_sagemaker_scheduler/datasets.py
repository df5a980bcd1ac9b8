"""Uploading data of this machine to S3 once, below a name made from its content.

A directory becomes several objects. After the last one, a marker object is written, and without it the data
does not count as uploaded. The next upload reuses what an interrupted one has left: every object carries a
SHA-256 that S3 itself has checked, so an object that exists is known to be correct.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from shunter._toolkit import store
from shunter.errors import ConfigError
from shunter.parallel import for_all
from shunter.progress import Progress
from shunter.schedulers.aws.s3 import PART_BYTES, S3, StoredObject
from shunter.workspace.file_digests import ChangingFileError, Index, NotAFileError, hash_file

#: How many small objects are sent at a time. Each takes a round trip, whatever its size.
CONCURRENCY = 16
_SHOWN = 5
_HINT = "Fix it, or remove it from the directory: a channel contains everything in there."


@dataclass(frozen=True)
class DataFile:
    """A file of a data set.

    Attributes:
        path: where it is.
        size: in bytes.
        digest: SHA-256 of its content, in hexadecimal digits.
    """

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Dataset:
    """The files of a directory, or a single file, as they were when they were read.

    Attributes:
        path: of this machine.
        files: by their names below the directory, with slashes.
        is_single: whether it is a single file rather than a directory.
    """

    path: str
    files: dict[str, DataFile]
    is_single: bool

    @property
    def listing(self) -> bytes:
        """A line with digest and name for each file; the data set's name is made from it."""
        lines = (f"{file.digest} {name}\n" for name, file in sorted(self.files.items()))
        return os.fsencode("".join(lines))

    @property
    def key(self) -> str:
        """Names the content: 40 hexadecimal digits."""
        return hashlib.sha256(self.listing).hexdigest()[:40]


def read_dataset(path: str) -> Dataset:
    """Find and hash the files. What has not changed since it was last hashed is not read again.

    Raises:
        ConfigError: there is nothing, or something cannot be read; all of it is named.
    """
    is_single = os.path.isfile(path)
    found = {os.path.basename(path): path} if is_single else _files(path)
    index = Index(f"{os.path.dirname(path) if is_single else path}#data")
    files, problems = {}, []
    for name, file in found.items():
        try:
            info = os.stat(file)
            digest = index.digest(name, info)
            if digest is None:
                digest, info, began = hash_file(os.path.realpath(file))
                index.remember(name, info, digest, began)
            files[name] = DataFile(file, info.st_size, digest)
        except (OSError, NotAFileError, ChangingFileError) as error:
            problems.append(f"{file}: {_reason(error)}")
    index.save()
    if problems:
        shown = "".join(f"\n  - {problem}" for problem in problems[:_SHOWN])
        more = f"\n  ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ConfigError(f"the data of {path} cannot be read:{shown}{more}", hint=_HINT)
    return Dataset(path, files, is_single)


def _reason(error: Exception) -> str:
    if isinstance(error, NotAFileError):
        return "is neither a file nor a directory"
    if isinstance(error, ChangingFileError):
        return "is being written to all the time"
    return getattr(error, "strerror", None) or str(error)


def _files(path: str) -> dict[str, str]:
    if not os.path.isdir(path):
        raise ConfigError(f"there is no file or directory {path}, which should contain the job's data")
    try:
        found = store.files_below(path)
    except OSError as error:
        raise ConfigError(
            f"the data of {error.filename} cannot be read: {error.strerror}", hint=_HINT
        ) from None
    if not found:
        raise ConfigError(f"there are no files in {path}, which should contain the job's data")
    return found


def upload_dataset(data: Dataset, parent: str, s3: S3, progress: Progress) -> str:
    """Upload a file or directory below ``parent``, unless its content is there; returns its URI.

    Args:
        data: what is to be there.
        parent: ``s3://`` URI of a "directory".
        s3: where they are written.
        progress: shows the steps.

    Returns:
        The object's URI for a file; for a directory one that ends in a slash.

    Raises:
        ConfigError: a file changes while it is uploaded.
        AwsError: it could not be uploaded. What has arrived is not sent again the next time.
    """
    uri = f"{parent.rstrip('/')}/{data.key}/"
    mark = f"{parent.rstrip('/')}/{data.key}.complete"
    result = uri + next(iter(data.files)) if data.is_single else uri
    if s3.has(mark):
        progress.done(f"{data.path} is in S3 already")
        return result
    missing = _missing(data, uri, s3)
    progress.step(f"uploading {data.path}: {len(missing)} of {len(data.files)} files")
    _send(missing, uri, s3, progress)
    if read_dataset(data.path) != data:
        raise ConfigError(f"{data.path} was changed while it was uploaded", hint="Submit the job again.")
    s3.put_small(data.listing, mark)
    return result


def _missing(data: Dataset, uri: str, s3: S3) -> dict[str, DataFile]:
    there = s3.objects(uri)
    return {
        name: file
        for name, file in data.files.items()
        if name not in there or not _is_same(file, there[name], uri + name, s3)
    }


def _is_same(file: DataFile, stored: StoredObject, uri: str, s3: S3) -> bool:
    if stored.size != file.size or not stored.has_sha256:
        return False
    # S3 has refused a small object that does not match its digest; of a large one it checked the parts
    return file.size < PART_BYTES or s3.sha256(uri) == _sha256_of_parts(file.path)


def _sha256_of_parts(path: str) -> str:
    """Return the checksum that S3 gives to an object sent in parts: the checksum of the parts' checksums."""
    digests = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(PART_BYTES):
            digests.update(hashlib.sha256(part).digest())
    return base64.b64encode(digests.digest()).decode()


def _send(files: dict[str, DataFile], uri: str, s3: S3, progress: Progress) -> None:
    small = {name: file for name, file in files.items() if file.size < PART_BYTES}
    total = sum(file.size for file in small.values())
    sent, lock = 0, threading.Lock()

    def send(name: str) -> None:
        nonlocal sent
        file = small[name]
        with open(file.path, "rb") as content:
            s3.put_small(content, uri + name, sha256=file.digest)
        with lock:
            sent += file.size
            progress.advance(f"{len(small)} files", sent, total)

    for_all(send, small, workers=CONCURRENCY)
    for name in files.keys() - small.keys():
        s3.put(Path(files[name].path), uri + name, progress, name)

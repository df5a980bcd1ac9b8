"""S3 as the launcher uses it: addresses, buckets, and objects, which are written completely or not at all."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from shunter.errors import ConfigError
from shunter.progress import Progress
from shunter.schedulers.aws.aws_errors import AwsError, AwsForbiddenError
from shunter.schedulers.aws.session import AwsSession

#: Larger objects go in parts, some of them at a time.
PART_BYTES = 16 << 20
SHA256 = "SHA256"
#: How long presigned URLs are valid at most (Signature Version 4), in seconds.
LONGEST_SECONDS = 7 * 24 * 3600
#: Codes of errors: there is no such object, or bucket.
MISSING = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchBucket"})


def split_uri(uri: str) -> tuple[str, str]:
    """Return bucket and key of an ``s3://`` URI; the key without slashes around it."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key.strip("/")


def join_uri(bucket: str, *parts: str) -> str:
    """Return the ``s3://`` URI of a bucket and the parts of a key."""
    key = "/".join(part.strip("/") for part in parts if part.strip("/"))
    return f"s3://{bucket}/{key}" if key else f"s3://{bucket}/"


def is_directory_bucket(uri: str) -> bool:
    """Tell whether a URI is in a directory bucket (S3 Express One Zone), which has other rules."""
    return split_uri(uri)[0].endswith("--x-s3")


def find_bucket(session: AwsSession, bucket: str, owner: str = "") -> dict[str, Any] | None:
    """Return S3's description of a bucket; None if it does not exist.

    ``owner`` is the number of the account that must own it.

    Raises:
        AwsForbiddenError: it is another account's, or s3:ListBucket is missing.
    """
    params: dict[str, Any] = {"ExpectedBucketOwner": owner} if owner else {}
    try:
        return session.call("s3", "HeadBucket", Bucket=bucket, **params)
    except AwsError as error:
        if error.code in MISSING:
            return None
        raise


def regional_session(
    session_of: Callable[[str | None], AwsSession], bucket: str, named_by: str
) -> AwsSession:
    """Return the session of a bucket's region: a signature is valid there only.

    Args:
        session_of: returns the session of a region; of None, the usual one.
        bucket: name of the bucket.
        named_by: the option that names it.

    Raises:
        ConfigError: there is no such bucket.
    """
    session = session_of(None)
    try:
        description = find_bucket(session, bucket)
    except AwsForbiddenError:  # s3:ListBucket is missing; using it tells the rest
        return session
    if description is None:
        raise ConfigError(
            f"there is no bucket {bucket}, which {named_by} names",
            hint=f"Make it (`aws s3 mb s3://{bucket}`), or name another.",
        )
    region = description.get("BucketRegion") or session.region
    return session if region == session.region else session_of(region)


def url_end(session: AwsSession) -> datetime:
    """Return when a URL that is signed now ends: with the credentials, if they are temporary.

    Of credentials with a session token and without a time, it is not known; they last 36 hours at most.
    """
    now = datetime.now(UTC)
    longest = now + timedelta(seconds=LONGEST_SECONDS)
    temporary, end = session.credentials_end()
    if not temporary:
        return longest
    return min(longest, end or now + timedelta(hours=36))


def ensure_bucket(session: AwsSession, bucket: str, region: str, account: str) -> None:
    """Create the account's own bucket if it does not exist.

    Raises:
        AwsError: it is another account's, or cannot be made.
    """
    try:
        if find_bucket(session, bucket, account) is not None:
            return
    except AwsForbiddenError as error:
        raise AwsForbiddenError(
            f"the bucket {bucket} cannot be used: it is another account's, or s3:ListBucket is missing",
            hint="Name a bucket of yours: -cfg output_path=s3://BUCKET/PREFIX.",
            operation=error.operation,
            code=error.code,
        ) from None
    params: dict[str, Any] = {"Bucket": bucket}
    if region != "us-east-1":
        params["CreateBucketConfiguration"] = {"LocationConstraint": region}
    try:
        session.call("s3", "CreateBucket", **params)
    except AwsError as error:
        if error.code != "BucketAlreadyOwnedByYou":  # another submission was faster
            raise


@dataclass(frozen=True)
class StoredObject:
    """An object as a listing describes it.

    Attributes:
        size: in bytes.
        has_sha256: whether S3 checked its content against a SHA-256 when it was written.
        etag: changes with the content, so that a changed object is not equal to the one before.
    """

    size: int
    has_sha256: bool
    etag: str = ""


class S3:
    """The objects of S3.

    Args:
        session: the session that makes the requests.
        kms_key: key that objects are encrypted with; None for the bucket's own encryption.
        kms_bucket: the bucket to which ``kms_key`` applies.
    """

    def __init__(self, session: AwsSession, kms_key: str | None = None, kms_bucket: str = "") -> None:
        self._session = session
        self._kms_key = kms_key
        self._kms_bucket = kms_bucket

    def has(self, uri: str) -> bool:
        """Tell whether an object exists."""
        bucket, key = split_uri(uri)
        try:
            self._session.call("s3", "HeadObject", Bucket=bucket, Key=key)
        except AwsForbiddenError:
            return False  # without permission to list, S3 answers 403 for missing objects; the upload tells
        except AwsError as error:
            if error.code in MISSING:
                return False
            raise
        return True

    def objects(self, uri: str) -> dict[str, StoredObject]:
        """Return the objects below a "directory", by relative name; empty where listing is not allowed."""
        bucket, directory = split_uri(uri)
        prefix = f"{directory}/"
        found: dict[str, StoredObject] = {}
        try:
            for page in self._session.pages("s3", "ListObjectsV2", "Contents", Bucket=bucket, Prefix=prefix):
                for each in page:
                    has_sha256 = SHA256 in (each.get("ChecksumAlgorithm") or [])
                    name = each["Key"][len(prefix) :]
                    found[name] = StoredObject(each["Size"], has_sha256, each.get("ETag", ""))
        except AwsForbiddenError:
            return {}
        return found

    def sha256(self, uri: str) -> str:
        """Return S3's SHA-256 of an object, in base64; after an upload in parts, the hash of their hashes."""
        bucket, key = split_uri(uri)
        found = self._session.call("s3", "HeadObject", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        return str(found.get("ChecksumSHA256", "")).partition("-")[0]  # the number of parts follows

    def put(self, path: Path, uri: str, progress: Progress, label: str) -> None:
        """Upload a file with checksums. The object is complete when this returns, and absent if it raises.

        Raises:
            AwsError: it could not be uploaded.
        """
        from s3transfer.manager import TransferConfig, TransferManager

        bucket, key = split_uri(uri)
        size = path.stat().st_size
        config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)
        advance = _Advance(progress, label, size)
        try:
            with TransferManager(self._session.client("s3"), config) as manager:
                # leaving the block with an exception, including Ctrl-C, removes the parts that have arrived
                extra = {"ChecksumAlgorithm": SHA256, **self._encryption(bucket)}
                manager.upload(str(path), bucket, key, extra, subscribers=[advance]).result()
        except (KeyboardInterrupt, ConfigError, AwsError):
            raise
        except Exception as error:
            raise _no_bucket(self._session.translated(error, "s3", "PutObject"), bucket) from error

    def put_small(self, content: bytes | BinaryIO, uri: str, sha256: str = "") -> None:
        """Upload a small object in one request.

        Args:
            content: what it is to hold; a file is read as it is sent.
            uri: where it goes.
            sha256: digest in hexadecimal digits, against which S3 checks what arrives.

        Raises:
            AwsError: it could not be uploaded.
        """
        bucket, key = split_uri(uri)
        params: dict[str, Any] = {"Bucket": bucket, "Key": key, "Body": content, **self._encryption(bucket)}
        if sha256:
            checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
            params |= {"ChecksumAlgorithm": SHA256, "ChecksumSHA256": checksum}
        self._session.call("s3", "PutObject", **params)

    def _encryption(self, bucket: str) -> dict[str, str]:
        if not self._kms_key or bucket != self._kms_bucket:
            return {}
        return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self._kms_key}


class _Advance:
    """Reports the progress of an upload; s3transfer calls it from several threads."""

    def __init__(self, progress: Progress, label: str, size: int) -> None:
        self._progress, self._label, self._size = progress, label, size
        self._done = 0
        self._lock = threading.Lock()

    def on_progress(self, future: Any, bytes_transferred: int, **kwargs: Any) -> None:
        """Report progress of s3transfer as ours."""
        with self._lock:
            self._done += bytes_transferred
            self._progress.advance(self._label, self._done, self._size)


def _no_bucket(error: Exception, bucket: str) -> Exception:
    """Return the error, or, if it says that a bucket is missing, an error that names the bucket."""
    if not isinstance(error, AwsError) or error.code != "NoSuchBucket":
        return error
    return AwsError(
        f"s3:PutObject: there is no bucket {bucket}",
        hint=f"Make it (`aws s3 mb s3://{bucket}`), or name another: output_path, code_location.",
        operation=error.operation,
        code=error.code,
    )

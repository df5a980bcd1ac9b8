"""Leases of races that are objects of S3, as the launcher sees them: signed, checked, looked at.

Jobs take them without credentials, see `shunter._toolkit.race_lease`.
"""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime
from uuid import uuid4

from shunter._toolkit import race_lease
from shunter.errors import BackendError, ConfigError
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws.s3 import LONGEST_SECONDS, MISSING, regional_session, split_uri, url_end
from shunter.schedulers.aws.session import AwsSession

#: An object that stays in each folder of leases: that it cannot be written twice shows that leases work.
CHECK = "shunter-check"
_PAUSES = (0, 1, 3)


def location_problem(location: str) -> str:
    """Return what is wrong with a folder for leases; "" if nothing is."""
    bucket = split_uri(location)[0] if location.startswith("s3://") else ""
    return "" if bucket else f"a place for leases must be s3://BUCKET/PREFIX, not {location!r}"


def sign(uri: str) -> tuple[str, datetime]:
    """Return the presigned URLs of a lease, as jobs get them, and when they end. Writes nothing.

    Raises:
        ConfigError: there are no credentials, or there is no such bucket.
        AwsError: S3 cannot be asked.
    """
    bucket, key = split_uri(uri)
    with closing(regional_session(AwsSession, bucket, "the lease's place")) as session:
        ends, client = url_end(session), session.client("s3")
        place = {"Bucket": bucket, "Key": key}
        urls = {
            "put": client.generate_presigned_url(
                "put_object", {**place, "IfNoneMatch": "*"}, ExpiresIn=LONGEST_SECONDS
            ),
            "get": client.generate_presigned_url("get_object", place, ExpiresIn=LONGEST_SECONDS),
        }
    return json.dumps(urls, separators=(",", ":")), ends


def check(location: str) -> None:
    """Check that a lease can be taken below a folder, and by one job only.

    Raises:
        ConfigError: the store lets several take it.
        BackendError: it cannot be written or read there.
    """
    urls, _ = sign(f"{location}/{CHECK}")
    try:
        first, second = (race_lease.take(urls, uuid4().hex, _PAUSES) for _ in range(2))
    except OSError as error:
        raise BackendError(
            f"no job could take a lease in {location}: {error}",
            hint="Your credentials need s3:PutObject and s3:GetObject there.",
        ) from error
    if first != second:
        raise ConfigError(
            f"several jobs could take a lease in {location}: this store ignores the condition If-None-Match",
            hint="Amazon's S3 honours it, and others in their newer versions.",
        )


def holder(uri: str) -> str:
    """Return the handle of the job that has a lease; "" if none has it.

    Raises:
        AwsError: it cannot be seen now.
    """
    bucket, key = split_uri(uri)
    with closing(AwsSession()) as session:
        try:
            answer = session.call("s3", "GetObject", Bucket=bucket, Key=key)
        except AwsError as error:
            if error.code in MISSING:
                return ""
            raise
        text: str = answer["Body"].read().decode()
    return text.strip()

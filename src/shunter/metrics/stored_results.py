"""A copy of the files with metrics among a job's results in S3, kept up to date while the job runs."""

from __future__ import annotations

import os
import tempfile
import time

from shunter.errors import ShunterError
from shunter.metrics.result_files import has_metrics
from shunter.schedulers.aws.s3 import S3, StoredObject, split_uri
from shunter.schedulers.aws.session import AwsSession

#: How often the objects are listed, in seconds, while the job runs.
LISTED_EVERY = 15.0
#: Larger files are not copied.
LARGEST = 1 << 28


class StoredResults:
    """The files with metrics below a "directory" of S3, ``s3://BUCKET/KEY``, copied into a temporary one."""

    def __init__(self, uri: str, session: AwsSession) -> None:
        self.problems: list[str] = []
        self._uri = uri.rstrip("/")
        self._session = session
        self._copy = tempfile.TemporaryDirectory(prefix="shunter-metrics-")
        self._seen: dict[str, StoredObject] = {}
        self._listed = 0.0

    @property
    def folder(self) -> str:
        """The copy's directory."""
        return self._copy.name

    def close(self) -> None:
        """Remove the copy."""
        self._copy.cleanup()

    def refresh(self, *, at_once: bool = False) -> None:
        """Copy what is new or has changed; at most every `LISTED_EVERY` seconds unless ``at_once``."""
        if not at_once and time.monotonic() - self._listed < LISTED_EVERY and self._listed:
            return
        try:
            found = S3(self._session).objects(self._uri)
            for name, item in found.items():
                if has_metrics(name) and self._seen.get(name) != item and self._is_copied(name, item):
                    self._seen[name] = item
        except (ShunterError, OSError) as error:
            self._problem(f"metrics in files of {self._uri} are not read: {error}")
        self._listed = time.monotonic()

    def _is_copied(self, name: str, item: StoredObject) -> bool:
        path = os.path.normpath(os.path.join(self.folder, name))
        if not path.startswith(self.folder + os.sep) or item.size > LARGEST:
            self._problem(f"{self._uri}/{name} is not read: its name or size is unusual")
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        bucket, key = split_uri(f"{self._uri}/{name}")
        body = self._session.call("s3", "GetObject", Bucket=bucket, Key=key)["Body"]
        with open(path + ".part", "wb") as file:
            for chunk in body.iter_chunks(1 << 20):
                file.write(chunk)
        os.replace(path + ".part", path)
        return True

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

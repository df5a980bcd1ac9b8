"""Small file helpers under the predecessors' names."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from .layout import Layout


def write_success_file() -> None:
    """Write the empty ``output/success``."""
    write_file(Layout().success, "")


def write_failure_file(failure_msg: str) -> None:
    """Write ``output/failure``, unless the script has written one."""
    path = Layout().failure
    if not os.path.exists(path):
        write_file(path, failure_msg)


def read_file(path: str, mode: str = "r") -> Any:
    """The content of a file; text (UTF-8) unless ``mode`` has a ``b``."""
    with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
        return file.read()


def write_file(path: str, data: Any, mode: str = "w") -> None:
    """Write a file; text (UTF-8) unless ``mode`` has a ``b``. Its folder is made."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
        file.write(data)


def read_json(path: str) -> Any:
    """The content of a JSON file."""
    return json.loads(read_file(path))


@contextlib.contextmanager
def tmpdir(suffix: str = "", prefix: str = "tmp", directory: str | None = None) -> Iterator[str]:
    """A folder that is removed when the block ends."""
    folder = tempfile.mkdtemp(suffix=suffix, prefix=prefix, dir=directory)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def download_and_extract(uri: str, path: str) -> None:
    """Bring code into a folder that is empty: see :func:`shunter_toolkit.code_download.fetch_code`."""
    from . import code_download

    code_download.fetch_code(uri, path)


def s3_download(url: str, dst: str) -> None:
    """Download one object from S3 to a file.

    Raises:
        StoreError: not an ``s3://`` URI, boto3 is missing, or S3 refused.
    """
    from .errors import StoreError
    from .store import Place, Store

    place = Place.of(url)
    if not place.bucket:
        raise StoreError(f"Cannot download {url!r}: expected s3://bucket/key.")
    store = Store()
    store.download(store.find(place), dst)

"""Opening files by path or URL. URLs other than ``file://`` need fsspec and its package for them."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import IO, Any
from urllib.parse import unquote, urlparse

from ..errors import ConfigError, ToolkitError

BUFFER_BYTES = 64 * 1024


def local_path(url: str) -> str | None:
    """Return the path of a path or ``file://`` URL; None for other URLs."""
    if url.startswith("file://"):
        return unquote(urlparse(url).path)
    return None if "://" in url else url


@contextlib.contextmanager
def open_to_read(url: str) -> Iterator[IO[bytes]]:
    """Open for reading.

    Raises:
        ConfigError: fsspec, or its package for the URL's scheme, is not installed.
        OSError: it cannot be read.
    """
    path = local_path(url)
    with open(path, "rb") if path is not None else _fsspec_open(url, "rb") as file:
        yield file


@contextlib.contextmanager
def open_to_write(url: str) -> Iterator[IO[bytes]]:
    """Open for writing, creating directories. A local file appears only once it is complete.

    Raises:
        ConfigError: fsspec, or its package for the URL's scheme, is not installed.
        OSError: it cannot be written.
    """
    path = local_path(url)
    if path is None:
        with _fsspec_open(url, "wb", auto_mkdir=True) as file:
            yield file
        return
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):  # /dev/stdout, a fifo
        with open(path, "wb") as file:
            yield file
        return
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def exists(url: str) -> bool:
    """Tell whether a file exists.

    Raises:
        ConfigError: fsspec, or its package for the URL's scheme, is not installed.
    """
    path = local_path(url)
    if path is not None:
        return os.path.exists(path)
    filesystem, inner = _fsspec_call(url, lambda fsspec: fsspec.core.url_to_fs(url))
    return bool(filesystem.exists(inner))


def _fsspec_open(url: str, mode: str, **options: Any) -> Any:
    return _fsspec_call(url, lambda fsspec: fsspec.open(url, mode, **options))


def _fsspec_call(url: str, call: Callable[[Any], Any]) -> Any:
    scheme = url.partition("://")[0]
    try:
        fsspec = import_module("fsspec")
    except ImportError:
        raise ConfigError(
            f"Reading or writing {scheme}:// needs the package fsspec, which is not installed: "
            f"pip install 'fsspec[{scheme}]' (paths and file:// work without it)"
        ) from None
    try:
        return call(fsspec)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"fsspec cannot open {scheme}://: {error} (pip install 'fsspec[{scheme}]')"
        ) from error


def run_program(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a program's main function; expected errors are printed as one line."""
    try:
        return main(argv)
    except (ToolkitError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, ToolkitError) else 1

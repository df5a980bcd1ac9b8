"""Brings the user's code into the code directory: from a folder, an archive, S3 or the web."""

from __future__ import annotations

import os
import shutil
import tempfile

from . import archive, log
from .errors import CodeError
from .store import Place, Store

ARCHIVES = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz")
_WEB = ("https://", "http://")


def fetch_code(uri: str, code_dir: str) -> None:
    """Put the code that ``uri`` names into ``code_dir``, unless there is code there already.

    Args:
        uri: a folder, an archive or a file on this machine (with or without ``file://``); ``s3://`` or
            ``https://`` of an archive. If it is empty, or the code directory itself, nothing is done.
        code_dir: the folder to fill. If it has code already (from the image), that is kept, with a warning.

    Raises:
        CodeError: it cannot be read, fetched or unpacked safely.
        StoreError: S3 refused, or boto3 is missing.
    """
    path = uri[len("file://") :] if uri.startswith("file://") else uri
    if not path or os.path.realpath(path) == os.path.realpath(code_dir):
        return
    if os.path.isdir(code_dir) and os.listdir(code_dir):
        log.warning(
            f"{code_dir} already contains code, so {uri} is not fetched. Empty that directory in the image "
            f"to use {uri}."
        )
        return
    os.makedirs(code_dir, exist_ok=True)
    if path.startswith(("s3://", *_WEB)):
        _fetch_archive(path, code_dir)
    else:
        _copy(path, code_dir)


def link_folder(folder: str, code_dir: str) -> str:
    """Make the code directory a link to a folder; return the directory of the code.

    It is the folder itself if no link can be made, for example as the image has other code in that place.
    """
    folder = os.path.abspath(folder)
    if os.path.realpath(folder) == os.path.realpath(code_dir):
        return code_dir
    try:
        if os.path.islink(code_dir):
            os.unlink(code_dir)  # of an earlier attempt
        elif os.path.isdir(code_dir):
            os.rmdir(code_dir)
        os.makedirs(os.path.dirname(code_dir), exist_ok=True)
        os.symlink(folder, code_dir)
    except OSError:
        return folder
    return code_dir


def _copy(path: str, code_dir: str) -> None:
    if os.path.isdir(path):
        shutil.copytree(path, code_dir, symlinks=True, dirs_exist_ok=True)
    elif not os.path.exists(path):
        raise CodeError(
            f"Cannot fetch the code from {path}: there is no such file or folder in this container. "
            "Give a path that is mounted here, or an s3:// or https:// URI of a tar.gz archive."
        )
    elif path.endswith(ARCHIVES):
        archive.extract(path, code_dir)
    else:
        shutil.copy2(path, code_dir)


def _fetch_archive(uri: str, code_dir: str) -> None:
    with tempfile.TemporaryDirectory(prefix="shunter-code-") as folder:
        target = os.path.join(folder, "sourcedir.tar.gz")
        if uri.startswith("s3://"):
            store = Store()
            store.download(store.find(Place.of(uri)), target)
        else:
            _download(uri, target)
        archive.extract(target, code_dir)


def _download(uri: str, target: str) -> None:
    import urllib.request

    try:
        with urllib.request.urlopen(uri, timeout=60) as response, open(target, "wb") as file:
            shutil.copyfileobj(response, file)
    except (OSError, ValueError) as error:
        advice = "Check that the address is right and reachable from here."
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            advice = (
                "This container does not trust that server: add the certificate of the authority that signed "
                "its certificate (ca-certificates in the image, or a file named in SSL_CERT_FILE)."
            )
        raise CodeError(f"Cannot fetch the code from {uri}: {error}. {advice}") from None

"""The archive that a replica sends by a presigned form: read as results, and refused where it was damaged."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from shunter.errors import BackendError, ConfigError
from shunter.schedulers.sent_results import SentResults

CONTENT = bytes(range(256)) * 100


def archive(*links: tuple[str, str], extra: str = "") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name in filter(None, ("model/weights", "output/data/x.csv", extra)):
            member = tarfile.TarInfo(name)
            member.size = len(CONTENT)
            tar.addfile(member, io.BytesIO(CONTENT))
        for name, target in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return raw.getvalue()


def sent(folder: Path, data: bytes) -> SentResults:
    (folder / "results.tar.gz").write_bytes(data)
    return SentResults(str(folder))


def test_its_files_are_results(tmp_path: Path) -> None:
    data = archive(("model/latest", "weights"), ("model/passwd", "/etc/passwd"), extra="../outside")
    place = sent(tmp_path, gzip.compress(data))
    files = {file.path: file.size for file in place.files()}
    assert files == dict.fromkeys(("model/weights", "output/data/x.csv", "model/latest"), len(CONTENT))
    assert len(place.left_out) == 2
    assert b"".join(place.read("model/latest", 7)) == CONTENT[7:]
    with pytest.raises(ConfigError, match="there is no result"):
        next(place.read("model/passwd"))


def test_a_damaged_archive_gives_no_file(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(archive(), compresslevel=0))  # stored, so that any byte can be changed
    packed[2000] ^= 1
    with pytest.raises(BackendError, match="CRC check failed"):
        sent(tmp_path, bytes(packed)).files()
    with pytest.raises(BackendError, match="cannot read"):
        sent(tmp_path, gzip.compress(archive())[:-9]).files()

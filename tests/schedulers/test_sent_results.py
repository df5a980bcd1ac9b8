"""The archive that a replica sends by a presigned form: read as results, and refused where it was damaged."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shunter._toolkit.store import Store
from shunter.errors import BackendError, ConfigError
from shunter.progress import Silent
from shunter.schedulers.fetched_archive import cut_transfers
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


class CutTransfer(Silent):
    """Records how much has come, and ends the transfer after a number of bytes."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.seen: list[int] = []

    def advance(self, label: str, done: int, total: int) -> None:
        self.seen.append(done)
        if done >= self.after:
            raise KeyboardInterrupt


def test_an_archive_in_s3_goes_on_where_its_transfer_was_cut(
    moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setenv("SHUNTER_HOME", str(tmp_path / "home"))
    client = boto3.client(
        "s3", endpoint_url=moto, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    bucket = f"b-{uuid.uuid4().hex}"
    client.create_bucket(Bucket=bucket)
    content = os.urandom(8 << 20)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo("weights")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    client.put_object(Bucket=bucket, Key="job/output/model.tar.gz", Body=packed.getvalue())

    def place() -> SentResults:
        return SentResults(
            f"s3://{bucket}/job/output", store=Store(warn=lambda text: None, client=lambda: client)
        )

    cut, rest = CutTransfer(after=3 << 20), CutTransfer(after=1 << 30)
    with pytest.raises(KeyboardInterrupt):
        place().prepare(cut)
    assert len(cut_transfers(0)) == 1
    assert not cut_transfers(3600)
    again = place()
    again.prepare(rest)
    assert cut.seen[-1] < rest.seen[0] <= cut.seen[-1] + cut.seen[0]
    assert rest.seen[-1] == len(packed.getvalue())
    assert [file.path for file in again.files()] == ["model/weights"]
    assert b"".join(again.read("model/weights")) == content
    with ThreadPoolExecutor(2) as pool:  # one waits for the other, and has the same file
        for files in pool.map(lambda each: each.files(), (place(), place())):
            assert [file.path for file in files] == ["model/weights"]
    assert not cut_transfers(0)

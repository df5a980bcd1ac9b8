"""Small results in a log: written, hidden, read back, and what only looks like them."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import threading
from pathlib import Path

import pytest

from shunter._toolkit import logged_results
from shunter._toolkit.layout import Layout


def written(base: Path, tmp_path: Path) -> bytes:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"first\nno line end")
    logged_results.write(Layout(str(base)), descriptor)
    os.close(descriptor)
    return path.read_bytes()


def test_results_come_back_and_are_not_shown(tmp_path: Path) -> None:
    base = tmp_path / "ml"
    (base / "model").mkdir(parents=True)
    (base / "output").mkdir()
    weights = os.urandom(200_000)
    (base / "model/weights").write_bytes(weights)
    (base / "output/.failure.reserve").write_bytes(b"0" * 4096)
    text = written(base, tmp_path)
    lines = text.splitlines(keepends=True)
    assert max(map(len, lines)) <= 4096
    assert logged_results.without_results(text) == b"first\nno line end\n"
    results = logged_results.read(lines)
    assert results is not None
    assert results.left_out == ()
    with tarfile.open(fileobj=io.BytesIO(results.packed)) as archive:
        assert archive.getnames() == ["model/weights"]
        assert archive.extractfile("model/weights").read() == weights  # type: ignore[union-attr]
    # an attempt that was killed before, other lines between, and lines that only look like ours
    forged = hashlib.sha256(b"x").hexdigest()
    mark = logged_results.MARK.decode()
    others = [
        lines[1],
        f"{mark}{forged[:12]} 0 {base64.b64encode(b'y').decode()}\n".encode(),
        f"{mark}{forged[:12]} end 1 {forged}\n".encode(),
        f"{mark}{forged[:12]} 5000 eHg=\n".encode(),
        f"{mark}anything\n".encode(),
        f"{mark}{'0' * 12} 0 =\n".encode(),
    ]
    mixed = [*others, *(line for each in lines for line in (each, b"other\n")), *others]
    assert logged_results.read(mixed) == results
    assert logged_results.read([line for line in lines if b" 2 " not in line]) is None
    assert logged_results.read(reversed(lines)) == results


def test_results_survive_what_others_write_to_the_same_pipe(tmp_path: Path) -> None:
    (tmp_path / "ml/model").mkdir(parents=True)
    weights = os.urandom(300_000)
    (tmp_path / "ml/model/weights").write_bytes(weights)
    reader, writer = os.pipe()
    stop = threading.Event()

    def make_noise() -> None:
        while not stop.is_set():
            os.write(writer, b"epoch 1 loss 0.5 ")  # without line ends, as progress bars do

    def write() -> None:
        noise = threading.Thread(target=make_noise)
        noise.start()
        logged_results.write(Layout(str(tmp_path / "ml")), writer)
        stop.set()
        noise.join()
        os.close(writer)

    threading.Thread(target=write).start()
    with open(reader, "rb") as log:
        results = logged_results.read(log)
    assert results is not None
    with tarfile.open(fileobj=io.BytesIO(results.packed)) as archive:
        assert archive.extractfile("model/weights").read() == weights  # type: ignore[union-attr]


def test_large_results_stay_where_they_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = tmp_path / "ml"
    (base / "model").mkdir(parents=True)
    (base / "model/weights").write_bytes(os.urandom(logged_results.MOST_BYTES + 1000))
    assert logged_results.MARK not in written(base, tmp_path)
    said = capfd.readouterr()
    assert "--output" in said.out + said.err
    (base / "output").mkdir()
    (base / "output/metrics").write_text("0.5")
    results = logged_results.read(written(base, tmp_path).splitlines(keepends=True))
    assert results is not None
    assert results.left_out == ("model",)
    with tarfile.open(fileobj=io.BytesIO(results.packed)) as archive:
        assert archive.getnames() == ["output/metrics"]


def test_larger_results_go_to_files_where_there_are_logs_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, files = tmp_path / "ml", tmp_path / "files"
    (base / "model").mkdir(parents=True)
    files.mkdir()
    weights = os.urandom(logged_results.FILE_BYTES + 5000)
    (base / "model/weights").write_bytes(weights)
    monkeypatch.setenv(logged_results.FILES, f"{files}:2")
    last = written(base, tmp_path).splitlines(keepends=True)
    lines = [line for name in ("0", "1") for line in (files / name).read_bytes().splitlines(keepends=True)]
    assert max((files / name).stat().st_size for name in ("0", "1")) < 10 << 20
    results = logged_results.read([*lines, *last])
    assert results is not None
    with tarfile.open(fileobj=io.BytesIO(results.packed)) as archive:
        assert archive.extractfile("model/weights").read() == weights  # type: ignore[union-attr]
    assert logged_results.read([*lines[:-1], *last]) is None
    monkeypatch.setenv(logged_results.FILES, f"{files}:1")
    assert logged_results.MARK not in written(base, tmp_path / "ml")

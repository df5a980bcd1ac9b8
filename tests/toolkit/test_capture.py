"""Capture for metrics: byte-exact whatever is written, and every matching line found."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Tree

METRICS = json.dumps([{"Name": "loss", "Regex": r"loss[=:] ?([0-9.e+-]+)"}])

AWKWARD = {
    "not UTF-8": b"\xff\xfe\x00 caf\xe9\n" * 1000,
    "carriage returns": b"\r 10%\r 20%\r loss=1.5\r\n" * 500,
    "blank lines": b"\n\n  \n\t\nloss=2\n\n" * 300,
    "1 MiB blocks": (b"x" * 93 + b"\n") * 100_000,
    "200 kB lines": (b"y" * 200_000 + b"\n") * 20,
    "no final newline": b"loss: 3",
    "error words": b"KeyError: harmless\n" * 2000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AWKWARD)
def test_relay_is_byte_exact(tree: Tree, tmp_path: Path, name: str) -> None:
    data = AWKWARD[name]
    (tmp_path / "data").write_bytes(data)
    tree.script(
        f"""
        import os, threading
        data = open({str(tmp_path / "data")!r}, "rb").read()
        def write(fd):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest[:1 << 20]):]
        threads = [threading.Thread(target=write, args=(fd,)) for fd in (1, 2)]
        [t.start() for t in threads]; [t.join() for t in threads]
        """
    )
    done = subprocess.run(
        tree.command(), env=tree.env(SHUNTER_METRICS=METRICS), capture_output=True, timeout=50, check=False
    )
    assert done.returncode == 0
    assert done.stdout == data
    assert done.stderr.endswith(data)


def test_metrics_are_recorded(tree: Tree) -> None:
    tree.script(
        """
        import sys
        print("epoch 1 loss=0.5 acc=0.9")
        print("nothing here")
        print("loss: 2.5e-1", file=sys.stderr)
        print("loss=bad loss=7")
        print("loss=9", end="")
        """
    )
    assert tree.train(SHUNTER_METRICS=METRICS).returncode == 0
    lines = (tree.base / "output/metrics.jsonl").read_text().splitlines()
    values = [(row["name"], row["value"], row["stream"]) for row in map(json.loads, lines)]
    assert sorted(values) == [
        ("loss", 0.25, "stderr"),
        ("loss", 0.5, "stdout"),
        ("loss", 7.0, "stdout"),
        ("loss", 9.0, "stdout"),
    ]


def test_nothing_is_recorded_unasked(tree: Tree) -> None:
    tree.script("print('loss=1')")
    tree.train()
    assert not (tree.base / "output/metrics.jsonl").exists()


def test_output_closed_by_the_reader_does_not_end_the_job(tree: Tree) -> None:
    tree.script("import sys\nfor i in range(200000): sys.stderr.write('line\\n')\n")
    process = tree.start(SHUNTER_METRICS=METRICS)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(50) == 0
    assert tree.succeeded


def test_a_slow_reader_does_not_delay_a_stop(tree: Tree, tmp_path: Path) -> None:
    import signal
    import time

    tree.script(
        f"""
        import signal, sys, threading, time
        def stop(number, frame):
            open({str(tmp_path / "stopped")!r}, "w").write(repr(time.time()))
            sys.stdout = None
            import os
            os._exit(0)
        signal.signal(signal.SIGTERM, stop)
        open({str(tmp_path / "ready")!r}, "w").close()
        def flood():
            while True:
                sys.stderr.write("x" * 1000)
        threading.Thread(target=flood, daemon=True).start()
        while True:
            time.sleep(1)
        """
    )
    process = tree.start()
    try:
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        time.sleep(0.3)  # let the pipes fill: nobody reads them
        sent = time.monotonic()
        process.send_signal(signal.SIGTERM)
        while not (tmp_path / "stopped").exists() or not (tmp_path / "stopped").read_text():
            assert time.monotonic() - sent < 60
            time.sleep(0.005)
    finally:
        process.communicate(timeout=30)

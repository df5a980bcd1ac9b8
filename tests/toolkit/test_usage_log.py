"""What a script uses, written to its log by the toolkit, and left out of what readers see."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from shunter_toolkit import resources, usage_log
from shunter_toolkit.usage_log import MARK, Usage, usage_in, without_usage

HUNGRY = """\
import time
data = bytearray(b"x") * (100 << 20)
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
print("done", flush=True)
"""


def test_a_line_is_read_as_it_was_written() -> None:
    usage = Usage(1764300000.25, 60.5, 12.75, 1 << 30, 3 << 30, 40.0, 55.5, 5 << 30)
    assert list(usage_in(b"before " + usage.line() + b"after\n")) == [usage]
    assert list(usage_in(Usage(1.0, 2.0, 0.0, 0, 0).line())) == [Usage(1.0, 2.0, 0.0, 0, 0)]


def test_lines_are_left_out_and_an_unfinished_line_goes_on() -> None:
    line = Usage(1.0, 2.0, 0.5, 3, 4).line()
    assert without_usage(b"a\n" + line + b"  b\n") == b"a\n  b\n"
    assert without_usage(b"10 %" + line + b"20 %\n") == b"10 %20 %\n"
    assert without_usage(b"10 %" + line) == b"10 %\n"
    assert without_usage(line) == b""
    for other in (
        b"the script's " + MARK + b"word\n",
        MARK,
        b"",
        MARK + b"1 2 3\n",
        MARK + b"9" * 400 + b" 1" * 7 + b"\n",
    ):
        assert without_usage(other + b"x\n") == other + b"x\n"
        assert not list(usage_in(other))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_running_tree_and_its_end_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "SHORTEST", 0.0)
    monkeypatch.setattr(usage_log, "SAMPLE_EVERY", 0.05)
    monkeypatch.setattr(usage_log, "LINE_EVERY", 0.1)
    monkeypatch.setattr(usage_log, "LARGEST_SHARE", 1.0)
    monkeypatch.setattr(resources, "limited_memory", lambda: 0)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as lines:
        held = "import sys; data = bytearray(b'x') * (50 << 20); print(flush=True); input()"
        words = [
            sys.executable,
            "-c",
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}])",
        ]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        log = usage_log.UsageLog(writing)
        log.start()
        (first,) = usage_in(lines.readline())
        assert first.memory > 50 << 20
        child.communicate(b"\n")
        log.end()
        os.close(writing)
        *_, last = usage_in(lines.read())
    assert last.most_memory >= first.memory
    assert last.seconds >= first.seconds
    assert last.gpu_percent == -1


def test_the_nearest_limit_counts_without_cached_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(resources, "_folders", lambda root, kind: [str(tmp_path)] if not kind else [])
    assert resources.limited_memory() == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert resources.limited_memory() == 0
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("9000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 2000\n")
    assert resources.limited_memory() == 7000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_train_writes_the_last_line_where_it_is_asked_to(tmp_path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(HUNGRY + "time.sleep(10.5)\n")
    job = json.dumps({"program": "train.py", "code": str(tmp_path / "code")})
    environ = {**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path / "ml"), "SHUNTER_JOB": job}
    words = [sys.executable, "-m", "shunter_toolkit", "train"]
    for asked in ("", "1"):
        environ[usage_log.VARIABLE] = asked
        done = subprocess.run(words, env=environ, capture_output=True, check=True)
        found = list(usage_in(done.stdout))
        assert len(found) == len(asked)
        assert b"done\n" in without_usage(done.stdout)
    assert found[0].most_memory > 100 << 20
    assert found[0].cpu_seconds >= 0.3

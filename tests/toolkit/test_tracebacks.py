"""What the failure report reads out of the last lines of stderr."""

from __future__ import annotations

import pytest

from shunter_toolkit import tracebacks
from shunter_toolkit.child_process import Outcome
from shunter_toolkit.failure import from_outcome

HEAD = "Traceback (most recent call last):\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
ELASTIC = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\n"
REPORT = """
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : algo-2
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 77)
"""


@pytest.mark.parametrize(
    ("text", "summary", "rank"),
    [
        (f"{HEAD}ValueError: x\n", "ValueError: x", None),
        (f"{HEAD}pkg.mod.Odd\n", "pkg.mod.Odd", None),
        (f'[rank1]: {HEAD}[rank1]:   File "t.py", line 2, in f\n[rank1]: A: b\n', "A: b", 1),
        ("[1,2]<stderr>:Traceback (most recent[1,2]<stderr>: call last):\n[1,2]<stderr>:B: x\n", "B: x", 2),
        (f"[prterun-h-7@1,2]<stderr>: {HEAD}[prterun-h-7@1,2]<stderr>: OSError: x\n", "OSError: x", 2),
        (f"{HEAD}KeyError: 1\n{DURING}{HEAD}ValueError: two\nlines\n", "ValueError: two\nlines", None),
        (f"{HEAD}A: own\n{HEAD}{ELASTIC}", "A: own", None),
        ("KeyError: only words in a log line\n", None, None),
        (HEAD, None, None),
        ("", None, None),
    ],
)
def test_the_right_traceback_is_found(text: str, summary: str | None, rank: int | None) -> None:
    found = tracebacks.find(text)
    assert (found.summary() if found else None) == summary
    assert (found.rank if found else None) == rank


def test_torchruns_report_gives_the_rank_and_its_exit_code() -> None:
    report = from_outcome(Outcome(1, f"{HEAD}{ELASTIC}{REPORT}".encode()), "train.py")
    assert (report.exit_code, report.fields["rank"], report.fields["signal"]) == (137, 3, "SIGKILL")


RULER = "-" * 74 + "\n"
EXITED = """mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [{name},1]
  Exit code:    {code}
"""
KILLED = "mpirun noticed that process rank 1 with PID 0 on node h exited on signal 11 (Segmentation fault).\n"
ABORTED = """MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 3.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
"""
OF_OTHERS = "[1,0]<stderr>:rank 0 goes on\n"


@pytest.mark.parametrize(
    ("text", "reason", "code"),
    [
        (
            "[1,1]<stderr>:no data\n" + OF_OTHERS + RULER + EXITED.format(name="[9,1]", code=3) + RULER,
            "t.py ended with exit code 3: no data",
            3,
        ),
        (
            "[p-7@1,1]<stderr>: no data\n" + RULER + EXITED.format(name="prterun-h-7@1", code=3) + RULER,
            "t.py ended with exit code 3: no data",
            3,
        ),
        (OF_OTHERS + RULER + KILLED + RULER, "t.py was killed by SIGSEGV", 139),
        (RULER + ABORTED + RULER + "[1,1]<stderr>:no data\n", "t.py ended with exit code 3: no data", 3),
        (
            "[1,0]<stderr>:"
            + HEAD
            + "[1,0]<stderr>:A: later\n[1,1]<stderr>:"
            + HEAD
            + "[1,1]<stderr>:B: first\n"
            + RULER
            + EXITED.format(name="[9,1]", code=1)
            + RULER,
            "B: first",
            1,
        ),
        (
            '[1,1]<stderr>:  File "t.py", line 1\n[1,1]<stderr>:    x = (\n[1,1]<stderr>:        ^\n'
            "[1,1]<stderr>:SyntaxError: '(' was never closed\n"
            + RULER
            + EXITED.format(name="[9,1]", code=1)
            + RULER,
            "SyntaxError: '(' was never closed",
            1,
        ),
    ],
)
def test_mpiruns_report_gives_the_rank_and_the_rank_its_reason(text: str, reason: str, code: int) -> None:
    report = from_outcome(Outcome(128 + 11 if "SIGSEGV" in reason else code, text.encode()), "t.py")
    assert (report.fields["reason"], report.exit_code, report.fields["rank"]) == (reason, code, 1)
    assert "----" not in report.text()


def test_an_error_of_ours_in_a_frameworks_code_keeps_its_class() -> None:
    text = f"{HEAD}shunter_toolkit.errors.InstallRequirementsError: Installing x failed\n"
    report = from_outcome(Outcome(1, text.encode()), "t.py")
    assert (report.fields["class"], report.fields["reason"]) == ("install_error", "Installing x failed")


def test_a_worker_that_the_kernel_kills_makes_it_out_of_memory() -> None:
    stderr = f"{HEAD}RuntimeError: worker is gone\n".encode()
    report = from_outcome(Outcome(1, stderr), "train.py", memory_kills=1)
    assert report.fields["class"] == "out_of_memory"
    assert report.text().startswith("Out of memory: the kernel killed a process of train.py")
    assert "RuntimeError: worker is gone" in report.text().splitlines()[0]
    assert from_outcome(Outcome(1, stderr), "train.py").fields["class"] == "user_error"

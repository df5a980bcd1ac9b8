"""Ways in which jobs fail, made for real: programs, and the cause that is to be named."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.specs import macros

PYTHON, SHELL, COMMAND = "python", "shell", "command"


@dataclass
class Way:
    """One way to fail.

    Args:
        cause: the name of the cause.
        program: the program's text, or a command.
        kind: how it is run.
        replicas: how many replicas the job has.
        replica: which of them fails first.
        rank: which process of the replica fails; "" if it has one.
        evidence: what the line that shows the cause has in it.
    """

    cause: str
    program: str
    kind: str = PYTHON
    replicas: int = 1
    replica: int = 0
    rank: str = ""
    evidence: str = ""


_THIRD = "import sys, time\nif sys.argv[1] == '3':\n    raise KeyError('label')\ntime.sleep(1)\n"
_LATE = """\
import sys, time
if sys.argv[1] == "1":
    raise MemoryError
time.sleep(0.5)
raise ConnectionResetError(104, "Connection reset by peer")
"""
_RANKS = """\
import sys
print("[0]:step 1")
print("[3]:Traceback (most recent call last):", file=sys.stderr)
print('[3]:  File "train.py", line 7, in <module>', file=sys.stderr)
print("[0]:step 2", file=sys.stderr)
print("[3]:RuntimeError: loss is nan in rank 3", file=sys.stderr)
sys.exit(1)
"""
_CHAIN = """\
try:
    open("/no/such/file")
except OSError as error:
    raise RuntimeError("cannot load the data") from error
"""
_CHILD = """\
import subprocess, sys
subprocess.run([sys.executable, "-c", "import nothing_of_that_name"], check=True)
"""
_SIGNAL = "import os, signal\nos.kill(os.getpid(), signal.{})\n"

WAYS: dict[str, Way] = {
    "exception": Way("exception", "raise ValueError('bad batch 17')", evidence="ValueError: bad batch 17"),
    "exception in replica 3": Way("exception", _THIRD, replicas=4, replica=3, evidence="KeyError: 'label'"),
    "exception in rank 3": Way("not_finite", _RANKS, rank="3", evidence="loss is nan in rank 3"),
    "others fail later": Way("out_of_memory", _LATE, replicas=2, replica=1, evidence="MemoryError"),
    "missing module": Way("missing_module", "import nothing_of_that_name", evidence="nothing_of_that_name"),
    "missing module of a child": Way("missing_module", _CHILD, evidence="nothing_of_that_name"),
    "missing file": Way("missing_file", "open('/no/such/file')", evidence="/no/such/file"),
    "missing file, chained": Way("missing_file", _CHAIN, evidence="/no/such/file"),
    "missing program": Way("missing_program", "no-such-program --lr 1", COMMAND),
    "missing program of a script": Way(
        "missing_program", "echo begin\nno-such-program", SHELL, evidence="no-such-program"
    ),
    "not executable": Way("not_executable", "/etc/passwd", COMMAND),
    "segmentation fault": Way("segfault", _SIGNAL.format("SIGSEGV")),
    "abort": Way("aborted", _SIGNAL.format("SIGABRT")),
    "bus error": Way("bus_error", _SIGNAL.format("SIGBUS")),
    "illegal instruction": Way("illegal_instruction", _SIGNAL.format("SIGILL")),
    "killed": Way("killed", _SIGNAL.format("SIGKILL")),
    "terminated": Way("terminated", _SIGNAL.format("SIGTERM")),
    "disk full": Way(
        "disk_full", "with open('/dev/full', 'w') as file: file.write('x')", evidence="No space left"
    ),
    "too much memory": Way(
        "out_of_memory",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\nx = bytearray(1 << 30)",
    ),
    "too many files": Way("open_files", "kept = []\nwhile True:\n    kept.append(open('/dev/null'))"),
    "recursion": Way("stack", "def f(): f()\nf()"),
    "syntax": Way("syntax", "def f(:\n", evidence="SyntaxError"),
    "arguments": Way(
        "usage",
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', required=True)\nparser.parse_args()",
        evidence="--lr",
    ),
    "port in use": Way(
        "port_in_use",
        "import socket\na = socket.create_server(('127.0.0.1', 0))\nsocket.create_server(a.getsockname())",
    ),
    "connection refused": Way(
        "connection",
        "import socket\na = socket.create_server(('127.0.0.1', 0))\nplace = a.getsockname()\na.close()\n"
        "socket.create_connection(place)",
    ),
    "permission": Way(
        "permission",
        "import os, tempfile\nfolder = tempfile.mkdtemp()\nos.chmod(folder, 0)\n"
        "os.getuid() or os.setuid(65534)\nopen(folder + '/data')",
    ),
    "text on stderr, then a buffer of stdout": Way(
        "exit", "print('step 1')\nraise SystemExit('the data set is empty')", evidence="the data set is empty"
    ),
    "exit code alone": Way("exit", "echo working\nexit 3", SHELL, evidence="working"),
    "NCCL": Way(
        "nccl",
        "raise RuntimeError('NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited')",
    ),
    "CUDA out of memory": Way(
        "gpu_out_of_memory",
        "class OutOfMemoryError(RuntimeError): pass\n"
        "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')",
    ),
}  # fmt: skip


def command_of(way: Way) -> list[str]:
    """Return the command that fails; its last argument is the number of the replica."""
    if way.kind == COMMAND:
        return way.program.split()
    words = ["python", "-c", way.program] if way.kind == PYTHON else ["sh", "-c", way.program, "sh"]
    return [*words, macros.replica_id]

"""Ways in which jobs fail, made for real: programs, and the cause that is to be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shunter.specs import macros

PYTHON, SHELL, COMMAND = "python", "shell", "command"
ONE_OF_TWO = 2
#: Runs its other arguments in the second replica alone.
_SECOND_ALONE = 'for number; do :; done; [ "$number" = 1 ] || exit 0; exec "$@"'


@dataclass
class Way:
    """One way to fail.

    Args:
        cause: the name of the cause.
        program: the program's text, or a command.
        kind: how it is run.
        replicas: how many replicas the job has.
        replica: which of them fails first. The last argument of the program is its number; `ONE_OF_TWO` has
            only the second one run the program, while the first succeeds.
        rank: which process of the replica fails; "" if it has one.
        evidence: what the line that shows the cause has in it.
        options: options of the scheduler.
        memory: what each replica may have, in MB; 0 for what is usual.
        image: the image, where it is not the usual one.
        happens: what is done to the job once it runs; it gets the handle.
    """

    cause: str
    program: str
    kind: str = PYTHON
    replicas: int = 0
    replica: int = 0
    rank: str = ""
    evidence: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    memory: int = 0
    image: str = ""
    happens: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if not self.replicas:  # a command is run as it is
            self.replicas, self.replica = (1, 0) if self.kind == COMMAND else (ONE_OF_TWO, 1)


_THIRD = "import sys, time\nif sys.argv[1] == '3':\n    raise KeyError('label')\ntime.sleep(1)\n"
_LATE = """\
import sys, time
if sys.argv[1] == "1":
    raise MemoryError
time.sleep(20)
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
_PACKAGE = """\
import pathlib, sys, tempfile
folder = pathlib.Path(tempfile.mkdtemp(), "models")
folder.mkdir()
(folder / "__init__.py").write_text("from .unet import UNet")
(folder / "unet.py").write_text("from .attention import Attention")
sys.path.insert(0, str(folder.parent))
import models
"""
_TORN = """\
import pickle, tempfile
with tempfile.TemporaryFile() as file:
    pickle.dump({"step": 10, "weights": [0.5] * 100}, file)
    file.truncate(file.tell() - 50)
    file.seek(0)
    pickle.load(file)
"""
_DIVERGES = """\
import math
loss = 1e300
for step in range(9):
    loss -= 1e5 * loss
    if not math.isfinite(loss):
        raise RuntimeError(f"loss is {loss} at step {step}")
"""
_RATE = """\
def optimizer(lr):
    if lr < 0:
        raise ValueError(f"Invalid learning rate: {lr}")
optimizer(-0.1)
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
    "import error inside a package": Way("missing_module", _PACKAGE, evidence="'models.attention'"),
    "corrupt checkpoint": Way("corrupt_file", _TORN, evidence="truncated"),
    "bad hyperparameter": Way("exception", _RATE, evidence="Invalid learning rate: -0.1"),
    "loss diverges": Way("not_finite", _DIVERGES, evidence="at step"),
    "segmentation fault": Way("segfault", "import ctypes\nctypes.string_at(0)"),
    "abort": Way("aborted", "import os\nos.abort()"),
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
    alone = ["sh", "-c", _SECOND_ALONE, "sh"] if way.replica == 1 and "argv" not in way.program else []
    return [*alone, *words, macros.replica_id]

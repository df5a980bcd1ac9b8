"""The program that examines a silent replica: ``python stack_dump.py MODE PID LOG HEADLINE``.

The exit code is `GPU_AT_WORK` if a GPU that the replica may use is at work. Otherwise ``dump`` appends the
stacks of its processes to its log: from py-spy if it is installed, else from faulthandler in Python processes
that have run `HANDLER`, else what the kernel knows (proc(5): ``wchan``, ``stack``).
It is a separate program, so that a supervisor never waits for it; it needs no other module of the toolkit.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

GPU, DUMP = "gpu", "dump"
#: Exit codes.
DUMPED, GPU_AT_WORK = 0, 3
#: The signal on which Python processes write their stacks, and the variable that tells them its number.
SIGNAL = signal.SIGRTMAX - 3 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2
VARIABLE = "SHUNTER_STACK_SIGNAL"
#: What `SIGNAL` is on Linux, for jobs that run elsewhere.
LINUX_SIGNAL = 61
#: What Python imports when it starts, from a folder in PYTHONPATH: it registers faulthandler for the signal,
#: and then loads the next module of this name, which the environment may have.
HANDLER = f"""\
import os, sys
if os.environ.get("{VARIABLE}", "").isdigit():
    try:
        import faulthandler
        faulthandler.register(int(os.environ["{VARIABLE}"]), all_threads=True)
    except (ImportError, AttributeError, OSError, ValueError, RuntimeError):
        pass
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _here]
del sys.modules["sitecustomize"]
try:
    import sitecustomize
except ImportError as error:
    sys.modules["sitecustomize"] = type(sys)("sitecustomize")
    if error.name != "sitecustomize":
        raise
"""
HANDLER_FILE = "sitecustomize.py"
#: Most processes and threads of one that are shown, and seconds that a tool may take.
MOST_PROCESSES, MOST_THREADS, TOOL_SECONDS = 64, 16, 20.0
#: How long a process may take to write its stacks.
ANSWER_SECONDS = 2.0


def main(mode: str, pid: int, log: str, headline: str) -> int:
    """Examine a replica; returns an exit code."""
    if gpu_at_work(os.environ.get("CUDA_VISIBLE_DEVICES")):
        return GPU_AT_WORK
    if mode == DUMP:
        with open(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb", buffering=0) as file:
            write_stacks(pid, file.fileno(), headline, lambda: os.path.getsize(log))
    return DUMPED


def write_stacks(pid: int, output: int, headline: str, written: Callable[[], int]) -> None:
    """Write the stacks of a program and all that it started to a descriptor.

    Args:
        pid: the program.
        output: the descriptor.
        headline: why, in words.
        written: returns how much the program has written to its log; it writes some stacks itself.
    """

    def say(text: str) -> None:
        content = text.encode("utf-8", "replace")
        while content:
            content = content[os.write(output, content) :]

    pids = [pid, *descendants_of(pid)]
    count = "its process" if len(pids) == 1 else f"its {len(pids)} processes"
    say(f"shunter: {headline}; the stacks of {count}:\n")
    for each in pids[:MOST_PROCESSES]:
        say(f"--- {_title(each)}\n")
        if not _by_py_spy(each, output) and not _by_faulthandler(each, written):
            say("".join(f"{line}\n" for line in by_kernel(each)))
    say("shunter: end of the stacks\n")


def gpu_at_work(visible: str | None) -> bool:
    """Tell whether one of these GPUs (ids as in CUDA_VISIBLE_DEVICES; None for all) is at work just now."""
    if visible in ("", "-1"):
        return False
    chosen = [f"--id={visible}"] if visible else []
    done = _run("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", *chosen)
    lines = [] if done is None else done.stdout.splitlines()
    return any(line.strip().isdigit() and int(line) > 0 for line in lines)


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    """Run a tool; None if it is not installed, or takes more than `TOOL_SECONDS`."""
    program = shutil.which(name)
    if program is None:
        return None
    try:
        return subprocess.run([program, *arguments], capture_output=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def descendants_of(pid: int) -> list[int]:
    """Return the pids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    frontier = [pid]
    while frontier:
        descendants = children.get(frontier.pop(), [])
        found += descendants
        frontier += descendants
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Yield all processes, each with its parent."""
    if os.path.isdir("/proc/self"):
        for name in os.listdir("/proc"):
            # "PID (NAME) STATE PARENT ...": the name may have spaces and parentheses
            fields = _read(int(name), "stat").rpartition(")")[2].split() if name.isdigit() else []
            if len(fields) > 1:
                yield int(name), int(fields[1])
        return
    try:
        done = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False)
    except OSError:
        return
    for line in done.stdout.splitlines():
        child, parent = line.split()
        yield int(child), int(parent)


def _title(pid: int) -> str:
    words = " ".join(_read(pid, "cmdline").replace("\0", " ").split())
    return f"process {pid}: {words[:200] or _read(pid, 'comm').strip()}"


def _by_py_spy(pid: int, output: int) -> bool:
    """Have py-spy write the stacks; False if it is not installed, or the process does not run Python."""
    done = _run("py-spy", "dump", "--pid", str(pid))
    if done is None or done.returncode != 0:
        return False
    os.write(output, done.stdout)
    return True


def _by_faulthandler(pid: int, written: Callable[[], int]) -> bool:
    """Have a process write its own stacks; False if it has no handler for the signal, or has written none."""
    if not listens(pid):
        return False
    before = written()
    try:
        os.kill(pid, SIGNAL)
    except OSError:
        return False
    deadline = time.monotonic() + ANSWER_SECONDS
    while written() == before and time.monotonic() < deadline:
        time.sleep(0.02)
    size = before
    while size < (size := written()):  # until it has written all of it
        time.sleep(0.05)
    return size > before


def listens(pid: int) -> bool:
    """Tell whether a process has our handler for the signal."""
    if f"{VARIABLE}={int(SIGNAL)}" not in _read(pid, "environ").split("\0"):
        return False
    caught = [line.split()[1] for line in _read(pid, "status").splitlines() if line.startswith("SigCgt:")]
    return bool(caught) and bool(int(caught[0], 16) >> (int(SIGNAL) - 1) & 1)


def by_kernel(pid: int) -> Iterator[str]:
    """Yield what the kernel knows of the threads of a process: state, where each waits, its kernel stack."""
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        yield "  it has ended"
        return
    for thread in threads[:MOST_THREADS]:
        own = f"task/{thread}/"
        state = [line for line in _read(pid, own + "status").splitlines() if line.startswith("State:")]
        waits = _read(pid, own + "wchan").strip()
        where = f", waits in {waits}" if waits not in ("", "0") else ""
        name = _read(pid, own + "comm").strip()
        yield f"  thread {thread} ({name}): {state[0][6:].strip() if state else 'gone'}{where}"
        yield from (f"    {line.strip()}" for line in _read(pid, own + "stack").splitlines())
    if len(threads) > MOST_THREADS:
        yield f"  and {len(threads) - MOST_THREADS} more threads"


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(64 * 1024).decode("utf-8", "replace")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))

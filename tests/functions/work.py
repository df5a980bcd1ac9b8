"""Functions that tests submit; they travel by name."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import shunter


class Unlucky(Exception):
    """Can be pickled and read again."""


class Stubborn(Exception):
    """Can be pickled, and not be read again."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def double(x: Any, *, say: str = "") -> Any:
    if say:
        print(say)
    return 2 * x


def double_here(x: int) -> tuple[int, str]:
    return 2 * x, os.getcwd()


def fail(x: int) -> None:
    raise Unlucky(x)


def fail_stubbornly() -> None:
    raise Stubborn(1, 2)


def even(x: int) -> int:
    if x % 2:
        raise Unlucky(x)
    return x


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(code: int) -> None:
    sys.exit(code)


def return_generator() -> Any:
    return (n for n in range(3))


def wait_for(path: str, ballast: str = "") -> str:
    while not Path(path).exists():
        time.sleep(0.02)
    return "it came"


def who() -> tuple[int, int, str, bool]:
    here = shunter.current()
    return here.rank, here.world_size, here.job, os.path.isdir(here.checkpoint_dir)


def secrets() -> list[str]:
    return [name for name in os.environ if "CALL" in name and name.startswith("SHUNTER")]


class Counting:
    """Counts, and goes on where it was when it was stopped, as submitit's checkpoint protocol has it."""

    def __init__(self) -> None:
        self.begun = 0

    def __call__(self, folder: str) -> list[int]:
        self.begun += 1
        Path(folder, "new").write_text(str(os.getpid()))
        Path(folder, "new").rename(Path(folder, f"run-{self.begun}"))
        if self.begun == 1:
            time.sleep(60)
        return [self.begun]

    def checkpoint(self, folder: str) -> shunter.DelayedSubmission:
        return shunter.DelayedSubmission(self, folder)


def process() -> dict[str, Any]:
    """Return what distinguishes this process from one that `python -m` started."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        squares = pool.map(double, [1, 2])
    return {
        "no_site": sys.flags.no_site,
        "path": [path for path in sys.path if "/jobs/" not in path],
        "words": sys.argv[1:],
        "prefix": sys.prefix,
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "stop": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "leads": os.getsid(0) == os.getpid(),
        "squares": squares,
    }


def end_late(folder: str) -> str:
    """Return at once, and leave an exit function and a thread, for which an interpreter waits."""
    atexit.register(Path(folder, "exit").touch)
    threading.Timer(0.3, Path(folder, "thread").touch).start()
    print("not flushed", end="")
    return "returned"

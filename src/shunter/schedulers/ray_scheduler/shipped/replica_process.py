"""Runs the user's program as a child, so that nothing of it outlives its actor.

An actor of Ray is killed with SIGKILL when its job ends, and whatever it started would keep running. This
process, ``python -S replica_process.py``, reads its orders from stdin, which closes when the actor ends. The
first line says what to run; each later line, ``stop SECONDS``, asks for SIGTERM, and for SIGKILL after that
many seconds. It reports to the descriptor ``report``, in lines of JSON: the program's pid, then how it ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

#: Seconds for what the program started and left behind, between SIGTERM and SIGKILL.
LEFTOVER_GRACE = 1.0
NOT_FOUND, NOT_EXECUTABLE = 127, 126


class ReplicaProcess:
    """One program, from its start to the end of all that it started.

    Args:
        order: ``argv``, ``env``, ``cwd``, ``grace`` (seconds), ``report`` (a descriptor), ``toolkit`` (its
            archive).
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.grace: float = order["grace"]
        self.child: subprocess.Popen[bytes] | None = None
        self.deadline: float | None = None
        self.stopped = False
        self.pending: bytes | None = b""
        reading, self.woken = os.pipe()
        for end in (reading, self.woken):
            os.set_blocking(end, False)
        self.wake = reading
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.woken, warn_on_full_buffer=False)

    def run(self) -> dict[str, Any]:
        """Run the program to its end; returns what is reported."""
        from shunter_toolkit import orphans

        orphans.adopt()
        try:
            self.child = subprocess.Popen(
                self.order["argv"],
                cwd=self.order["cwd"],
                env=self.order["env"],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            what = error.filename or self.order["argv"][0]
            return {"code": code, "signal": 0, "error": f"{what}: {error.strerror}"}
        self.report({"pid": self.child.pid})
        while self.child.poll() is None:
            self.wait_for_news()
        left = 0.0 if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        grace = left if self.stopped else min(self.grace, LEFTOVER_GRACE)
        orphans.end_group(self.child.pid, grace, self.wake, everything=True, told=self.stopped)
        status = self.child.returncode
        killed = -status if status < 0 else 0
        return {"code": 128 + killed if killed else status, "signal": killed, "error": ""}

    def report(self, news: dict[str, Any]) -> None:
        """Tell the actor something; it may be gone."""
        try:
            os.write(self.order["report"], json.dumps(news).encode() + b"\n")
        except OSError:
            pass

    def wait_for_news(self) -> None:
        """Wait for an order, the end of a child, or the end of the grace period."""
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        if self.pending is not None:
            poll.register(0, select.POLLIN)
        left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic()) * 1000
        for descriptor, _ in poll.poll(left):
            if descriptor == self.wake:
                os.read(self.wake, 4096)
            else:
                self.read_orders()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.send(signal.SIGKILL)
            self.deadline = time.monotonic() + LEFTOVER_GRACE

    def read_orders(self) -> None:
        """Carry out the orders that have arrived; the end of stdin is an order to stop."""
        data = os.read(0, 4096)
        if not data:
            self.pending = None
            self.stop(self.grace)
            return
        *lines, self.pending = ((self.pending or b"") + data).split(b"\n")
        for line in lines:
            words = line.decode().split()
            if words and words[0] == "stop":
                self.stop(float(words[1]) if words[1:] else self.grace)

    def stop(self, grace: float) -> None:
        """Send SIGTERM once, and SIGKILL later."""
        if not self.stopped:
            self.stopped = True
            self.deadline = time.monotonic() + grace
            self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        """Send a signal to the program and what it started in its group."""
        try:
            if self.child is not None:
                os.killpg(self.child.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def main() -> None:
    """Read the order, run the program, and report."""
    if os.fork():  # Ray kills the children of an actor with it, and this one has to tidy up then
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # it ends by its orders; ignoring would be inherited
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        line += byte
    order = json.loads(line.decode())
    sys.path.insert(0, order["toolkit"])
    os.set_inheritable(order["report"], False)
    process = ReplicaProcess(order)
    try:
        end = process.run()
    except Exception as error:
        end = {"code": 1, "signal": 0, "error": f"{type(error).__name__}: {error}"}
    process.report(end)


if __name__ == "__main__":
    main()

"""Runs the user's program as the toolkit runs a script, so that nothing of it outlives its actor.

An actor of Ray is killed with SIGKILL when its job ends, and whatever it started would keep running. This
process gets one line of JSON on stdin, which says what to run. The end of stdin, which comes with the end of
the actor too, asks for SIGTERM, and for SIGKILL after the grace period. The process reports to a pipe, in
lines of JSON: the program's pid, what is found of it, and how it ended. Its stdout and stderr, files in which
texts are appended, are those of the program.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from shunter_toolkit import child_process, hung_program, orphans, stack_dump
from shunter_toolkit.errors import StartError


class ReplicaProcess:
    """One program, from its start to the end of all that it started.

    Args:
        order: ``argv``, ``env``, ``cwd``, ``grace`` (seconds), ``report`` (a descriptor), ``hang`` (None, or
            ``seconds`` and ``on_hang``), ``results`` (folders of them), ``handlers`` (the folder for what
            writes the stacks of Python).
        orders: a descriptor that ends when the program is to be stopped.
    """

    def __init__(self, order: dict[str, Any], orders: int) -> None:
        self.order = order
        self.orders = orders
        command = child_process.Command(order["argv"], order["env"], order["cwd"], whole_group=True)
        policy = child_process.Policy(order["grace"], on_start=self.started)
        self.supervisor = child_process.Supervisor(command, policy, {}, owns_process=True)

    def run(self) -> None:
        """Run the program to its end."""
        orphans.adopt()
        if self.order["hang"]:
            self.listen_for_stacks()
        self.supervisor.watch(self.orders, self.stop)
        try:
            outcome = self.supervisor.run()
        except StartError as error:
            self.report(code=error.exit_code, signal=0, error=str(error))
        else:
            self.report(code=outcome.exit_code, signal=max(0, -outcome.status), error="")

    def report(self, **news: Any) -> None:
        """Tell the actor something; it may be gone."""
        try:
            os.write(self.order["report"], json.dumps(news).encode() + b"\n")
        except OSError:
            pass

    def started(self, pid: int) -> None:
        """Report the program, and watch it for hangs to its end."""
        self.report(pid=pid)
        if self.order["hang"]:
            threading.Thread(target=self.watch, args=(pid,), daemon=True).start()

    def stop(self) -> None:
        """Ask the program to end, since stdin has ended."""
        self.supervisor.unwatch(self.orders)
        self.supervisor.stop()

    def listen_for_stacks(self) -> None:
        """Have the program's Python processes write their stacks upon a signal."""
        folder, env = self.order["handlers"], self.order["env"]
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, stack_dump.HANDLER_FILE), "w", encoding="utf-8") as file:
            file.write(stack_dump.HANDLER)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH", "")]))
        env[stack_dump.VARIABLE] = str(int(stack_dump.SIGNAL))

    def watch(self, pid: int) -> None:
        """Watch the program for hangs, in a thread."""
        asked = self.order["hang"]
        program = hung_program.HungProgram(
            pid,
            asked["seconds"],
            self.order["results"],
            written=lambda: os.fstat(1).st_size + os.fstat(2).st_size,
            output=2,
            say=lambda text: self.report(note=text),
        )
        hung_program.watch(
            program, asked["on_hang"], self.order["grace"], lambda reason: self.report(hung=reason)
        )


def main() -> None:
    """Read the order, run the program, and report."""
    if os.fork():  # Ray kills the children of an actor with it, and this one has to tidy up then
        os._exit(0)
    orders = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with open(orders, encoding="utf-8") as lines:
        line = lines.readline()
        if not line:
            return
        order = json.loads(line)
        os.set_inheritable(order["report"], False)
        ReplicaProcess(order, orders).run()


if __name__ == "__main__":
    main()

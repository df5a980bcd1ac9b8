"""Make a port of a running replica reachable on this machine: of TensorBoard, Jupyter, a debugger.

`shunter forward JOB 6006` listens on port 6006 of 127.0.0.1, `6006:8000` on 8000, `6006:0` on any free
port. It ends when the replica has ended, or with Ctrl-C. Each connection is a command in the replica, as
with `shunter exec`, so it works where that does; it needs Python in the replica.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from argparse import Namespace

from shunter.backoff import polling
from shunter.cli.console import note, out
from shunter.cli.job_names import select_replicas, split_target
from shunter.cli.parser import Parser
from shunter.cli.replica_python import python_words
from shunter.cli.watching import Interrupts
from shunter.errors import BackendError, ConfigError, UsageError
from shunter.limits import MOST_PORT, whole_number
from shunter.runner import Runner, get_runner
from shunter.schedulers.capabilities import capabilities_of
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import is_terminal

#: Connections at a time: each is a process here and one in the replica. More wait.
MOST_CONNECTIONS = 32
#: Seconds that processes of connections have to end when forwarding ends.
PATIENCE = 5.0


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "target",
        nargs="?",
        metavar="JOB[/ROLE/ID]",
        help="the job (the latest by default), and which of its replicas; not needed if it has only one",
        completer="job_completer",
    )
    parser.add_argument(
        "ports",
        metavar="PORT[:LOCAL]",
        help="port in the replica, and on this machine: the same by default, 0 for any free port",
    )


def run(args: Namespace) -> None:
    with get_runner() as runner:
        if args.target is None:
            _ports(args.ports, "JOB" if args.ports.isdecimal() else args.ports)
        handle, role, k = _replica(runner, args.target or "-")
        port, local = _ports(args.ports, args.target or "JOB")
        _check_running(runner, handle, role, k)
        with Interrupts(None), _listen(local) as listener, Connections(handle, role, k, port) as connections:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            out(f"{address} is port {port} of {role}/{k}; Ctrl-C ends it")
            threading.Thread(target=connections.accept_from, args=(listener,), daemon=True).start()
            polls = polling()
            while (end := _end_of(runner, handle, role, k)) == "":
                polls.pause()
        note(f"{role}/{k} of {handle} {end}")


class Connections:
    """The connections that are forwarded, a process for each. A context manager that ends them.

    Args:
        handle: the job.
        role: the replica's role.
        k: its index.
        port: its port.
    """

    def __init__(self, handle: str, role: str, k: int, port: int) -> None:
        command = python_words("port_relay.py", str(port))
        words = ["exec", handle, f"{role}/{k}", "--no-tty", "--", *command]
        self._words = [sys.executable, "-P", "-m", "shunter", *words]
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_over = False

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._is_over = True
            processes = list(self._processes)
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()

    def accept_from(self, listener: socket.socket) -> None:
        """Forward connections until the listening socket is closed."""
        while True:
            self._free.acquire()
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, self._lock:
                if self._is_over:
                    return
                try:
                    # Ctrl-C of the terminal is for this process, which ends the others
                    process = subprocess.Popen(
                        self._words,
                        stdin=connection.fileno(),
                        stdout=connection.fileno(),
                        start_new_session=True,
                    )
                except OSError as error:
                    note(f"a connection is refused: {error.strerror or error}")
                    self._free.release()
                    continue
                self._processes.add(process)
            threading.Thread(target=self._wait_for, args=(process,), daemon=True).start()

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        with self._lock:
            self._processes.discard(process)
        self._free.release()


def _ports(text: str, target: str) -> tuple[int, int]:
    there, colon, here = text.partition(":")
    try:
        port = whole_number(there, 1, MOST_PORT)
        return port, whole_number(here, 0, MOST_PORT) if colon else port
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a port: {error}; examples: 6006, 6006:8000",
            hint=f"Example: shunter forward {target} 6006",
        ) from None


def _replica(runner: Runner, target: str) -> tuple[str, str, int]:
    """Return the handle, role and index of the replica that is named, or of the only one."""
    job, choices = split_target(target)
    handle = runner.resolve_handle(job)
    chosen = select_replicas(runner.replicas(handle), choices)
    if len(chosen) != 1:
        names = ", ".join(f"{role}/{k}" for role, k in chosen[:20])
        raise UsageError(
            f"{handle} has {len(chosen)} such replicas: name one",
            hint=f"JOB/ROLE/ID, where ROLE/ID is one of: {names}",
        )
    return handle, *chosen[0]


def _check_running(runner: Runner, handle: str, role: str, k: int) -> None:
    scheduler = runner.scheduler(parse_app_handle(handle).scheduler_backend)
    if not capabilities_of(scheduler)["forward"]:
        raise ConfigError(
            f"{scheduler.backend} has no connection to its replicas that could carry a port",
            hint="`shunter schedulers` shows which schedulers have. Have the job write to storage what you "
            "want to see, or, in the same network, open the replica's host, which `shunter status` shows.",
        )
    end = _end_of(runner, handle, role, k)
    if end:
        raise ConfigError(f"{role}/{k} of {handle} {end}", hint="Forwarding needs a running replica.")


def _end_of(runner: Runner, handle: str, role: str, k: int) -> str:
    """Return in words why nothing can be forwarded any more; "" while the replica can be running."""
    status = runner.status(handle)
    if status is None:
        return "is not known any more"
    states = [replica.state for replica in status.replicas() if (replica.role, replica.id) == (role, k)]
    state = states[0] if states else status.state
    if is_terminal(status.state) or is_terminal(state):
        return f"has ended: {state}"
    return ""


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise BackendError(
            f"cannot listen on port {port} of 127.0.0.1: {os.strerror(error.errno or 0)}",
            hint="Choose another port of this machine: PORT:LOCAL, with LOCAL 0 for any free one.",
        ) from None

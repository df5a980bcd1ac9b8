"""The program that MPI starts for each rank: it gets the environment of its own host and starts the script.

``mpirun -x`` would export the first host's variables: every rank would believe that it is on the first host,
and the command line would show the variables. So each host gives its ranks their environment itself, through
a socket that only this user can open.

This process stays beside the script. mpirun kills all ranks as soon as one of them fails; that is wrong after
all of them were asked to stop, while some still save their state. So the host's toolkit decides when mpirun
sees the end of a rank.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from . import child_process, kernel, orphans

#: The sockets of the hosts whose ranks run on this machine, in the order of the ranks.
SOCKETS_VARIABLE = "SHUNTER_RANK_SOCKETS"
EXPORTS_VARIABLE = "SHUNTER_MPI_EXPORTS"
DIRECTORY_VARIABLE = "SHUNTER_CODE_DIR"
_LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PRTE_", "PMI_")


def command(home: str, script: list[str]) -> list[str]:
    """The command line that runs a script through this module, from a folder or a zipapp."""
    load = f"import sys; sys.path.insert(0, {home!r}); from shunter_toolkit.mpi_rank import main"
    return [sys.executable, "-c", f"{load}; main(sys.argv[1:])", *script]


def main(script: list[str]) -> None:
    """Take the environment of this host, run the script, which dies with MPI's daemon, and end as it does.

    Does not return.
    """
    orphans.die_with_launcher()
    environ = dict(os.environ)
    paths = environ.get(SOCKETS_VARIABLE, "").split(os.pathsep)
    if not paths[0]:
        _become(script, environ)
        return
    place = place_in(environ, len(paths)) if len(paths) > 1 else 0
    connection, host = fetch(paths[place])
    parent = os.getpid()
    orphans.prepare()
    pid = os.fork()
    if pid == 0:
        orphans.die_with_parent(parent)
        _become(script, merged(host, environ))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # these are for the script to handle
    connection.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    try:
        connection.sendall(b"ended\n")
        connection.recv(1)  # ends when the toolkit closes the connection
    except OSError:
        pass
    _end_as(status)


def place_in(environ: dict[str, str], hosts: int) -> int:
    """Return which of the hosts on this machine a rank belongs to; its local rank becomes that on its host.

    Ranks are numbered host by host, as many on each.
    """
    per_host = max(int(environ["OMPI_COMM_WORLD_SIZE"]) // hosts, 1)
    place, local = divmod(int(environ["OMPI_COMM_WORLD_RANK"]), per_host)
    environ.update(OMPI_COMM_WORLD_LOCAL_RANK=str(local), OMPI_COMM_WORLD_LOCAL_SIZE=str(per_host))
    return min(place, hosts - 1)


def _become(script: list[str], environ: dict[str, str]) -> None:
    try:
        os.chdir(environ.get(DIRECTORY_VARIABLE, "."))
        os.execvpe(script[0], script, environ)
    except OSError as error:
        sys.stderr.write(f"cannot start {script[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _end_as(status: int) -> None:
    """End with the exit code, or by the signal, of another process."""
    if os.WIFSIGNALED(status):
        child_process.end_by(os.WTERMSIG(status))  # without a core dump: the script's own is enough
        os._exit(128 + os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def fetch(path: str) -> tuple[socket.socket, dict[str, str]]:
    """Ask the host's toolkit for the environment; returns the connection too."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    with connection.makefile("rb") as file:
        loaded: dict[str, str] = json.loads(file.readline())
    return connection, loaded


def merged(host: dict[str, str], rank: dict[str, str]) -> dict[str, str]:
    """The host's variables, with those of the launcher and those exported by ``-x`` from the rank's."""
    exported = rank.get(EXPORTS_VARIABLE, "").split(",")
    own = {n: v for n, v in rank.items() if n.startswith(_LAUNCHER_PREFIXES) or n in exported}
    return {**host, **own}


class Rank:
    """A rank of this host, as its toolkit sees it.

    Attributes:
        keeper: pid of the process beside the script.
        pid: pid of the script; 0 until it is known.
        has_ended: the script has ended.
    """

    def __init__(self, connection: socket.socket, keeper: int) -> None:
        self.connection = connection
        self.keeper = keeper
        self.pid = 0
        self.has_ended = False
        self._rest = b""

    def fileno(self) -> int:
        """For poll."""
        return self.connection.fileno()

    def receive(self) -> None:
        """Read what it says: its script's pid, then that it has ended."""
        try:
            data = self.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.isdigit():
                self.pid = int(line)
        self.has_ended = self.has_ended or not data or b"ended" in lines

    def release(self) -> None:
        """Let MPI see that it has ended."""
        self.connection.close()


class Server:
    """Hands the environment to the ranks of this host."""

    def __init__(self, path: str, env: dict[str, str]) -> None:
        self._env = json.dumps(env).encode() + b"\n"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(1024)
        self._listener.setblocking(False)

    def fileno(self) -> int:
        """For poll."""
        return self._listener.fileno()

    def serve(self) -> list[Rank]:
        """Answer the ranks that wait; returns them."""
        ranks: list[Rank] = []
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return ranks
            pid, uid = kernel.peer_of(connection)
            if uid != os.geteuid():
                connection.close()
                continue
            connection.setblocking(True)
            try:
                connection.sendall(self._env)
            except OSError:
                connection.close()
                continue
            connection.setblocking(False)
            ranks.append(Rank(connection, pid))

    def close(self) -> None:
        """Stop answering."""
        self._listener.close()

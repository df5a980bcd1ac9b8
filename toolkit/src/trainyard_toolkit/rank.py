"""What each MPI rank on another host runs first: it takes that host's own environment and becomes the script.

Exporting the first host's variables to every rank, as ``mpirun -x`` would, tells each rank that it is on
the first host, and shows them on the command line. So each host hands its ranks their environment itself,
through a socket that only this user can open.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from trainyard_toolkit import orphans

SOCKET_VARIABLE = "TRAINYARD_RANK_SOCKET"
EXPORTS_VARIABLE = "TRAINYARD_MPI_EXPORTS"
DIRECTORY_VARIABLE = "TRAINYARD_CODE_DIR"
_LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PRTE_", "PMI_")


def command(home: str, script: list[str]) -> list[str]:
    """The command line that runs a script through this module, from a folder or a zipapp."""
    load = f"import sys; sys.path.insert(0, {home!r}); from trainyard_toolkit.rank import main"
    return [sys.executable, "-c", f"{load}; main(sys.argv[1:])", *script]


def main(script: list[str]) -> None:
    """Take the environment of this host and exec the script, which dies with MPI's daemon.

    Does not return.
    """
    orphans.die_with_launcher()
    environ = dict(os.environ)
    path = environ.get(SOCKET_VARIABLE)
    if path:
        environ = merged(fetch(path), environ)
    os.chdir(environ.get(DIRECTORY_VARIABLE, "."))
    os.execvpe(script[0], script, environ)


def fetch(path: str) -> dict[str, str]:
    """Ask the host's toolkit for the environment."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rb") as file:
            loaded: dict[str, str] = json.loads(file.read())
            return loaded


def merged(host: dict[str, str], rank: dict[str, str]) -> dict[str, str]:
    """The host's variables, with those of the launcher and those exported by ``-x`` from the rank's."""
    exported = rank.get(EXPORTS_VARIABLE, "").split(",")
    own = {n: v for n, v in rank.items() if n.startswith(_LAUNCHER_PREFIXES) or n in exported}
    return {**host, **own}


class Server:
    """Hands the environment to the ranks of this host, and remembers their pids, to pass signals on."""

    def __init__(self, path: str, env: dict[str, str]) -> None:
        self.pids: list[int] = []
        self._env = json.dumps(env).encode()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(1024)
        self._listener.setblocking(False)

    def fileno(self) -> int:
        """For poll."""
        return self._listener.fileno()

    def serve(self) -> None:
        """Answer the ranks that wait."""
        import struct

        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            with connection:
                connection.setblocking(True)
                who = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                pid, uid, _ = struct.unpack("3i", who)
                if uid == os.geteuid():
                    self.pids.append(pid)
                    connection.sendall(self._env)

    def close(self) -> None:
        """Stop answering."""
        self._listener.close()

"""Joins a port of a replica to stdin and stdout. `shunter forward` runs the text of this file in the replica.

It is called as ``python -c TEXT PORT``, with whatever Python the replica has.
"""

import os
import socket
import sys
import threading


def connect(port: int) -> socket.socket:
    """Return a connection to a port: of the address that is the replica's own, or of its host."""
    problem = ""
    for name in (os.environ.get("SM_CURRENT_HOST"), "localhost", socket.gethostname()):
        if name:
            try:
                return socket.create_connection((name, port), 10)
            except OSError as error:
                problem = error.strerror or str(error)
    sys.exit(f"nothing answers at port {port} of this replica: {problem}")


def send_input(server: socket.socket) -> None:
    """Send what comes on stdin; its end is passed on, and the answer may follow after it."""
    try:
        while True:
            data = os.read(0, 65536)
            if not data:
                break
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)
    except OSError:  # the server has closed the connection
        pass


def receive(server: socket.socket) -> None:
    """Write what the server sends to stdout, until it closes the connection."""
    try:
        while True:
            data = server.recv(65536)
            if not data:
                return
            while data:
                data = data[os.write(1, data) :]
    except OSError:  # one of the two is gone
        pass


def main() -> None:
    """Relay one connection."""
    server = connect(int(sys.argv[1]))
    server.settimeout(None)
    threading.Thread(target=send_input, args=(server,), daemon=True).start()
    receive(server)
    os._exit(0)


if __name__ == "__main__":
    main()

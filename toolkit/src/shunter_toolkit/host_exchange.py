"""Tells the hosts of a job each other's addresses, on platforms that give them no names.

The first host listens, the others connect and identify themselves; whenever one joins, all get the addresses.
A child of ``train`` does this for as long as ``train`` runs, so that hosts that join late, or rejoin, are
known too.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from . import orphans, rendezvous
from .errors import ClusterError

PORT = 7778
PORT_VARIABLE = "SHUNTER_NAMES_PORT"
#: Seconds until a platform that names its hosts can resolve the name of a host that is just starting.
_STARTING_SECONDS = 5.0


def are_known(hosts: Sequence[str], current: str) -> bool:
    """Tell whether the platform names hosts: then this one's name resolves. Waits a while for the others."""
    if not _resolves(current):
        return False
    deadline = time.monotonic() + _STARTING_SECONDS
    waiting = [host for host in hosts if not _resolves(host)]
    while waiting and time.monotonic() < deadline:
        time.sleep(0.05)
        waiting = [host for host in waiting if not _resolves(host)]
    return True


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


class Exchange:
    """The child that exchanges addresses with the other hosts.

    Args:
        hosts: the names of all hosts.
        current: this host's.
        write: gets the addresses that are known, whenever there are more; None for nothing.
    """

    def __init__(
        self, hosts: Sequence[str], current: str, write: Callable[[Mapping[str, str]], None] | None
    ) -> None:
        orphans.prepare()
        self._hosts = list(hosts)
        self._known, writing = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _keep(self._hosts, current, write, writing, parent)
        os.close(writing)
        orphans.keep(self._pid)

    def wait(self) -> dict[str, str]:
        """Wait until the addresses of all hosts are known; return those of the hosts that joined in time."""
        deadline = time.monotonic() + rendezvous.wait_seconds()
        table: dict[str, str] = {}
        poll = select.poll()
        poll.register(self._known, select.POLLIN)
        rest = b""
        while not table.keys() >= set(self._hosts):
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not poll.poll(remaining * 1000):
                break
            data = os.read(self._known, 4096)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                host, address = line.decode().split(" ", 1)
                table[host] = address
        return {host: table[host] for host in self._hosts if host in table}

    def close(self) -> None:
        """End the child."""
        os.close(self._known)
        orphans.end_service(self._pid)


def _keep(
    hosts: list[str],
    current: str,
    write: Callable[[Mapping[str, str]], None] | None,
    writing: int,
    parent: int,
) -> NoReturn:
    """Run as the child of an `Exchange`."""
    try:
        orphans.die_with_parent(parent)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # ``train`` ends it, when the script has ended

        def known(table: Mapping[str, str]) -> None:
            if write is not None:
                write(table)
            os.write(writing, "".join(f"{host} {address}\n" for host, address in table.items()).encode())

        if current == hosts[0]:
            _listen(hosts, known)
        else:
            _connect(hosts, current, known)
    except (OSError, ClusterError):
        pass  # the parent notices that the pipe has ended
    finally:
        os._exit(0)


def _port() -> int:
    return int(os.environ.get(PORT_VARIABLE, PORT))


def _listen(hosts: list[str], known: Callable[[Mapping[str, str]], None]) -> None:
    """The first host: accept every host, and send the addresses of all to each."""
    listener = rendezvous.listen(_port(), PORT_VARIABLE)
    table: dict[str, str] = {}
    lines: dict[int, rendezvous.Line] = {}
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                line = rendezvous.Line(listener.accept()[0])
                lines[line.fileno()] = line
                poll.register(line, select.POLLIN)
                continue
            line = lines[descriptor]
            came = [message.get("host") for message in line.receive()]
            if line.lost:
                poll.unregister(descriptor)
                lines.pop(descriptor).close()
            elif came and came[0] in hosts[1:]:
                table[hosts[0]], table[came[0]] = line.addresses()
                for other in list(lines.values()):
                    other.send({"addresses": table})
                known(table)  # last: this host's script may start, end, and with it this process


def _connect(hosts: list[str], current: str, known: Callable[[Mapping[str, str]], None]) -> None:
    """Any other host: identify itself, receive the addresses; reconnect if the connection is lost."""
    address = rendezvous.address_of(hosts[0], hosts)
    pause = 0.02
    while True:
        try:
            line = rendezvous.Line(socket.create_connection((address, _port()), 5))
        except OSError:
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)
            continue
        pause = 0.02
        line.send({"host": current})
        # The first host sends the others' addresses as it sees them; its own is the one by which we reach it.
        here, there = line.addresses()
        own = {hosts[0]: there, current: here}
        while not line.lost:
            for message in line.wait(3600.0):
                told = message.get("addresses", {})
                known({**{host: told[host] for host in hosts if host in told}, **own})
        line.close()

"""Brings the hosts of a job together, and lets them end together.

The first host listens, the others connect and stay connected while the job runs. Each says how its part
ended; the first host tells all of them how the job ended. A broken connection means that a host was lost.
So any failing rank or host fails the job on every host without delay.

Messages are JSON objects, one per line. They carry no command and no secret.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from . import log
from .errors import ClusterError

PORT = 7779
WAIT_SECONDS = 900.0
_LONGEST_MESSAGE = 1024 * 1024


def port() -> int:
    """The port that the first host listens on: ``SHUNTER_RENDEZVOUS_PORT``, default 7779."""
    return int(os.environ.get("SHUNTER_RENDEZVOUS_PORT", PORT))


def wait_seconds() -> float:
    """How long hosts wait for each other: ``SHUNTER_HOST_WAIT_SECONDS``, default 900."""
    return float(os.environ.get("SHUNTER_HOST_WAIT_SECONDS", WAIT_SECONDS))


def address_of(host: str, hosts: Sequence[str]) -> str:
    """Where a host is reached: its name, or for the first one TORCHX_RANK0_HOST if the launcher gives it.

    A loopback address is one of the job's own, and distinguishes it from other jobs on this machine.
    """
    if hosts and host == hosts[0] and not host.startswith("127."):
        return os.environ.get("TORCHX_RANK0_HOST") or host
    return host


class Line:
    """A connection that carries messages."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
        self._rest = b""
        self.lost = False
        self.early: list[dict[str, Any]] = []  # arrived together with the greeting

    def fileno(self) -> int:
        """For poll."""
        return self.connection.fileno()

    def addresses(self) -> tuple[str, str]:
        """The addresses of this host and of the peer; IPv4 ones without the prefix ``::ffff:``."""
        ends = (self.connection.getsockname()[0], self.connection.getpeername()[0])
        own, peer = (address[7:] if address.startswith("::ffff:") else address for address in ends)
        return own, peer

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; if the peer is gone, set ``lost`` and raise nothing."""
        try:
            self.connection.settimeout(10)
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.lost = True
        finally:
            self.connection.setblocking(False)

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived; sets ``lost`` at the end of the connection."""
        try:
            data = self.connection.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or len(self._rest) > _LONGEST_MESSAGE:
            self.lost = True
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            return [message for message in map(json.loads, lines) if isinstance(message, dict)]
        except ValueError:
            self.lost = True
            return []

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """Wait for messages; an empty list on timeout, or if the peer is gone."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self, select.POLLIN)
        while not self.lost:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not poll.poll(remaining * 1000):
                return []
            messages = self.receive()
            if messages:
                return messages
        return []

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class Chief:
    """The first host's side: which hosts have joined, and how the part of each ended.

    Args:
        hosts: all hosts of the distribution, this one first.

    Raises:
        ClusterError: the port is taken.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self.others = list(hosts[1:])
        self.lines: dict[str, Line] = {}
        self.hellos: dict[str, dict[str, Any]] = {}
        self.ended: dict[str, dict[str, Any]] = {}
        self.idle: set[str] = set()  # hosts whose ranks have all ended, after a stop
        self._listener = listen(port())

    def gather(self, greeting: dict[str, Any]) -> None:
        """Wait until every other host has said hello; answer each with ``greeting``.

        Raises:
            ClusterError: not in time; the message names the hosts that are missing.
        """
        deadline = time.monotonic() + wait_seconds()
        pending: list[Line] = []
        while self.missing:
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            for line in pending:
                poll.register(line, select.POLLIN)
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise ClusterError(
                    f"Hosts that did not join within {wait_seconds():.0f} s: {', '.join(self.missing)}. "
                    f"Check that they were started and can reach port {port()} of this host, "
                    "or set SHUNTER_HOST_WAIT_SECONDS."
                )
            ready = {descriptor for descriptor, _ in poll.poll(remaining * 1000)}
            if self._listener.fileno() in ready:
                pending.append(Line(self._listener.accept()[0]))
            for line in [line for line in pending if line.fileno() in ready]:
                if self._admit(line, greeting) or line.lost:
                    pending.remove(line)

    def await_ready(self) -> None:
        """Wait until every host has said that it is ready.

        Raises:
            ClusterError: one failed or was lost, or was not ready in time.
        """
        for host, line in self.lines.items():
            messages = line.wait(wait_seconds())
            failed = [message for message in messages if "exit" in message]
            if failed:
                raise other_host_failed(host, failed[0])
            if not any(message.get("ready") for message in messages):
                raise ClusterError(f"Host {host} joined but did not become ready. Its log says why.")

    @property
    def missing(self) -> list[str]:
        """The hosts that have not joined."""
        return [host for host in self.others if host not in self.lines]

    def _admit(self, line: Line, greeting: dict[str, Any]) -> bool:
        for message in line.receive():
            host = message.get("hello")
            if host in self.missing:
                self.lines[host], self.hellos[host] = line, message
                line.send(greeting)
                return True
            log.warning(f"A connection that names itself {host!r} was rejected: no such host is expected.")
            line.close()
            line.lost = True
        return False

    def receive(self, host: str) -> dict[str, Any] | None:
        """Read a host's messages; return how its part ended, None while it runs."""
        line = self.lines[host]
        for message in line.receive():
            if "exit" in message:
                self.ended[host] = message
            elif "idle" in message:
                self.idle.add(host)
        if line.lost and host not in self.ended:
            self.ended[host] = {"exit": 1, "lost": True, "reason": f"the connection to host {host} was lost"}
        return self.ended.get(host)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to every host."""
        for line in self.lines.values():
            line.send(message)

    def await_ends(self) -> None:
        """Wait until every host has ended its part or is lost, or until one of them failed."""
        while len(self.ended) < len(self.lines) and not self.failed():
            poll = select.poll()
            for host, line in self.lines.items():
                if host not in self.ended:
                    poll.register(line, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            for host, line in self.lines.items():
                if line.fileno() in ready:
                    self.receive(host)

    def failed(self) -> tuple[str, dict[str, Any]] | None:
        """The first host whose part failed, and what it said."""
        for host, message in self.ended.items():
            if message["exit"] != 0:
                return host, message
        return None

    def close(self) -> None:
        """Close all connections."""
        self._listener.close()
        for line in self.lines.values():
            line.close()


def listen(number: int, variable: str = "SHUNTER_RENDEZVOUS_PORT") -> socket.socket:
    """Listen on a port for the other hosts.

    Args:
        number: the port.
        variable: the variable that sets another port, for the message.

    Raises:
        ClusterError: it is taken.
    """
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", number), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", number))
    except OSError as error:
        raise ClusterError(
            f"Cannot listen for the other hosts on port {number}: {error.strerror}. "
            f"Set {variable} to a free port on every host."
        ) from None


def join(current: str, address: str, hello: dict[str, Any]) -> tuple[Line, dict[str, Any]]:
    """Connect to the first host, trying again until it is up; return the line and its greeting.

    Raises:
        ClusterError: it did not answer in time.
    """
    deadline = time.monotonic() + wait_seconds()
    pause = 0.02
    reason: object = "no answer"
    while time.monotonic() < deadline:
        try:
            line = Line(socket.create_connection((address, port()), 5, _source(current)))
            line.send({"hello": current, **hello})
            messages = line.wait(deadline - time.monotonic())
            if messages:
                line.early = messages[1:]
                return line, messages[0]
            line.close()
            reason = "it closed the connection"
        except OSError as error:
            reason = error
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
    raise ClusterError(
        f"Host {current} cannot reach the first host of the job, {address} port {port()}: {reason}. "
        "Check that it was started, that its name resolves here and that the port is open."
    )


def _source(host: str) -> tuple[str, int] | None:
    """Where to connect from: hosts that share a machine are distinguished by their loopback addresses."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return None
    return (address, 0) if address.startswith("127.") and address != "127.0.0.1" else None


def other_host_failed(host: str, message: dict[str, Any]) -> ClusterError:
    """The error with which a host ends because another one failed."""
    code = int(message.get("exit", 1)) or 1
    error = ClusterError(f"Host {host} failed (exit code {code}): {message.get('reason', 'no reason given')}")
    error.exit_code = code
    error.failure_class = message.get("class", error.failure_class)
    return error

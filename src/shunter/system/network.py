"""This machine's network: its routes, its traffic, and who is at the other end of a local connection."""

from __future__ import annotations

import os
import socket
import sys

ROUTES = "/proc/net/route"
#: How often the table of sockets is read: it can miss an entry while others come and go.
_TABLE_READS = 3


def network_bytes() -> tuple[int, int]:
    """Return how many bytes this network namespace has received and sent, without loopback."""
    import psutil

    counters = [
        value for name, value in psutil.net_io_counters(pernic=True).items() if not name.startswith("lo")
    ]
    return sum(value.bytes_recv for value in counters), sum(value.bytes_sent for value in counters)


def routes() -> list[tuple[int, int]]:
    """Return the addresses and masks of this machine's IPv4 routes, as numbers; empty if it does not tell."""
    try:
        with open(ROUTES, encoding="ascii") as file:
            rows = [line.split() for line in file][1:]
    except OSError:
        return []
    as_number = [[int.from_bytes(bytes.fromhex(row[n]), "little") for n in (1, 7)] for row in rows]
    return [(destination & mask, mask) for destination, mask in as_number]


def user_of_peer(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the uid of the process at the other end of a TCP connection on this machine.

    Returns -1 if there is no such process, or if it has closed its end, which the kernel shows as root's.
    Returns None if the system cannot tell.

    Args:
        peer: address and port of the other end.
        own: address and port of this end.
    """
    table = "/proc/net/tcp6" if ":" in peer[0] else "/proc/net/tcp"
    if not os.path.exists(table):
        return None
    # Match both ends: the peer's address alone may also belong to connections to others, or to old ones.
    wanted = [_in_table(*peer), _in_table(*own)]
    for _ in range(_TABLE_READS):
        with open(table, encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if len(fields) > 9 and fields[1:3] == wanted:
                    has_owner = fields[9] != "0"  # the inode, by which processes hold it
                    return int(fields[7]) if has_owner else -1
    return -1


def _in_table(address: str, port: int) -> str:
    """Return an address and a port as the kernel's table has them."""
    version, width = (socket.AF_INET6, 16) if ":" in address else (socket.AF_INET, 4)
    raw = socket.inet_pton(version, address.partition("%")[0])
    # The kernel shows each group of four bytes in this machine's order.
    swapped = b"".join(
        int.from_bytes(raw[i : i + 4], sys.byteorder).to_bytes(4, "big") for i in range(0, width, 4)
    )
    return f"{swapped.hex().upper()}:{port:04X}"

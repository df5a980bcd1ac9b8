"""Finds the addresses of a job's hosts where the platform does not make their names resolve.

Hosts that are processes of one machine have loopback addresses of their own. Other hosts tell each other
through the first one. In a container, the names are written to its ``/etc/hosts``; elsewhere the addresses
take the names' place in ``SM_HOSTS``.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Mapping, Sequence

from . import host_exchange, kernel, log
from .job_document import Job

HOSTS_FILE = "/etc/hosts"
#: ``loopback``: the job's hosts are processes of one machine.
NETWORK_VARIABLE = "SHUNTER_HOST_NETWORK"
LOOPBACK = "loopback"
#: Where the launcher says that the first host is reached.
FIRST_HOST_VARIABLE = "TORCHX_RANK0_HOST"
_HOSTS_PER_NETWORK = 250


class HostNames:
    """What the hosts of a job are called.

    Args:
        job: the job document.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._before: bytes | None = None
        self._exchange: host_exchange.Exchange | None = None

    def find(self) -> dict[str, str]:
        """Make the names resolve, or return the addresses that take their place, by name."""
        hosts, current = self._job.hosts, self._job.current_host
        known = names_in(_read(HOSTS_FILE))
        if all(host in known for host in hosts):
            return {}
        if len(hosts) == 1 or os.environ.get(NETWORK_VARIABLE) == LOOPBACK:
            return loopback_addresses(self._job.name, hosts)
        if FIRST_HOST_VARIABLE not in os.environ:
            return {}  # the platform names its hosts, or the first host's address is not known
        if host_exchange.are_known(hosts, current):
            return {}
        writable = _is_mounted(HOSTS_FILE) and os.access(HOSTS_FILE, os.W_OK)
        self._exchange = host_exchange.Exchange(hosts, current, self._write_hosts if writable else None)
        table = self._exchange.wait()
        missing = [host for host in hosts if host not in table]
        if missing:
            log.warning(
                f"The names of {', '.join(missing)} do not resolve yet: these hosts did not join within the "
                "time of SHUNTER_HOST_WAIT_SECONDS. The script is started nevertheless."
            )
        return {} if writable else self._in_place_of_names(table)

    def _in_place_of_names(self, table: Mapping[str, str]) -> dict[str, str]:
        """The addresses, if they are different for each host; {} otherwise."""
        hosts = self._job.hosts
        if len(table) < len(hosts):
            return {}
        addresses = set(table.values())
        if len(addresses) == len(hosts):
            return dict(table)
        if len(addresses) == 1:  # all on one machine
            return loopback_addresses(self._job.name, hosts)
        log.warning(
            "The names in SM_HOSTS do not resolve: some of these hosts share a machine, so their addresses "
            "would not tell them apart. TORCHX_RANK0_HOST is the first host's address."
        )
        return {}

    def _write_hosts(self, table: Mapping[str, str]) -> None:
        """Add addresses to the original content of the hosts file, which is never empty meanwhile."""
        if self._before is None:
            self._before = _read(HOSTS_FILE).rstrip("\n").encode("utf-8", "surrogateescape") + b"\n"
        data = self._before + "".join(f"{address} {host}\n" for host, address in table.items()).encode()
        descriptor = os.open(HOSTS_FILE, os.O_WRONLY)
        try:
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Stop telling other hosts."""
        if self._exchange is not None:
            self._exchange.close()


def loopback_addresses(job: str, hosts: Sequence[str]) -> dict[str, str]:
    """The addresses of hosts that share a machine: 127.128.0.1 and above, different for every job.

    All processes of the job compute the same addresses, without communication. So two jobs can use the same
    port on their first hosts. Other systems than Linux have 127.0.0.1 only, unless more are configured; there
    a single host has that.
    """
    if len(hosts) == 1 and not kernel.IS_LINUX:
        return {hosts[0]: "127.0.0.1"}
    first = binascii.crc32(job.encode("utf-8", "surrogateescape"))
    table = {}
    for number, host in enumerate(hosts):
        network = 0x8000 | (first + number // _HOSTS_PER_NETWORK) & 0x7FFF
        table[host] = f"127.{network >> 8}.{network & 255}.{1 + number % _HOSTS_PER_NETWORK}"
    return table


def names_in(text: str) -> set[str]:
    """The names that an /etc/hosts gives addresses to."""
    lines = (line.split("#")[0].split() for line in text.splitlines())
    return {name for words in lines for name in words[1:]}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _is_mounted(path: str) -> bool:
    """Whether a file is a mount: container runtimes mount their own files over some of the image's."""
    return any(line.split()[4] == path for line in _read(f"{kernel.PROC}/self/mountinfo").splitlines())

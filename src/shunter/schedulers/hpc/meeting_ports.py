"""The ports at which the hosts of a job meet: jobs that share a node of the cluster need different ones."""

from __future__ import annotations

import binascii

from shunter.specs.app import Role
from shunter.specs.training import DOCUMENT

#: What the toolkit of the first host listens at: names of the hosts, its own rendezvous, torchrun's.
VARIABLES = ("SHUNTER_NAMES_PORT", "SHUNTER_RENDEZVOUS_PORT", "SHUNTER_MASTER_PORT")
#: Below the ports that Linux chooses itself (ip_local_port_range).
_PORTS = range(12000, 30000, len(VARIABLES))


def set_meeting_ports(role: Role, app_id: str) -> None:
    """Give a role whose replicas meet ports that depend on the job, unless it has its own.

    Whether they are free on the node cannot be seen here; two jobs on one node hardly ever get the same.
    """
    if role.num_replicas < 2 or DOCUMENT not in role.env:
        return
    first = _PORTS[binascii.crc32(f"{app_id}/{role.name}".encode()) % len(_PORTS)]
    for offset, variable in enumerate(VARIABLES):
        role.env.setdefault(variable, str(first + offset))

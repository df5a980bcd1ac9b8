"""Helpers of ``dist.ddp`` that components of others use (``torchx.components.dist``)."""

from __future__ import annotations

import os

from shunter.components.structured_arg import Nodes, StructuredNameArgument


class _noquote(str):
    """A word of a command that is put into a shell's line as it is."""


def get_role_name(script: str | None, m: str | None) -> str:
    """Return the name of a role that runs a script or a module.

    Raises:
        ValueError: neither is given.
    """
    if not script and not m:
        raise ValueError("a role is named after its script or module, and neither is given")
    name = os.path.splitext(os.path.basename(script))[0] if script else str(m).rpartition(".")[2]
    return StructuredNameArgument("", name).run_name


def parse_nnodes(j: str) -> tuple[int, int, int, str]:
    """Return the fewest and most nodes, the processes on each, and the text for torchrun's ``--nnodes``."""
    nodes = Nodes.parse(j)
    return nodes.min_nodes or nodes.nodes, nodes.nodes, nodes.processes, str(nodes)

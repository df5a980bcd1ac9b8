"""Arguments with several parts: names (``experiment/run``) and sizes (``-j 2x8``)."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from shunter.errors import ComponentArgumentError
from shunter.limits import MOST_REPLICAS, cut, whole_number
from shunter.specs.resource_catalog import get_named_resources, named_resources


@dataclass(frozen=True)
class StructuredNameArgument:
    """The name of an experiment and of the run in it."""

    experiment_name: str
    run_name: str

    @staticmethod
    def parse_from(
        name: str,
        m: str | None = None,
        script: str | None = None,
        default_experiment_name: str = "default-experiment",
    ) -> StructuredNameArgument:
        """Parse ``experiment/run``, ``experiment/``, ``/run`` or ``run``.

        A run without a name is named after the script or the last part of the module.

        Raises:
            ComponentArgumentError: there is more than one '/', or not one of script and module.
        """
        experiment, _, run = name.rpartition("/")
        if "/" in experiment:
            raise ComponentArgumentError(
                f"the name {name!r} has more than one '/'", hint="Write it as experiment/run."
            )
        if m and script:
            raise ComponentArgumentError(
                f"both the module {m} and the script {script} are to run", hint="Give one: -m or --script."
            )
        if not m and not script:
            raise ComponentArgumentError(
                "neither a script nor a module is given", hint="Give one: -m or --script."
            )
        if not run and m:
            run = m.rpartition(".")[2]
        elif not run and script:
            run = os.path.splitext(os.path.basename(script))[0]
        return StructuredNameArgument(experiment or default_experiment_name, run)

    def __str__(self) -> str:
        return f"{self.experiment_name}/{self.run_name}"


@dataclass(frozen=True)
class Nodes:
    """The value of ``-j [[MIN:]NODESx]PROCESSES``. ``min_nodes`` is None unless the job is elastic."""

    min_nodes: int | None
    nodes: int
    processes: int

    @staticmethod
    def parse(j: str) -> Nodes:
        """Parse ``PROCESSES``, ``NODESxPROCESSES`` or ``MIN:NODESxPROCESSES``.

        Raises:
            ComponentArgumentError: it does not parse, or MIN is more than NODES.
        """
        left, times, processes = j.lower().rpartition("x")
        low, colon, nodes = left.rpartition(":")
        if not times:
            return Nodes(None, 1, _count(processes, j))
        size = Nodes(_count(low, j) if colon else None, _count(nodes, j), _count(processes, j))
        if size.min_nodes is not None and size.min_nodes > size.nodes:
            raise ComponentArgumentError(f"-j {j}: at least {low} nodes, but at most {nodes}")
        return size

    def __str__(self) -> str:
        return f"{self.min_nodes}:{self.nodes}" if self.min_nodes is not None else str(self.nodes)


@dataclass(frozen=True)
class StructuredJArgument:
    """A number of nodes, and of processes on each."""

    nnodes: int
    nproc_per_node: int

    @staticmethod
    def parse_from(h: str, j: str) -> StructuredJArgument:
        """Parse ``NODESxPROCESSES``, or ``NODES`` with one process for each gpu of the resource ``h``.

        Another number of processes than of gpus is warned of.

        Raises:
            ComponentArgumentError: it does not parse, or ``h`` has no gpus to count.
            ConfigError: there is no resource ``h``.
        """
        nodes, times, processes = j.lower().partition("x")
        if not times:
            gpus = get_named_resources(h).gpu
            if gpus < 1:
                raise ComponentArgumentError(
                    f"-j {j}: the resource {h} has no gpus, so the number of processes is not known",
                    hint=f"Give it: -j {j}x1",
                )
            return StructuredJArgument(_count(nodes, j), gpus)
        size = StructuredJArgument(_count(nodes, j), _count(processes, j))
        known = named_resources.get(h)  # an unknown one is refused where the resource is used
        if known is not None and known.gpu not in (0, size.nproc_per_node):
            text = f"-j {size}: {size.nproc_per_node} processes on each node, and {h} has {known.gpu} gpus"
            warnings.warn(text, stacklevel=2)
        return size

    def __str__(self) -> str:
        return f"{self.nnodes}x{self.nproc_per_node}"


def _count(text: str, j: str) -> int:
    try:
        return whole_number(text, 1, MOST_REPLICAS)
    except ValueError as error:
        raise ComponentArgumentError(
            f"-j {cut(j)}: {error}",
            hint="Examples: -j 4 (one node, 4 processes), -j 2x8 (2 nodes, 8 each), -j 1:4x8 (1 to 4 nodes).",
        ) from None

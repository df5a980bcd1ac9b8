"""Keeps the order of the entry points, which hatchling sorts: the first scheduler is TorchX's default."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUP = "torchx.schedulers"


class OrderedEntryPoints(BuildHookInterface[Any]):
    """Puts the schedulers of pyproject.toml back into its order."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Reorder what is written next."""
        points = self.metadata.core.entry_points[GROUP]
        declared = self.metadata.core.config["entry-points"][GROUP]
        for name in declared:
            points[name] = points.pop(name)

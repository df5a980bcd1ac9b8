"""Keys and values of a job's metadata that TorchX's tools read (``torchx.specs.metadata_keys``)."""

from __future__ import annotations

TORCHX_CONTEXT_NAME = "TORCHX_CONTEXT_NAME"
NA = "<<NA>>"
UNKNOWN = "<UNKNOWN>"


class app_metadata:
    """The keys."""

    CONTEXT = "torchx/context"
    VERSION = "torchx/version"
    SCHEDULER = "torchx/scheduler"
    ROLES_PREFIX = "torchx/roles."

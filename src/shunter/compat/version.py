"""Which TorchX we are compatible with, and the image that its builtin components use."""

from __future__ import annotations

from shunter import __version__ as ours
from shunter.runner.preparation import default_image

#: Later than 0.7.0, since what TorchX's main branch had added by August 2026 is served too.
__version__ = f"0.8.0.dev0+shunter.{ours}"

TORCHX_IMAGE: str
IMAGE: str


def __getattr__(name: str) -> str:
    """Find the image on each use: a plugin (``torchx.version``) may name another one."""
    if name not in ("IMAGE", "TORCHX_IMAGE"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return default_image()

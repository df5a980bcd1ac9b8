"""Words for a shell (``torchx.util.shlex``)."""

from shlex import join

__all__ = ["join"]

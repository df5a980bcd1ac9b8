"""Helpers of components (``torchx.components``)."""

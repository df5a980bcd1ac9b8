"""TorchX's helpers for tests (``torchx.test``)."""

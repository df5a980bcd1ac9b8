"""TorchX's small helpers (``torchx.util``)."""

"""TorchX's schedulers as classes to derive from, and their helpers (``torchx.schedulers``)."""

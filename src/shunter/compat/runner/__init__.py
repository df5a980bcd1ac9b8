"""TorchX's runner, its configuration and its events (``torchx.runner``)."""

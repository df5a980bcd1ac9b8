"""TorchX's command line as plugins and scripts import it (``torchx.cli``)."""

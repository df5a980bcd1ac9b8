"""Parts of ``torchx.specs`` that are not those of `shunter.specs`."""

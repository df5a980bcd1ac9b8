"""shunter: write a training script once, run it on any scheduler."""

__version__ = "0.1.0"

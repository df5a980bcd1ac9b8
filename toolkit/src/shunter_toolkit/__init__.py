"""The contract that a training script meets inside its container, the same on every scheduler."""

__version__ = "0.1.0"

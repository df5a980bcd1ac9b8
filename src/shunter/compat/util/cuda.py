"""The GPUs of this machine (``torchx.util.cuda``)."""

from shunter.compat.distributed import has_cuda_devices

__all__ = ["has_cuda_devices"]

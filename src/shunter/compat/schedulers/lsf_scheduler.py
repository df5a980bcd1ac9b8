"""The class of ``torchx.schedulers.lsf_scheduler``."""

from __future__ import annotations

from shunter.compat.schedulers.derivable import DerivableScheduler


class LsfScheduler(DerivableScheduler):
    """Runs jobs on an LSF cluster."""

    ours = "shunter.schedulers.lsf_scheduler:LsfScheduler"

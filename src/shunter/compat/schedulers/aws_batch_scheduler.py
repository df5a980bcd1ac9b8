"""The class of ``torchx.schedulers.aws_batch_scheduler``."""

from __future__ import annotations

from shunter.compat.schedulers.derivable import DerivableScheduler


class AWSBatchScheduler(DerivableScheduler):
    """Runs jobs on AWS Batch."""

    ours = "shunter.schedulers.aws_batch_scheduler:AWSBatchScheduler"

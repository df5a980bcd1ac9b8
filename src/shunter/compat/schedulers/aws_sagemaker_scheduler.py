"""The class of ``torchx.schedulers.aws_sagemaker_scheduler``."""

from __future__ import annotations

from shunter.compat.schedulers.derivable import DerivableScheduler


class AWSSageMakerScheduler(DerivableScheduler):
    """Runs training jobs on SageMaker."""

    ours = "shunter.schedulers.aws_sagemaker_scheduler:AWSSageMakerScheduler"

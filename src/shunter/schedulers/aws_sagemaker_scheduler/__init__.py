"""`aws_sagemaker`: jobs as training jobs on SageMaker, directly or through a queue of AWS Batch.

Not here: sessions, S3, IAM and CloudWatch (`schedulers/aws`); jobs on this machine (`sagemaker_local`).
"""

from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.request import AWSSageMakerJob
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler, create_scheduler

__all__ = ["AWSSageMakerJob", "AWSSageMakerOpts", "AWSSageMakerScheduler", "create_scheduler"]

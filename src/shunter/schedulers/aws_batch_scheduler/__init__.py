"""`aws_batch`: jobs on AWS Batch, from options and requests to states and logs.

What it shares with SageMaker, such as sessions and the CloudWatch reader, is in the folder above.
"""

from shunter.schedulers.aws_batch_scheduler.options import AWSBatchOpts
from shunter.schedulers.aws_batch_scheduler.reasons import JOB_STATE
from shunter.schedulers.aws_batch_scheduler.request import BatchJob
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler, create_scheduler

__all__ = ["JOB_STATE", "AWSBatchOpts", "AWSBatchScheduler", "BatchJob", "create_scheduler"]

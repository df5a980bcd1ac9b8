"""SageMaker training jobs on this machine: turns a `CreateTrainingJob` request into hosts, data and programs.

How processes are started and stopped is in `schedulers/supervisor`.
"""

from shunter.schedulers.sagemaker_local_scheduler.options import SageMakerLocalOpts
from shunter.schedulers.sagemaker_local_scheduler.scheduler import SageMakerLocalScheduler, create_scheduler

__all__ = ["SageMakerLocalOpts", "SageMakerLocalScheduler", "create_scheduler"]

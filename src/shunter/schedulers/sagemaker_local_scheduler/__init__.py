"""SageMaker training jobs on this machine: turns a `CreateTrainingJob` request into hosts, data and programs.

How processes and containers are run is in `schedulers/exec`.
"""

from shunter.schedulers.sagemaker_local_scheduler.options import SageMakerLocalOpts
from shunter.schedulers.sagemaker_local_scheduler.scheduler import SageMakerLocalScheduler, create_scheduler

__all__ = ["SageMakerLocalOpts", "SageMakerLocalScheduler", "create_scheduler"]

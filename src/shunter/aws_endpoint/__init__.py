"""AWS's APIs for training jobs and their logs, answered over HTTP by this machine's own jobs.

The jobs themselves are in `schedulers.sagemaker_local_scheduler`, which knows nothing of this package.
"""

"""AWS's APIs for training jobs, their logs and metrics, answered over HTTP by this machine's own jobs.

The jobs themselves are in `shunter.schedulers.aws.sagemaker_local`, which knows nothing of this package.
"""

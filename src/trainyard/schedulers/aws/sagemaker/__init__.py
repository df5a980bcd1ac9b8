"""AWS SageMaker training jobs."""

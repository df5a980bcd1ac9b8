"""`aws_sagemaker`: jobs as training jobs on SageMaker, directly or through a queue of AWS Batch.

Not here: sessions, S3, IAM and CloudWatch (`schedulers/aws`); jobs on this machine (`sagemaker_local`).
"""

"""`aws_batch`: jobs on AWS Batch, from options and requests to states and logs.

What it shares with SageMaker, such as sessions and the CloudWatch reader, is in the folder above.
"""

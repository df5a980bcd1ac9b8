"""`aws_batch`: jobs on AWS Batch."""

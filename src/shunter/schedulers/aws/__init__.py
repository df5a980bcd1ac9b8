"""What the AWS schedulers share: sessions, errors, IAM, S3, CloudWatch logs, the SDK's models.

Each scheduler has a folder here; nothing of another cloud or of this machine is here.
"""

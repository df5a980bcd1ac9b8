"""What a user of the SageMaker SDK (v2) runs to submit a script: from import to accepted request."""

from sagemaker.estimator import Estimator

Estimator(
    image_uri="registry.example.com/image:1",
    role="arn:aws:iam::123456789012:role/Training",
    instance_type="ml.m5.large",
    instance_count=1,
    entry_point="train.py",
    source_dir=".",
    output_path="s3://bucket/results",
    code_location="s3://bucket/code",
    hyperparameters={"lr": "0.1"},
).fit({"training": "s3://bucket/data"}, wait=False)

"""AWS with training jobs that run: shunter's endpoint in this process, S3 and everything else by moto."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests import backends

ROLE = "arn:aws:iam::123456789012:role/Training"


@contextmanager
def running_endpoint(moto: str) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Run the endpoint; gives the variables that lead to it, and options without image."""
    backends.need("botocore")
    import botocore.session

    from shunter.aws_endpoint.server import EndpointServer

    region, keys = "us-east-1", {"AWS_ACCESS_KEY_ID": "example", "AWS_SECRET_ACCESS_KEY": "example"}
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    client = botocore.session.Session().create_client(
        "s3",
        region,
        endpoint_url=moto,
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket=bucket)
    client.close()
    with EndpointServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield (
                {
                    **keys,
                    "AWS_DEFAULT_REGION": region,
                    "AWS_ENDPOINT_URL": moto,
                    "AWS_ENDPOINT_URL_SAGEMAKER": server.url,
                    "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": server.url,
                    "SHUNTER_SAGEMAKER_DOCKER": "always",
                },
                {"role": ROLE, "instance_type": "ml.m5.large", "output_path": f"s3://{bucket}/results"},
            )
        finally:
            server.shutdown()
            thread.join()

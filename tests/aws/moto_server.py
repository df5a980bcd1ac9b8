"""A moto server: AWS Batch whose jobs really run, as containers on this machine's Docker daemon."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.aws_services import running_moto
from tests.toolkit.image import docker, temporary_image

REGION = "us-east-1"
_TRUST = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole",'
    ' "Principal": {"Service": "ecs-tasks.amazonaws.com"}}]}'
)


class Moto:
    """The server, with a queue of its own and an image for jobs.

    Attributes:
        url: its endpoint.
        queue: name of a job queue.
        image: an image with sh and the usual small tools.
        role: ARN of a role that containers may have.
        bucket: name of a bucket of S3.
    """

    def __init__(self, url: str, image: str) -> None:
        self.url = url
        self.image = image
        self.queue = f"queue-{uuid.uuid4().hex[:8]}"
        self.bucket = f"bucket-{uuid.uuid4().hex[:8]}"
        self._prepare()

    def environ(self) -> dict[str, str]:
        """Return the variables that point any client of AWS to this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "example",
            "AWS_DEFAULT_REGION": REGION,
        }

    def client(self, service: str) -> Any:
        import botocore.session

        return botocore.session.Session().create_client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id="AKIAEXAMPLE",
            aws_secret_access_key="example",
        )

    def _prepare(self) -> None:
        self.client("s3").create_bucket(Bucket=self.bucket)
        ec2, iam, batch = self.client("ec2"), self.client("iam"), self.client("batch")
        vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
        group = ec2.create_security_group(Description="jobs", GroupName="jobs", VpcId=vpc)["GroupId"]
        self.role: str = iam.create_role(RoleName="jobs", AssumeRolePolicyDocument=_TRUST)["Role"]["Arn"]
        iam.create_instance_profile(InstanceProfileName="jobs")
        environment = batch.create_compute_environment(
            computeEnvironmentName="hosts",
            type="MANAGED",
            state="ENABLED",
            computeResources={
                "type": "EC2",
                "minvCpus": 0,
                "maxvCpus": 64,
                "instanceTypes": ["m5.xlarge"],
                "subnets": [subnet],
                "securityGroupIds": [group],
                "instanceRole": self.role.replace(":role/", ":instance-profile/"),
            },
            serviceRole=self.role,
        )["computeEnvironmentArn"]
        batch.create_job_queue(
            jobQueueName=self.queue,
            state="ENABLED",
            priority=1,
            computeEnvironmentOrder=[{"order": 1, "computeEnvironment": environment}],
        )


@contextmanager
def running_batch() -> Iterator[Moto]:
    """Run a server; its containers and the image are removed afterwards."""
    with temporary_image(name="shunter-moto") as image, ExitStack() as stack:
        network = image.replace(":", "-")  # not the daemon's own, which others use
        docker("network", "create", network)
        stack.callback(docker, "network", "rm", network, check=False)
        place = docker("network", "inspect", network, "--format", "{{(index .IPAM.Config 0).Gateway}}")
        options = {"MOTO_DOCKER_NETWORK_NAME": network, "MOTO_IAM_LOAD_MANAGED_POLICIES": "false"}
        # where the jobs' containers reach it too
        url = stack.enter_context(running_moto(place.stdout.strip(), **options))
        try:
            yield Moto(url, image)
        finally:
            left = docker("ps", "-aq", "--filter", f"ancestor={image}", check=False).stdout.split()
            if left:
                docker("rm", "-f", *left, check=False)

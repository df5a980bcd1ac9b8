"""The least rights that jobs on SageMaker take: of who submits them, and of the role that they have.

After the API reference of CreateTrainingJob and "How to use SageMaker AI execution roles" (developer guide).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.schedulers.aws.sagemaker import names
from trainyard.schedulers.aws.sagemaker.places import Places

JOBS = (
    "sagemaker:AddTags",
    "sagemaker:CreateTrainingJob",
    "sagemaker:DeleteTrainingJob",
    "sagemaker:DescribeTrainingJob",
    "sagemaker:ListTags",
    "sagemaker:StopTrainingJob",
)
LISTS = ("sagemaker:ListTrainingJobs", "sagemaker:Search")
QUEUED_JOBS = (
    "batch:DescribeServiceJob",
    "batch:SubmitServiceJob",
    "batch:TagResource",
    "batch:TerminateServiceJob",
)
#: The first is looked at before a submission, and both by `list`.
LOOK_AT_QUEUES = ("batch:DescribeJobQueues", "batch:ListServiceJobs")
EXTEND_PLAN = ("sagemaker:DescribeTrainingPlanExtensionHistory", "sagemaker:ExtendTrainingPlan")
READ_LOGS = ("logs:DescribeLogStreams", "logs:GetLogEvents")
WRITE_LOGS = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents")
PULL = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
PUSH = ("ecr:CompleteLayerUpload", "ecr:InitiateLayerUpload", "ecr:PutImage", "ecr:UploadLayerPart")
NETWORK = (
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
)
#: What may allow what an identity's policies do not.
BUCKET_POLICY = "the bucket's policy"
REMOTE_DEBUG = (
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)


@dataclass(frozen=True)
class Grant:
    """Rights that belong together.

    Attributes:
        sid: names them.
        actions: what is allowed.
        resources: on what, as ARNs.
        samples: ARNs by which the rights can be tried; None for ``resources``, none if they cannot.
        context: values of condition keys, which the statement names too.
        elsewhere: what else may allow it: the policy of a bucket, a key. "" for nothing.
    """

    sid: str
    actions: Sequence[str]
    resources: Sequence[str]
    samples: Sequence[str] | None = None
    context: tuple[str, str] | None = None
    elsewhere: str = ""

    @property
    def statement(self) -> dict[str, Any]:
        """The statement of a policy."""
        condition = {"StringEquals": dict([self.context])} if self.context else None
        return {
            "Sid": self.sid,
            "Effect": "Allow",
            "Action": sorted(self.actions),
            "Resource": list(self.resources),
            **({"Condition": condition} if condition else {}),
        }


def policy(grants: Sequence[Grant]) -> dict[str, Any]:
    """Return grants as a policy document."""
    return {"Version": "2012-10-17", "Statement": [grant.statement for grant in grants]}


def caller_grants(places: Places) -> list[Grant]:
    """Return what somebody needs who submits jobs, watches and stops them."""
    role = [places.role or f"arn:{places.partition}:iam::{places.account}:role/*"]
    known = None if places.role else ()
    job = [places.arn("sagemaker", f"training-job/{places.job}")]
    grants = [
        Grant("Jobs", JOBS, [places.arn("sagemaker", "training-job/*")], samples=job),
        Grant("Lists", LISTS, ["*"]),
        Grant("ReadLogs", READ_LOGS, _logs(places)),
        Grant("LookAtRole", ["iam:GetRole", "iam:SimulatePrincipalPolicy"], role, samples=known),
        Grant(
            "PassRole",
            ["iam:PassRole"],
            role,
            samples=known,
            context=("iam:PassedToService", "sagemaker.amazonaws.com"),
        ),
        *_files(
            "Upload", ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"], places, places.uploads
        ),
        *_buckets(places, [*places.uploads, *places.checkpoints]),
    ]
    if places.checkpoints:
        buckets = places.buckets(places.checkpoints)
        grants.append(Grant("LookAtBuckets", ["s3:GetBucketPolicy"], buckets, elsewhere=BUCKET_POLICY))
    if places.default_bucket:
        grants.append(Grant("MakeBucket", ["s3:CreateBucket"], places.buckets([places.default_bucket])))
    if places.queue:
        queue = [places.arn("batch", f"job-queue/{places.queue}"), places.arn("batch", "service-job/*")]
        grants.append(Grant("QueuedJobs", QUEUED_JOBS, queue))
        grants.append(Grant("LookAtQueues", LOOK_AT_QUEUES, ["*"]))
    if places.plan:
        grants.append(Grant("ExtendPlan", EXTEND_PLAN, [places.plan]))
    if places.repository:
        grants.append(Grant("LogInToRegistry", ["ecr:GetAuthorizationToken"], ["*"]))
        grants.append(
            Grant("PushImages", [*PULL, *PUSH], _images(places), elsewhere="the repository's policy")
        )
    if places.result_key:
        grants.append(_key("EncryptCode", ["kms:Decrypt", "kms:GenerateDataKey"], places.result_key))
    return grants


def role_grants(places: Places) -> list[Grant]:
    """Return what the role of jobs needs."""
    images = None if places.repository else ()
    grants = [
        Grant("WriteLogs", WRITE_LOGS, _logs(places)),
        Grant("Metrics", ["cloudwatch:PutMetricData"], ["*"]),
        Grant("LogInToRegistry", ["ecr:GetAuthorizationToken"], ["*"]),
        Grant("PullImage", PULL, _images(places), samples=images, elsewhere="the repository's policy"),
        *_files("ReadCode", ["s3:GetObject"], places, places.uploads),
        *_data(places),
        *_files("WriteResults", ["s3:PutObject"], places, places.results),
        *_files("Checkpoints", ["s3:GetObject", "s3:PutObject"], places, places.checkpoints),
        *_buckets(places, [*places.uploads, *places.data, *places.checkpoints]),
    ]
    if places.result_key:
        actions = ["kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey"]
        grants.append(_key("EncryptResults", actions, places.result_key))
    if places.volume_key:
        grants.append(_key("EncryptVolumes", ["kms:CreateGrant"], places.volume_key))
    if places.in_vpc:
        grants.append(Grant("Network", NETWORK, ["*"]))
    if places.remote_debug:
        grants.append(Grant("RemoteDebug", REMOTE_DEBUG, ["*"]))
    return grants


def _logs(places: Places) -> list[str]:
    group = places.arn("logs", f"log-group:{names.LOG_GROUP}")
    return [group, f"{group}:*"]


def _images(places: Places) -> list[str]:
    return [places.arn("ecr", f"repository/{places.repository or '*'}")]


def _key(sid: str, actions: list[str], key: str) -> Grant:
    return Grant(sid, actions, [key], samples=() if "*" in key else None, elsewhere="the key's policy")


def _files(sid: str, actions: list[str], places: Places, prefixes: list[str]) -> list[Grant]:
    return [Grant(sid, actions, places.objects(prefixes), elsewhere=BUCKET_POLICY)] if prefixes else []


def _data(places: Places) -> list[Grant]:
    """Return the rights to input: prefixes of keys, or single objects."""
    if not places.data:
        return []
    prefixes = [f"arn:{places.partition}:s3:::{prefix}" for prefix in dict.fromkeys(places.data)]
    samples = [prefix if "." in prefix.rpartition("/")[2] else f"{prefix}/*" for prefix in prefixes]
    resources = [f"{prefix}*" for prefix in prefixes]
    return [Grant("ReadData", ["s3:GetObject"], resources, samples=samples, elsewhere=BUCKET_POLICY)]


def _buckets(places: Places, prefixes: list[str]) -> list[Grant]:
    if not prefixes:
        return []
    return [Grant("Buckets", ["s3:ListBucket"], places.buckets(prefixes), elsewhere=BUCKET_POLICY)]

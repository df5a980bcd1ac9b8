"""The least permissions that jobs on SageMaker need, as policies: of who submits them, and of their role.

They are those of the API reference of CreateTrainingJob, and of "How to use SageMaker AI execution roles" in
the developer guide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shunter.schedulers.aws import aws_names, s3
from shunter.schedulers.aws.doctor import ECR_IMAGE, partition_and_account
from shunter.schedulers.aws.iam import LOG_IN, PULL, allow, pushing
from shunter.schedulers.aws_sagemaker_scheduler import names
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts, as_object

_VERBS = ("Create", "Delete", "Describe", "Stop")
_JOBS = ("AddTags", "ListTags", *(f"{verb}TrainingJob" for verb in _VERBS))
_QUEUED_JOBS = ("DescribeServiceJob", "SubmitServiceJob", "TagResource", "TerminateServiceJob")
_READ_LOGS = ("logs:DescribeLogStreams", "logs:FilterLogEvents", "logs:GetLogEvents")
_WRITE_LOGS = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents")
_NETWORK = (
    "CreateNetworkInterface",
    "CreateNetworkInterfacePermission",
    "DeleteNetworkInterface",
    "DeleteNetworkInterfacePermission",
    "DescribeDhcpOptions",
    "DescribeNetworkInterfaces",
    "DescribeSecurityGroups",
    "DescribeSubnets",
    "DescribeVpcs",
)
_CHANNELS = ("CreateControlChannel", "CreateDataChannel", "OpenControlChannel", "OpenDataChannel")


def _of(service: str, names: Iterable[str]) -> list[str]:
    return [f"{service}:{name}" for name in names]


def _prefixes(*uris: str | None) -> list[str]:
    """Return the ``bucket/prefix`` of each URI of S3, once."""
    found = [uri for uri in uris if uri and uri.startswith("s3://")]
    return list(dict.fromkeys("/".join(part for part in s3.split_uri(uri) if part) for uri in found))


class Policies:
    """What jobs with given options use in AWS, and the statements that allow it.

    Args:
        opts: the options.
        region: region of the jobs.
        who: ARN of the caller; "" if unknown.
        role: ARN of the jobs' role; "" for any.

    Attributes:
        account: number of the account; ``*`` if it is not known.
        default_bucket: the account's own bucket, where something goes to it; "" if nothing does.
        places: prefixes in S3 as ``bucket/prefix``, by what they are for.
    """

    def __init__(self, opts: AWSSageMakerOpts, region: str, who: str, role: str) -> None:
        self._opts, self._region, self._role = opts, region, role
        self._partition, self.account = partition_and_account(who)
        output, self.default_bucket = opts.output_path or "", ""
        if not output.startswith("s3://"):
            self.default_bucket = names.default_bucket(region, self.account)
            output = f"s3://{self.default_bucket}/"
        written = ("debugger_hook_config", "profiler_config", "tensorboard_output_config")
        channels = [uri.rpartition("?")[0] or uri for uri in (opts.channels or {}).values()]
        bucket = s3.split_uri(output)[0]
        code = [f"{place}/shunter/code" for place in _prefixes(opts.code_location)]
        self.places = {
            "output": _prefixes(output, *(as_object(opts, name).get("S3OutputPath") for name in written)),
            "checkpoint": _prefixes(opts.checkpoint_s3_uri),
            "code": [*code, f"{bucket}/shunter/data"] if code else [f"{bucket}/shunter"],
            "data": _prefixes(*channels, opts.model_uri, opts.source_dir),
        }
        image = ECR_IMAGE.fullmatch(opts.image_repo or "")
        self._repository = self._arn("ecr", f"repository/{image['name'] if image else '*'}")
        group = self._arn("logs", f"log-group:{names.LOG_GROUP}")
        self._logs = [group, f"{group}:*"]

    def of_caller(self) -> list[dict[str, Any]]:
        """Return the permissions that are needed to submit, watch and stop jobs."""
        opts, places = self._opts, self.places
        role = [self._role or f"arn:{self._partition}:iam::{self.account}:role/*"]
        statements = [
            allow("Jobs", _of("sagemaker", _JOBS), [self._arn("sagemaker", "training-job/*")]),
            allow("Lists", ["sagemaker:ListTrainingJobs", "sagemaker:Search"], ["*"]),
            allow("ReadLogs", _READ_LOGS, self._logs),
            allow("LookAtRole", ["iam:GetRole", "iam:SimulatePrincipalPolicy"], role),
            allow("PassRole", ["iam:PassRole"], role, PassedToService="sagemaker.amazonaws.com"),
            *self._objects("Upload", ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"], "code"),
            *self._buckets("Buckets", ["s3:ListBucket"], [*places["code"], *places["checkpoint"]]),
            *self._buckets("LookAtBuckets", ["s3:GetBucketPolicy"], places["checkpoint"]),
        ]
        if self.default_bucket:
            statements += self._buckets("MakeBucket", ["s3:CreateBucket"], [self.default_bucket])
        if opts.batch_queue:
            queue = self._arn("batch", f"job-queue/{aws_names.queue_name(opts.batch_queue)}")
            queued = [queue, self._arn("batch", "service-job/*")]
            statements.append(allow("QueuedJobs", _of("batch", _QUEUED_JOBS), queued))
            statements.append(allow("Queues", ["batch:DescribeJobQueues", "batch:ListServiceJobs"], ["*"]))
        if opts.image_repo:
            statements += pushing(self._repository)
        return [*statements, *self._key("EncryptCode", ["Decrypt", "GenerateDataKey"], opts.output_kms_key)]

    def of_role(self) -> list[dict[str, Any]]:
        """Return what the role of jobs needs."""
        opts, places = self._opts, self.places
        data = [f"arn:{self._partition}:s3:::{prefix}*" for prefix in places["data"]]
        statements = [
            allow("WriteLogs", _WRITE_LOGS, self._logs),
            allow("Metrics", ["cloudwatch:PutMetricData"], ["*"]),
            LOG_IN,
            allow("PullImage", PULL, [self._repository]),
            *self._objects("ReadCode", ["s3:GetObject"], "code"),
            *([allow("ReadData", ["s3:GetObject"], data)] if data else []),
            *self._objects("WriteResults", ["s3:PutObject"], "output"),
            *self._objects("Checkpoints", ["s3:GetObject", "s3:PutObject"], "checkpoint"),
            *self._buckets(
                "Buckets", ["s3:ListBucket"], [*places["code"], *places["data"], *places["checkpoint"]]
            ),
            *self._key("EncryptResults", ["Decrypt", "Encrypt", "GenerateDataKey"], opts.output_kms_key),
            *self._key("EncryptVolumes", ["CreateGrant"], opts.volume_kms_key),
        ]
        if opts.subnets:
            statements.append(allow("Network", _of("ec2", _NETWORK), ["*"]))
        if opts.enable_remote_debug:
            statements.append(allow("RemoteDebug", _of("ssmmessages", _CHANNELS), ["*"]))
        return statements

    def _arn(self, service: str, rest: str) -> str:
        return f"arn:{self._partition}:{service}:{self._region}:{self.account}:{rest}"

    def _objects(self, sid: str, actions: list[str], what: str) -> list[dict[str, Any]]:
        objects = [f"arn:{self._partition}:s3:::{prefix.rstrip('/')}/*" for prefix in self.places[what]]
        return [allow(sid, actions, objects)] if objects else []

    def _buckets(self, sid: str, actions: list[str], prefixes: list[str]) -> list[dict[str, Any]]:
        buckets = sorted({f"arn:{self._partition}:s3:::{prefix.partition('/')[0]}" for prefix in prefixes})
        return [allow(sid, actions, buckets)] if buckets else []

    def _key(self, sid: str, actions: list[str], key: str | None) -> list[dict[str, Any]]:
        if not key:
            return []
        if not key.startswith("arn:"):  # policies cannot name an alias
            key = self._arn("kms", "key/*" if key.startswith("alias/") else f"key/{key}")
        return [allow(sid, _of("kms", actions), [key])]

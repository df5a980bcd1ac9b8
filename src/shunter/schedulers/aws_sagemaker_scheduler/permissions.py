"""The permissions that jobs on SageMaker need: of the person who submits them, and of their role.

The least permissions are those of the API reference of CreateTrainingJob and "How to use SageMaker AI
execution roles" (developer guide). Before a submission, only those permissions are checked without which a
job would fail late or lose its work: whether SageMaker may assume the role, and whether a job that is
restarted can read its checkpoints. What the caller may not look up is reported, but does not stop the
submission.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter.errors import ConfigError
from shunter.progress import Progress
from shunter.schedulers.aws import s3
from shunter.schedulers.aws.aws_errors import AwsCredentialsError, AwsError
from shunter.schedulers.aws.doctor import ECR_IMAGE, partition_and_account
from shunter.schedulers.aws.iam import ASSUME, TAG_SESSION, PolicyDecision, find_role, simulate, trusts
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_sagemaker_scheduler import names
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts, as_object

# ---- what jobs use


@dataclass
class UsedResources:
    """What jobs with given options use in AWS. Prefixes of S3 are given as ``bucket/prefix``, keys as ARNs.

    Attributes:
        region: region of the jobs.
        account: number of the account; ``*`` if it is not known.
        partition: ``aws``, ``aws-cn``, ....
        job: a name as jobs have it.
        role: ARN of the jobs' role; "" for any.
        default_bucket: the account's own bucket, where something goes to it; "" if nothing does.
        uploads: where code and data of this machine go.
        results: where results go.
        checkpoints: where checkpoints go, and come back from.
        data: where other data comes from.
        result_key: key that results are encrypted with; "" for none.
        volume_key: key that volumes are encrypted with; "" for none.
        repository: name of the ECR repository that images are pushed to; "" for none.
        in_vpc: whether jobs are in a VPC.
        remote_debug: whether people connect to the containers.
        queue: name of the Batch queue that jobs go through; "" for none.
    """

    region: str
    account: str
    partition: str = "aws"
    job: str = "*"
    role: str = ""
    default_bucket: str = ""
    uploads: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    result_key: str = ""
    volume_key: str = ""
    repository: str = ""
    in_vpc: bool = False
    remote_debug: bool = False
    queue: str = ""

    def arn(self, service: str, rest: str) -> str:
        """Return the ARN of something of the account and region."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{rest}"

    def buckets(self, prefixes: Sequence[str]) -> list[str]:
        """Return the ARNs of the buckets of prefixes."""
        found = sorted({prefix.partition("/")[0] for prefix in prefixes})
        return [f"arn:{self.partition}:s3:::{name}" for name in found]

    def objects(self, prefixes: Sequence[str]) -> list[str]:
        """Return the ARNs of all objects below prefixes."""
        return [f"arn:{self.partition}:s3:::{prefix.rstrip('/')}/*" for prefix in dict.fromkeys(prefixes)]


def used_by(opts: AWSSageMakerOpts, region: str, who: str, role: str) -> UsedResources:
    """Return what jobs with these options use."""
    partition, account = partition_and_account(who)
    used = UsedResources(region, account, partition, names.make_job_name(opts.base_job_name or "job"), role)
    output = opts.output_path or ""
    if not output.startswith("s3://"):
        used.default_bucket = names.default_bucket(region, account)
        output = f"s3://{used.default_bucket}/"
    results = _prefix(output)
    bucket = results.partition("/")[0]
    written = [
        as_object(opts, option).get("S3OutputPath")
        for option in ("debugger_hook_config", "profiler_config", "tensorboard_output_config")
    ]
    used.results = list(dict.fromkeys([results, *(_prefix(uri) for uri in written if uri)]))
    sources = [(uri.rpartition("?")[0] or uri) for uri in (opts.channels or {}).values()]
    sources += [uri for uri in (opts.model_uri, opts.source_dir) if uri]
    used.data = [_prefix(uri) for uri in sources if uri.startswith("s3://")]
    if opts.code_location and opts.code_location.startswith("s3://"):
        used.uploads = [f"{_prefix(opts.code_location)}/shunter/code", f"{bucket}/shunter/data"]
    else:
        used.uploads = [f"{bucket}/shunter"]
    if opts.checkpoint_s3_uri and opts.checkpoint_s3_uri.startswith("s3://"):
        used.checkpoints = [_prefix(opts.checkpoint_s3_uri)]
    used.result_key = _key_arn(used, opts.output_kms_key)
    used.volume_key = _key_arn(used, opts.volume_kms_key)
    image = ECR_IMAGE.fullmatch(opts.image_repo or "")
    used.repository = image["name"] if image else ""
    used.in_vpc = bool(opts.subnets)
    used.remote_debug = bool(opts.enable_remote_debug)
    used.queue = names.queue_name(opts.batch_queue or "")
    return used


def _prefix(uri: str) -> str:
    return "/".join(part for part in s3.split_uri(uri) if part)


def _key_arn(used: UsedResources, given: str | None) -> str:
    """Return the ARN of a key; for an alias, which policies cannot name, a pattern that matches any key."""
    if not given or given.startswith("arn:"):
        return given or ""
    return used.arn("kms", "key/*" if given.startswith("alias/") else f"key/{given}")


# ---- the least permissions

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
#: The first is called before a submission, and both by `list`.
READ_QUEUES = ("batch:DescribeJobQueues", "batch:ListServiceJobs")
READ_LOGS = ("logs:DescribeLogStreams", "logs:FilterLogEvents", "logs:GetLogEvents")
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
#: What may allow an action that an identity's policies do not.
BUCKET_POLICY = "the bucket's policy"
REMOTE_DEBUG = (
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)


@dataclass(frozen=True)
class Grant:
    """Permissions that belong together.

    Attributes:
        sid: names them.
        actions: what is allowed.
        resources: on what, as ARNs.
        samples: ARNs by which the permissions can be simulated; None for ``resources``, empty if they cannot.
        context: values of condition keys, which the statement names too.
        elsewhere: what else may allow it: the policy of a bucket or key; "" for nothing.
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


def caller_grants(used: UsedResources) -> list[Grant]:
    """Return the permissions that are needed to submit, watch and stop jobs."""
    role = [used.role or f"arn:{used.partition}:iam::{used.account}:role/*"]
    known = None if used.role else ()
    job = [used.arn("sagemaker", f"training-job/{used.job}")]
    grants = [
        Grant("Jobs", JOBS, [used.arn("sagemaker", "training-job/*")], samples=job),
        Grant("Lists", LISTS, ["*"]),
        Grant("ReadLogs", READ_LOGS, _logs(used)),
        Grant("LookAtRole", ["iam:GetRole", "iam:SimulatePrincipalPolicy"], role, samples=known),
        Grant(
            "PassRole",
            ["iam:PassRole"],
            role,
            samples=known,
            context=("iam:PassedToService", "sagemaker.amazonaws.com"),
        ),
        *_files("Upload", ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"], used, used.uploads),
        *_buckets(used, [*used.uploads, *used.checkpoints]),
    ]
    if used.checkpoints:
        buckets = used.buckets(used.checkpoints)
        grants.append(Grant("LookAtBuckets", ["s3:GetBucketPolicy"], buckets, elsewhere=BUCKET_POLICY))
    if used.default_bucket:
        grants.append(Grant("MakeBucket", ["s3:CreateBucket"], used.buckets([used.default_bucket])))
    if used.queue:
        queue = [used.arn("batch", f"job-queue/{used.queue}"), used.arn("batch", "service-job/*")]
        grants.append(Grant("QueuedJobs", QUEUED_JOBS, queue))
        grants.append(Grant("LookAtQueues", READ_QUEUES, ["*"]))
    if used.repository:
        grants.append(Grant("LogInToRegistry", ["ecr:GetAuthorizationToken"], ["*"]))
        grants.append(Grant("PushImages", [*PULL, *PUSH], _images(used), elsewhere="the repository's policy"))
    if used.result_key:
        grants.append(_key("EncryptCode", ["kms:Decrypt", "kms:GenerateDataKey"], used.result_key))
    return grants


def role_grants(used: UsedResources) -> list[Grant]:
    """Return what the role of jobs needs."""
    images = None if used.repository else ()
    grants = [
        Grant("WriteLogs", WRITE_LOGS, _logs(used)),
        Grant("Metrics", ["cloudwatch:PutMetricData"], ["*"]),
        Grant("LogInToRegistry", ["ecr:GetAuthorizationToken"], ["*"]),
        Grant("PullImage", PULL, _images(used), samples=images, elsewhere="the repository's policy"),
        *_files("ReadCode", ["s3:GetObject"], used, used.uploads),
        *_data(used),
        *_files("WriteResults", ["s3:PutObject"], used, used.results),
        *_files("Checkpoints", ["s3:GetObject", "s3:PutObject"], used, used.checkpoints),
        *_buckets(used, [*used.uploads, *used.data, *used.checkpoints]),
    ]
    if used.result_key:
        actions = ["kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey"]
        grants.append(_key("EncryptResults", actions, used.result_key))
    if used.volume_key:
        grants.append(_key("EncryptVolumes", ["kms:CreateGrant"], used.volume_key))
    if used.in_vpc:
        grants.append(Grant("Network", NETWORK, ["*"]))
    if used.remote_debug:
        grants.append(Grant("RemoteDebug", REMOTE_DEBUG, ["*"]))
    return grants


def _logs(used: UsedResources) -> list[str]:
    group = used.arn("logs", f"log-group:{names.LOG_GROUP}")
    return [group, f"{group}:*"]


def _images(used: UsedResources) -> list[str]:
    return [used.arn("ecr", f"repository/{used.repository or '*'}")]


def _key(sid: str, actions: list[str], key: str) -> Grant:
    return Grant(sid, actions, [key], samples=() if "*" in key else None, elsewhere="the key's policy")


def _files(sid: str, actions: list[str], used: UsedResources, prefixes: list[str]) -> list[Grant]:
    return [Grant(sid, actions, used.objects(prefixes), elsewhere=BUCKET_POLICY)] if prefixes else []


def _data(used: UsedResources) -> list[Grant]:
    """Return the permissions to input: prefixes of keys, or single objects."""
    if not used.data:
        return []
    prefixes = [f"arn:{used.partition}:s3:::{prefix}" for prefix in dict.fromkeys(used.data)]
    samples = [prefix if "." in prefix.rpartition("/")[2] else f"{prefix}/*" for prefix in prefixes]
    resources = [f"{prefix}*" for prefix in prefixes]
    return [Grant("ReadData", ["s3:GetObject"], resources, samples=samples, elsewhere=BUCKET_POLICY)]


def _buckets(used: UsedResources, prefixes: list[str]) -> list[Grant]:
    if not prefixes:
        return []
    return [Grant("Buckets", ["s3:ListBucket"], used.buckets(prefixes), elsewhere=BUCKET_POLICY)]


# ---- checks before a submission

LIST = "s3:ListBucket"
READ = "s3:GetObject"
WRITE = "s3:PutObject"
#: The ends of service names where they are not amazonaws.com.
_ENDS = {"aws-cn": "amazonaws.com.cn", "aws-iso": "c2s.ic.gov", "aws-iso-b": "sc2s.sgov.gov"}


def services(arn: str) -> list[str]:
    """Return the names that SageMaker may have in the trust policy of a role."""
    end = _ENDS.get(arn.partition(":")[2].partition(":")[0])
    return ["sagemaker.amazonaws.com", *([f"sagemaker.{end}"] if end else [])]


def trust_problem(role: Mapping[str, Any], request: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what SageMaker may not do with a role though a request needs it, and what to do."""
    document = role.get("AssumeRolePolicyDocument")
    if not document:
        return None  # not known
    chaining = bool((request.get("SessionChainingConfig") or {}).get("EnableSessionTagChaining"))
    # developer guide, "Use attribute-based access control (ABAC) for multi-tenancy training"
    wanted = [ASSUME, *([TAG_SESSION] if chaining else [])]
    accepted = services(role["Arn"])
    missing = [action for action in wanted if not trusts(document, accepted, action)]
    if not missing:
        return None
    statement = {"Effect": "Allow", "Principal": {"Service": accepted[0]}, "Action": wanted}
    why = ", which enable_session_tag_chaining needs" if missing == [TAG_SESSION] else ""
    what = (
        f"SageMaker may not use the role {role['Arn']}: its trust policy does not allow "
        f"{' and '.join(missing)} to {accepted[0]}{why}"
    )
    return what, f"Add to its trust policy: {json.dumps(statement)}"


def check_trust(role: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    """Refuse a role that SageMaker may not use as a request needs it."""
    if (problem := trust_problem(role, request)) is not None:
        what, hint = problem
        raise ConfigError(what, hint=hint)


def check_trust_of_arn(session: AwsSession, request: Mapping[str, Any], progress: Progress) -> None:
    """Check a role whose ARN is already known with `check_trust`, if the caller may look it up."""
    arn = request["RoleArn"]
    try:
        role = find_role(session, arn, repeats=False)
    except AwsCredentialsError:
        raise
    except AwsError as error:
        progress.done(f"warning: the trust policy of {arn} was not checked: {error.message}")
        return
    if role is None:
        raise ConfigError(
            f"there is no IAM role {arn} in the account of these credentials", hint="Give another role."
        )
    if role["Arn"] != arn:
        raise ConfigError(
            f"the role of this name is {role['Arn']}, not {arn}", hint=f"-cfg role={role['Arn']}"
        )
    check_trust(role, request)


def check_checkpoint_rights(session: AwsSession, role: str, uri: str, progress: Progress) -> None:
    """Refuse a job that could not read its checkpoints back when it is restarted."""
    denied = _denied(session, role, uri, progress)
    if not denied:
        return
    firm = [decision for decision in denied if not decision.missing]
    actions = ", ".join(decision.action for decision in firm or denied)
    explicit = any(decision.explicit for decision in firm)
    if not firm:
        keys = ", ".join(sorted({key for decision in denied for key in decision.missing}))
        doubt = f"whether they do depends on {keys}, which only the job's own requests have"
    else:
        doubt = "" if explicit else bucket_doubt(session, s3.split_uri(uri)[0], role.split(":")[4])
    if doubt:
        progress.done(f"warning: the policies of {role} do not allow {actions} on {uri}; {doubt}")
        return
    why = "a statement denies it" if explicit else "no statement allows it"
    narrow = "Narrow the statement that denies it. " if explicit else ""
    raise ConfigError(
        f"the role {role} may not {actions} on {uri} ({why}), so a job that is restarted "
        "(max_retry_attempts, use_spot_instances) could not continue from its checkpoints",
        hint=f"{narrow}The role's policy needs: {json.dumps(statements(role, uri))}",
    )


def statements(role: str, uri: str) -> list[dict[str, Any]]:
    """Return the statements for checkpoints that a role's policy needs."""
    bucket, objects = _checkpoint_arns(role, uri)
    return [
        {"Effect": "Allow", "Action": [READ, WRITE], "Resource": objects},
        {"Effect": "Allow", "Action": LIST, "Resource": bucket},
    ]


def _checkpoint_arns(role: str, uri: str) -> tuple[str, str]:
    bucket, key = s3.split_uri(uri)
    arn = f"arn:{role.split(':')[1]}:s3:::{bucket}"
    return arn, f"{arn}/{key}/*" if key else f"{arn}/*"


def _denied(session: AwsSession, role: str, uri: str, progress: Progress) -> list[PolicyDecision]:
    """Return what is not allowed by the role's policies; nothing if that cannot be found out."""
    bucket, objects = _checkpoint_arns(role, uri)
    key = s3.split_uri(uri)[1]
    wanted = {(READ, objects), (WRITE, objects), (LIST, bucket)}
    try:
        decisions = simulate(
            session,
            role,
            [READ, WRITE, LIST],
            [bucket, objects],
            {"s3:prefix": f"{key}/" if key else ""},
            repeats=False,
        )
    except AwsCredentialsError:
        raise
    except AwsError as error:
        progress.done(f"warning: the permissions of {role} to {uri} were not checked: {error.message}")
        return []
    return [each for each in decisions if (each.action, each.resource) in wanted and not each.allowed]


def bucket_doubt(session: AwsSession, bucket: str, account: str) -> str:
    """Return why a bucket may allow what an identity's policies do not; "" if it cannot."""
    try:
        if s3.find_bucket(session, bucket, account) is None:
            raise ConfigError(f"there is no bucket {bucket}", hint="Create it, or give another one.")
    except AwsError:
        return f"the bucket {bucket} is another account's or cannot be examined, and its policy may"
    try:
        session.call("s3", "GetBucketPolicy", Bucket=bucket)
    except AwsError as error:
        if error.code == "NoSuchBucketPolicy":
            return ""
        return f"the policy of the bucket {bucket} cannot be read, and may"
    return f"the bucket {bucket} has its own policy, which may"

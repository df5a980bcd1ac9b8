"""Options of AWS Batch."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.schedulers.supervision import HangOpts, NotifyOpts, RetryOpts
from shunter.specs.options import ACCESS, CREDENTIALS, DESTINATION, SECONDS, option
from shunter.system.identity import user_name

EC2 = "EC2"
FARGATE = "FARGATE"
PLATFORMS = (EC2, FARGATE)
RETRY_ANY = "any"
RETRY_SPOT = "spot"


@dataclass(kw_only=True)
class AWSBatchOpts(HangOpts, RetryOpts, NotifyOpts):
    """How a job runs on AWS Batch."""

    queue: str = option("job queue, by name or ARN", needs_trust=DESTINATION)
    user: str = option("name to tag the job with; the current user by default", factory=user_name)
    privileged: bool = option(
        "run the containers with elevated permissions, as `docker run --privileged`",
        default=False,
        needs_trust=ACCESS,
    )
    share_id: str | None = option(
        "share identifier; required if the queue has a scheduling policy, and not allowed otherwise",
        default=None,
    )
    priority: int = option(
        "scheduling priority within the share, 0 to 9999, highest first; only with share_id", default=0
    )
    image_repo: str | None = option(
        "image repository that patched images are pushed to, such as "
        "123456789012.dkr.ecr.us-east-1.amazonaws.com/team",
        default=None,
        needs_trust=DESTINATION,
    )
    code_location: str | None = option(
        "folder of S3 for code when there is no image_repo, s3://BUCKET/PREFIX: containers fetch it by a "
        "presigned URL, and send results there that have no other place",
        default=None,
        needs_trust=DESTINATION,
    )
    toolkit_in_image: bool = option(
        "the images have the package shunter-toolkit, so the toolkit does not travel", default=False
    )
    quiet: bool = option("show no progress while an image is made and pushed", default=False)
    job_role_arn: str | None = option(
        "ARN of the role that the program has in AWS", default=None, needs_trust=CREDENTIALS
    )
    execution_role_arn: str | None = option(
        "ARN of the role that pulls the image, reads secrets and writes logs; Fargate and secrets need it",
        default=None,
        needs_trust=CREDENTIALS,
    )
    platform: str = option("EC2 or FARGATE; FARGATE runs single replicas and arrays only", default=EC2)
    array: bool = option(
        "run the replicas independently, as an array job; by default they run together, on nodes that know "
        "each other",
        default=False,
    )
    timeout: int | None = option(
        "stop each attempt after this many seconds, at least 60", default=None, time_limit=SECONDS
    )
    retry_on: str = option(
        "which failures are retried, up to max_retries: any (every failure), or spot (only when the host was "
        "taken away; failures of the program are final)",
        default=RETRY_ANY,
    )
    retry_rules: list[str] | None = option(
        "rules that come before retry_on: WHAT:PATTERN:ACTION with WHAT of exit, reason, status and ACTION "
        "of retry, final; the first that fits holds. Example: exit:137:retry,reason:CannotPull*:final",
        default=None,
    )
    region: str | None = option(
        "AWS region; that of the queue's ARN or of the environment by default",
        default=None,
        needs_trust=DESTINATION,
    )
    profile: str | None = option(
        "profile of ~/.aws/config; that of the environment by default", default=None, needs_trust=CREDENTIALS
    )
    log_group: str | None = option(
        "CloudWatch log group that the containers write to; Batch's own, /aws/batch/job, by default",
        default=None,
        needs_trust=DESTINATION,
    )
    tags: dict[str, str] | None = option("tags of the job, in addition to ours", default=None)
    secrets: dict[str, str] | None = option(
        "environment variables that AWS fills in: NAME to the ARN of a Secrets Manager secret or SSM "
        "parameter, or ssm:PARAMETER; never a value",
        default=None,
        needs_trust=CREDENTIALS,
    )
    ephemeral_storage: int | None = option("GiB of disk on FARGATE, 21 to 200", default=None)
    ulimits: list[str] | None = option(
        "limits of the containers, as name:soft:hard, such as memlock:-1:-1", default=None
    )
    exec: bool = option(
        "let `shunter exec` run commands in the containers (ECS Exec); the role of job_role_arn has to"
        " allow ssmmessages",
        default=False,
    )
    public_ip: bool = option(
        "give FARGATE containers a public address, as they need in public subnets",
        default=False,
        needs_trust=ACCESS,
    )

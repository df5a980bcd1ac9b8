"""Options of SageMaker jobs on this machine: those of SageMaker, fewer of them required."""

from __future__ import annotations

from dataclasses import dataclass

from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.specs.options import CREDENTIALS, FILES_OUTSIDE, PLACE_OUTSIDE, option


@dataclass
class SageMakerLocalOpts(AWSSageMakerOpts):
    """How a job runs. What only AWS has a use for is kept in the request and otherwise does nothing."""

    role: str = option("IAM role; not used on this machine", default="local", needs_trust=CREDENTIALS)
    instance_type: str | None = option(
        "instance type that the hosts report; ml.m5.large, unless groups or resources say something else",
        default=None,
    )
    output_path: str | None = option(
        "where results go: a directory of this machine or s3://bucket/prefix; a directory beside the job's "
        "state by default",
        default=None,
        needs_trust=PLACE_OUTSIDE,
    )
    checkpoint_s3_uri: str | None = option(
        "where checkpoints go and come back from: a directory of this machine or s3://bucket/prefix",
        default=None,
        needs_trust=PLACE_OUTSIDE,
    )
    file_systems: dict[str, str] | None = option(
        "directories of this machine that stand for file systems of channels (fsx://, efs://), by their ids: "
        "fs-0123456789abcdef0:/mnt/data; in addition to those of SHUNTER_SAGEMAKER_FILE_SYSTEMS",
        default=None,
        needs_trust=FILES_OUTSIDE,
    )

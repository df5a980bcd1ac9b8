"""What jobs with given options use in AWS: buckets, keys, repositories, names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainyard.schedulers.aws import s3
from trainyard.schedulers.aws.looks import ECR_IMAGE, partition_and_account
from trainyard.schedulers.aws.sagemaker import names
from trainyard.schedulers.aws.sagemaker.configs import config_of
from trainyard.schedulers.aws.sagemaker.queue_request import queue_name

if TYPE_CHECKING:
    from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts


@dataclass
class Places:
    """What jobs use. Prefixes of S3 are given as ``bucket/prefix``, keys as ARNs.

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
        plan: ARN of the training plan that is extended; "" for none.
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
    plan: str = ""

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


def places_of(opts: AWSSageMakerOpts, region: str, who: str, role: str) -> Places:
    """Return what jobs with these options use.

    Args:
        opts: the options.
        region: region of the jobs.
        who: ARN of who submits them.
        role: ARN of their role; "" if it is not known.
    """
    partition, account = partition_and_account(who)
    places = Places(region, account, partition, names.make_job_name(opts.base_job_name or "job"), role)
    output = opts.output_path or ""
    if not output.startswith("s3://"):
        places.default_bucket = names.default_bucket(region, account)
        output = f"s3://{places.default_bucket}/"
    results = _prefix(output)
    bucket = results.partition("/")[0]
    written = [
        config_of(opts, option).get("S3OutputPath")
        for option in ("debugger_hook_config", "profiler_config", "tensorboard_output_config")
    ]
    places.results = list(dict.fromkeys([results, *(_prefix(uri) for uri in written if uri)]))
    sources = [(uri.rpartition("?")[0] or uri) for uri in (opts.channels or {}).values()]
    sources += [uri for uri in (opts.model_uri, opts.source_dir) if uri]
    places.data = [_prefix(uri) for uri in sources if uri.startswith("s3://")]
    if opts.code_location and opts.code_location.startswith("s3://"):
        places.uploads.append(f"{_prefix(opts.code_location)}/trainyard/code")
        places.uploads.append(f"{bucket}/trainyard/data")
    else:
        places.uploads.append(f"{bucket}/trainyard")
    if opts.checkpoint_s3_uri and opts.checkpoint_s3_uri.startswith("s3://"):
        places.checkpoints = [_prefix(opts.checkpoint_s3_uri)]
    places.result_key = _key(places, opts.output_kms_key)
    places.volume_key = _key(places, opts.volume_kms_key)
    image = ECR_IMAGE.fullmatch(opts.image_repo or "")
    places.repository = image["name"] if image else ""
    places.in_vpc = bool(opts.subnets)
    places.remote_debug = bool(opts.enable_remote_debug)
    places.queue = queue_name(opts.batch_queue or "")
    places.plan = (opts.training_plan or "") if opts.training_plan_extension else ""
    return places


def _prefix(uri: str) -> str:
    return "/".join(part for part in s3.split_uri(uri) if part)


def _key(places: Places, given: str | None) -> str:
    """Return the ARN of a key; of an alias, which policies cannot name, that of any key."""
    if not given or given.startswith("arn:"):
        return given or ""
    return places.arn("kms", "key/*" if given.startswith("alias/") else f"key/{given}")

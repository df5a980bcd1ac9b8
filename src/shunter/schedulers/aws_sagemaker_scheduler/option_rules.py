"""Rules between the options, and between options and roles, checked before anything is read or asked.

Here is what SageMaker could not say: options that would be left out of the request without a word, that
contradict the job, or for which AWS would charge before the job fails. What CreateTrainingJob refuses at once
is left to the service's model (`request.check_request`) and to the service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from shunter.docker.image_reference import image_problem
from shunter.errors import ConfigError, InvalidRunConfigException, refuse
from shunter.schedulers.aws_sagemaker_scheduler import names
from shunter.schedulers.aws_sagemaker_scheduler.channels import is_s3
from shunter.schedulers.aws_sagemaker_scheduler.options import (
    QUEUE_OPTIONS,
    AWSSageMakerOpts,
    as_object,
    as_objects,
    instance_groups,
    metric_pairs,
    tag_pairs,
)
from shunter.schedulers.aws_sagemaker_scheduler.request_rules import twice
from shunter.schedulers.native_retries import backend_retries
from shunter.specs.app import NO_IMAGE, AppDef, Role
from shunter.specs.retries import NODE, PREEMPTED

GIT_KEYS = {"repo", "branch", "commit", "2FA_enabled", "username", "password", "token"}
#: Regions without SageMaker Debugger, from the SDK's list.
WITHOUT_DEBUGGER = frozenset(
    {
        "us-iso-east-1",
        "us-isob-east-1",
        "ap-southeast-3",
        "ap-southeast-4",
        "eu-south-2",
        "me-central-1",
        "ap-south-2",
        "eu-central-2",
        "us-gov-east-1",
    }
)
_RETRY_ACTIONS = {"retry": "RETRY", "final": "EXIT"}


def check_options(app: AppDef, opts: AWSSageMakerOpts, *, region: str = "", local: bool = False) -> None:
    """Refuse inconsistent options; the message names everything that is wrong.

    Args:
        app: the job.
        opts: its options.
        region: where it runs, if that is known.
        local: whether it runs on this machine, where paths replace S3.

    Raises:
        InvalidRunConfigException: the options are inconsistent.
    """
    problems = [
        *_roles(app, retries=bool(opts.batch_queue)),
        *_access(opts),
        *_instances(app, opts),
        *_results(opts, local=local),
        *_input(opts),
        *_code(opts),
        *_debugger(opts, region),
        *_tags(app, opts),
        *_queue(app, opts),
        *_retry_classes(opts, names.LOCAL_BACKEND if local else names.BACKEND),
    ]
    refuse_job(app, problems)


def refuse_job(app: AppDef, problems: list[str]) -> None:
    """Raise one error with all problems, if there are any."""
    refuse(f"the job {app.name!r} cannot run on SageMaker like this", problems, InvalidRunConfigException)


# ---- roles and instances


def _roles(app: AppDef, *, retries: bool) -> Iterator[str]:
    for role in app.roles:
        yield from (f"role {role.name!r}: {problem}" for problem in _role(role, app, retries))


def _role(role: Role, app: AppDef, retries: bool) -> Iterator[str]:
    if role.image in ("", NO_IMAGE):
        yield "it has no image; name one in a registry (--image)"
    elif problem := image_problem(role.image):
        yield problem
    if role.mounts:
        yield "mounts are not possible; give data as channels (s3://, fsx://, efs://)"
    if role.max_retries and not retries:
        yield (
            f"max_retries is {role.max_retries}, but SageMaker repeats a job only after faults of the "
            "service: -cfg max_retry_attempts=N, or a queue that does: -cfg batch_queue=NAME"
        )
    if role.min_replicas is not None and role.min_replicas != role.num_replicas:
        yield "min_replicas is given, but a training job has a fixed number of instances"
    if len(app.roles) > 1:
        first = app.roles[0]
        if role.image != first.image:
            yield f"its image {role.image!r} is not that of {first.name!r}: a training job has one image"
        if any(char.isspace() or char in "\"'\\,:{}[]" for char in role.name) or len(role.name) > 64:
            yield "its name cannot be that of a group of instances: use letters, digits, - and _"


def _instances(app: AppDef, opts: AWSSageMakerOpts) -> Iterator[str]:
    groups, preferences = instance_groups(opts), as_objects(opts, "instance_preferences")
    kinds = ("instance_type", "instance_groups", "instance_preferences")
    if len(given := [name for name in kinds if getattr(opts, name)]) > 1:
        yield f"{' and '.join(given)} are both given: each says which instances the job has"
    counts = [each["InstanceCount"] for each in preferences if "InstanceCount" in each]
    if opts.instance_count != 1 and (groups or counts):
        yield f"instance_count and {given[-1]} are both given: the latter have counts, too"
    if preferences and len(app.roles) > 1:
        yield "instance_preferences is given, but the job has several roles, which need a group each"
    elif groups:
        yield from _groups(app, groups)
    elif not counts:
        yield from _count(app, opts)
    replicas = app.roles[0].num_replicas
    if replicas > 1 and any(count != replicas for count in counts):
        shown = ", ".join(map(str, counts))
        yield f"instance_preferences have {shown} instances, the role {replicas} replicas"


def _groups(app: AppDef, groups: list[dict[str, Any]]) -> Iterator[str]:
    counts = {group["InstanceGroupName"]: group["InstanceCount"] for group in groups}
    roles = {role.name: role.num_replicas for role in app.roles}
    total, wanted = sum(counts.values()), app.roles[0].num_replicas
    if len(roles) == 1:
        if wanted not in (1, total):
            yield f"instance_groups have {total} instances, the role {app.roles[0].name!r} {wanted} replicas"
    elif roles != counts:
        shown = [", ".join(f"{name}:{n}" for name, n in each.items()) for each in (counts, roles)]
        yield f"instance_groups {shown[0]} are not the roles {shown[1]}: each role is a group"


def _count(app: AppDef, opts: AWSSageMakerOpts) -> Iterator[str]:
    count, replicas = opts.instance_count, app.roles[0].num_replicas
    if count < 1:
        yield f"instance_count must be ≥ 1, not {count}"
    if count != 1 and len(app.roles) > 1:
        yield "instance_count is given, but the job has several roles, each with its own replicas"
    elif count != 1 and replicas not in (1, count):
        yield f"instance_count is {count}, but the job has {replicas} replicas"


# ---- single subjects


def _access(opts: AWSSageMakerOpts) -> Iterator[str]:
    if not opts.role.strip("/ "):
        yield "role is empty: give the name or the ARN of the job's IAM role"
    # developer guide, "Access a training container through AWS Systems Manager for remote debugging"
    if opts.enable_remote_debug and opts.enable_network_isolation:
        yield (
            "enable_remote_debug and enable_network_isolation are both given: people connect through a "
            "service (SSM) that the container cannot reach without a network"
        )
    if opts.use_spot_instances and opts.max_wait is None:
        yield "use_spot_instances needs max_wait: how many seconds the job may take with all waiting"
    if opts.max_wait is not None and not opts.use_spot_instances:
        yield "max_wait is given without use_spot_instances: only spot instances are waited for"


def _retry_classes(opts: AWSSageMakerOpts, scheduler: str) -> Iterator[str]:
    if not opts.retry:
        return
    if opts.batch_queue:
        yield "retry is for jobs without a queue; a job in one has batch_attempts and batch_retry_rules"
    if opts.max_retry_attempts is not None:
        yield "retry and max_retry_attempts both say what is restarted: give one of them"
    if opts.retry.get(PREEMPTED, "0") != "0" and not opts.use_spot_instances:
        yield "retry: preempted is for spot instances: -cfg use_spot_instances=true"
    try:
        retries_of_service(opts, scheduler)
    except ConfigError as error:
        yield error.message


def retries_of_service(opts: AWSSageMakerOpts, scheduler: str = names.BACKEND) -> int | None:
    """Return how many times the service restarts a job after its own faults; None if this is not set.

    Raises:
        ConfigError: it cannot honour what is asked for by class.
    """
    if not opts.retry:
        return opts.max_retry_attempts
    unused = () if opts.use_spot_instances else (PREEMPTED,)
    asked = {name: text for name, text in opts.retry.items() if name not in unused}
    return backend_retries(scheduler, asked).times[NODE] or None


def _results(opts: AWSSageMakerOpts, *, local: bool) -> Iterator[str]:
    if opts.checkpoint_local_path and not opts.checkpoint_s3_uri:
        yield "checkpoint_local_path is given without checkpoint_s3_uri: nothing would be kept"
    if local:
        return
    for name in ("output_path", "checkpoint_s3_uri", "code_location"):
        value = getattr(opts, name)
        if value and not is_s3(value):
            yield f"{name} is {value!r}, but SageMaker writes to s3://bucket/prefix only"


def _input(opts: AWSSageMakerOpts) -> Iterator[str]:
    if opts.model_channel_name and not opts.model_uri:
        yield "model_channel_name is given without model_uri"
    for name, regex in [pair for metric in opts.metric_definitions or [] for pair in metric_pairs(metric)]:
        try:
            if not re.compile(regex).groups:
                yield f"metric_definitions: the regex of {name!r} has no group around the value"
        except re.error as error:
            yield f"metric_definitions: the regex of {name!r} is invalid: {error}"


def _code(opts: AWSSageMakerOpts) -> Iterator[str]:
    source, git = opts.source_dir or "", opts.git_config
    if opts.dependencies and is_s3(source):
        yield "dependencies cannot be put into the archive of source_dir, which is in S3 already"
    if git is None:
        return
    unknown = sorted(set(git) - GIT_KEYS)
    if unknown:
        yield f"git_config has no {', '.join(unknown)}; known: {', '.join(sorted(GIT_KEYS))}"
    for key, value in git.items():
        if not isinstance(value, (str, bool) if key == "2FA_enabled" else str):
            yield f"git_config: {key} must be text, not {value!r}"
    repo = git.get("repo", "")
    if not repo:
        yield "git_config has no repo"
    elif str(repo).startswith("http://"):
        yield "git_config: the repo is read over http, without encryption; give https://, ssh:// or git@..."
    if is_s3(source):
        yield "git_config and a source_dir in S3 are both given: the code can come from one only"
    for name in [source, *(opts.dependencies or [])]:
        if name.startswith(("/", "~")) or ".." in name.split("/"):
            yield f"{name} is not in the repository of git_config"


def _debugger(opts: AWSSageMakerOpts, region: str) -> Iterator[str]:
    if opts.debugger_rules and opts.debugger_hook_config is False:
        yield "debugger_rules are given, but debugger_hook_config=false saves nothing that they could examine"
    profiler = as_object(opts, "profiler_config")
    if opts.disable_profiler and profiler and profiler.get("DisableProfiler") is not True:
        yield "profiler_config is given, but disable_profiler turns the profiler off"
    for option in ("debugger_hook_config", "debugger_rules", "profiler_config", "profiler_rules"):
        if region in WITHOUT_DEBUGGER and getattr(opts, option):
            yield f"{option} is given, but {region} has no SageMaker Debugger"


def _tags(app: AppDef, opts: AWSSageMakerOpts) -> Iterator[str]:
    pairs = [pair for given in opts.tags or [] for pair in tag_pairs(given)]
    for key in twice(key for key, _ in pairs):
        yield f"tags: {key!r} is given twice"
    for key, value in dict(pairs).items():
        if key in names.OWN_TAGS:
            yield f"tags: {key!r} is set by the launcher"
        if key in app.metadata and str(app.metadata[key]) != value:
            yield f"tags: {key!r} is {value!r}, but {str(app.metadata[key])!r} in the job's metadata"


# ---- the queue


def attempts_of(app: AppDef, opts: AWSSageMakerOpts) -> int:
    """Return the maximum number of times Batch starts a job: from the option, or from the roles' retries."""
    if opts.batch_attempts is not None:
        return opts.batch_attempts
    return 1 + max(role.max_retries for role in app.roles)


def read_retry_rule(text: str) -> dict[str, str]:
    """Return a rule of ``batch_retry_rules`` as the request has it.

    Raises:
        ConfigError: it cannot be read.
    """
    pattern, _, action = text.strip().rpartition(":")
    if not pattern or action not in _RETRY_ACTIONS:
        raise ConfigError(
            f"batch_retry_rules: cannot read {text!r}; a rule is PATTERN:retry or PATTERN:final, such as "
            "'Received status from SageMaker: InternalServerError*:retry'"
        )
    return {"action": _RETRY_ACTIONS[action], "onStatusReason": pattern}


def _queue(app: AppDef, opts: AWSSageMakerOpts) -> Iterator[str]:
    if not opts.batch_queue:
        for option in QUEUE_OPTIONS:
            if getattr(opts, option) is not None:
                yield f"{option} is given without batch_queue"
    elif opts.batch_retry_rules and attempts_of(app, opts) == 1:
        yield "batch_retry_rules are given, but the job has one attempt: give max_retries or batch_attempts"

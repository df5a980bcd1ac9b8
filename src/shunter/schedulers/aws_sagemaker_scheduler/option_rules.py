"""Rules between the options, and between options and roles, checked before anything is read or asked.

Rules between the members of the request are in `request_rules`.
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
    INPUT_MODES,
    QUEUE_OPTIONS,
    AWSSageMakerOpts,
    as_object,
    as_objects,
    instance_groups,
    metric_pairs,
    tag_pairs,
)
from shunter.schedulers.aws_sagemaker_scheduler.request_rules import DEFAULT_RUN, twice
from shunter.schedulers.native_retries import backend_retries
from shunter.specs.app import NO_IMAGE, AppDef, Role
from shunter.specs.retries import NODE, PREEMPTED

MOST_GROUPS = 5
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
#: API reference, TrainingRepositoryAuthConfig.
_LAMBDA = re.compile(r"arn:[A-Za-z0-9-]+:lambda:[A-Za-z0-9-]+:[0-9]{12}:function:.+")
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: API reference, ServiceJobRetryStrategy, ServiceJobEvaluateOnExit, SubmitServiceJob.
MOST_ATTEMPTS = 10
MOST_RETRY_RULES = 5
LONGEST_PATTERN = 512
HIGHEST_PRIORITY = 9999
SHORTEST_TIMEOUT = 60
_QUEUE = re.compile(
    r"(?:arn:[a-z0-9-]+:batch:(?P<region>[a-z0-9-]+):\d{12}:job-queue/)?[A-Za-z0-9][A-Za-z0-9_-]{0,127}"
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
        *_time(opts),
        *_network(opts),
        *_results(opts, local=local),
        *_input(opts),
        *_code(opts),
        *_program(app, opts),
        *_debugger(opts, region),
        *_objects(opts, local=local),
        *_tags(app, opts),
        *_queue(app, opts, region),
        *_retry_classes(opts, names.LOCAL_BACKEND if local else names.BACKEND),
    ]
    refuse_job(app, problems)


def refuse_job(app: AppDef, problems: list[str]) -> None:
    """Raise one error with all problems, if there are any."""
    refuse(f"the job {app.name!r} cannot run on SageMaker like this", problems, InvalidRunConfigException)


# ---- roles and instances


def _roles(app: AppDef, *, retries: bool) -> Iterator[str]:
    if len(app.roles) > MOST_GROUPS:
        yield f"the job has {len(app.roles)} roles, but SageMaker accepts {MOST_GROUPS} groups of instances"
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
    groups = instance_groups(opts)
    if opts.instance_preferences is not None:
        yield from _preferences(app, opts)
    elif groups:
        yield from _groups(app, opts, groups)
    else:
        yield from _count(app, opts)


def _groups(app: AppDef, opts: AWSSageMakerOpts, groups: list[dict[str, Any]]) -> Iterator[str]:
    if opts.instance_type is not None:
        yield "instance_type and instance_groups are both given: each group has its own type"
    if opts.instance_count != 1:
        yield "instance_count and instance_groups are both given: each group has its own count"
    for name in twice(group["InstanceGroupName"] for group in groups):
        yield f"instance_groups: {name!r} is given twice"
    counts = {group["InstanceGroupName"]: group["InstanceCount"] for group in groups}
    roles = {role.name: role.num_replicas for role in app.roles}
    total, wanted = sum(counts.values()), app.roles[0].num_replicas
    if len(roles) == 1:
        if wanted not in (1, total):
            yield f"instance_groups have {total} instances, the role {app.roles[0].name!r} {wanted} replicas"
    elif roles != counts:
        shown = [", ".join(f"{name}:{n}" for name, n in each.items()) for each in (counts, roles)]
        yield f"instance_groups {shown[0]} are not the roles {shown[1]}: each role is a group"


def _preferences(app: AppDef, opts: AWSSageMakerOpts) -> Iterator[str]:
    preferences = as_objects(opts, "instance_preferences")
    if not preferences:
        yield "instance_preferences is empty: name the types of instances, the best first"
    for other in ("instance_type", "instance_groups"):
        if getattr(opts, other):
            yield f"instance_preferences and {other} are both given: each preference has its own type"
    if len(app.roles) > 1:
        yield "instance_preferences is given, but the job has several roles, which need a group each"
    counts = [each["InstanceCount"] for each in preferences if "InstanceCount" in each]
    if counts and opts.instance_count != 1:
        yield "instance_count is given, but instance_preferences have counts, too"
    replicas = app.roles[0].num_replicas
    if replicas > 1 and any(count != replicas for count in counts):
        found = ", ".join(map(str, counts))
        yield f"instance_preferences have {found} instances, the role {replicas} replicas"
    if not counts:
        yield from _count(app, opts)


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
    if opts.training_plan_extension and not opts.training_plan:
        yield "training_plan_extension is given without training_plan, which it extends"


def _time(opts: AWSSageMakerOpts) -> Iterator[str]:
    max_run = DEFAULT_RUN if opts.max_run is None else opts.max_run
    if opts.max_run is not None and opts.max_run < 1:
        yield f"max_run must be at least 1 second, not {opts.max_run}"
    if opts.use_spot_instances:
        if opts.max_wait is None:
            yield "use_spot_instances needs max_wait: how many seconds the job may take with all waiting"
        elif opts.max_wait < max_run:
            default = " (the default)" if opts.max_run is None else ""
            yield f"max_wait is {opts.max_wait}, less than max_run, which is {max_run}{default}"
    elif opts.max_wait is not None:
        yield "max_wait is given without use_spot_instances: only spot instances are waited for"
    if opts.max_retry_attempts is not None and not 1 <= opts.max_retry_attempts <= 30:
        yield f"max_retry_attempts must be from 1 to 30, not {opts.max_retry_attempts}"
    if opts.volume_size is not None and opts.volume_size < 1:
        yield f"volume_size must be at least 1 GB, not {opts.volume_size}"


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


def _network(opts: AWSSageMakerOpts) -> Iterator[str]:
    if bool(opts.subnets) != bool(opts.security_group_ids):
        given, missing = ("subnets", "security_group_ids")[:: 1 if opts.subnets else -1]
        yield f"{given} are given without {missing}; a VPC needs both"
    login = opts.training_repository_credentials_provider_arn
    if login and not _LAMBDA.fullmatch(login):
        yield (
            "training_repository_credentials_provider_arn must be the ARN of a Lambda function, "
            f"arn:aws:lambda:REGION:ACCOUNT:function:NAME, not {login!r}"
        )


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
    if opts.input_mode is not None and opts.input_mode not in INPUT_MODES:
        yield f"input_mode must be one of {', '.join(INPUT_MODES)}, not {opts.input_mode!r}"
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


def _program(app: AppDef, opts: AWSSageMakerOpts) -> Iterator[str]:
    if "" in (opts.hyperparameters or {}):
        yield "hyperparameters: a name is empty"
    variables = [*(opts.environment or {}), *(name for role in app.roles for name in role.env)]
    for name in dict.fromkeys(variables):
        if not _VARIABLE.fullmatch(name):
            yield f"the environment variable {name!r} has characters that SageMaker does not accept"


def _debugger(opts: AWSSageMakerOpts, region: str) -> Iterator[str]:
    if opts.debugger_rules and opts.debugger_hook_config is False:
        yield "debugger_rules are given, but debugger_hook_config=false saves nothing that they could examine"
    profiler = as_object(opts, "profiler_config")
    if opts.disable_profiler and profiler and profiler.get("DisableProfiler") is not True:
        yield "profiler_config is given, but disable_profiler turns the profiler off"
    for option in ("debugger_rules", "profiler_rules"):
        if any("RuleConfigurationName" not in rule for rule in as_objects(opts, option)):
            yield f"{option}: a rule has no name (RuleConfigurationName)"
    for option in ("debugger_hook_config", "debugger_rules", "profiler_config", "profiler_rules"):
        if region in WITHOUT_DEBUGGER and getattr(opts, option):
            yield f"{option} is given, but {region} has no SageMaker Debugger"


def _objects(opts: AWSSageMakerOpts, *, local: bool) -> Iterator[str]:
    required = {
        "tensorboard_output_config": ("S3OutputPath", "where the files go"),
        "mlflow_config": ("MlflowResourceArn", "the ARN of the tracking server or app"),
        "model_package_config": ("ModelPackageGroupArn", "the group that the model is registered in"),
    }
    for option, (member, meaning) in required.items():
        if getattr(opts, option) is not None and not as_object(opts, option).get(member):
            yield f"{option} has no {member}: {meaning}"
    for option in ("debugger_hook_config", "profiler_config", "tensorboard_output_config"):
        path = as_object(opts, option).get("S3OutputPath")
        if not local and isinstance(path, str) and path and not path.startswith("s3://"):
            yield f"{option}: the S3OutputPath is {path!r}, but SageMaker writes to s3://bucket/prefix only"
    experiment = as_object(opts, "experiment_config")
    if opts.experiment_config is not None and not experiment:
        yield "experiment_config is empty: give ExperimentName, TrialName, RunName"
    if experiment.get("RunName") and not experiment.get("ExperimentName"):
        yield "experiment_config has a RunName, but not the ExperimentName that the run belongs to"


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
    """Return a valid rule of ``batch_retry_rules`` as the request has it."""
    pattern, _, action = text.strip().rpartition(":")
    return {"action": _RETRY_ACTIONS[action], "onStatusReason": pattern}


def _queue(app: AppDef, opts: AWSSageMakerOpts, region: str) -> Iterator[str]:
    queue = opts.batch_queue
    if not queue:
        for option in QUEUE_OPTIONS:
            if getattr(opts, option) is not None:
                yield f"{option} is given without batch_queue"
        return
    match = _QUEUE.fullmatch(queue)
    if match is None:
        yield f"batch_queue must be the name or the ARN of a job queue, not {queue!r}"
    elif match["region"] and region and match["region"] != region:
        yield f"batch_queue is in {match['region']}, but the job runs in {region}"
    share, quota, priority = opts.batch_share_identifier, opts.batch_quota_share, opts.batch_priority
    if share and quota:
        yield (
            "batch_share_identifier and batch_quota_share are both given: a queue has fair shares, or quota "
            "shares"
        )
    if share is not None and not re.fullmatch(r"[A-Za-z0-9]{1,255}\*?", share):
        yield f"batch_share_identifier may have letters and digits, and a * at its end, not {share!r}"
    if quota is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", quota):
        yield f"batch_quota_share may have up to 128 letters, digits, - and _, not {quota!r}"
    if priority is not None and not 0 <= priority <= HIGHEST_PRIORITY:
        yield f"batch_priority must be from 0 to {HIGHEST_PRIORITY}, not {priority}"
    preemptions, timeout = opts.batch_preemption_retries, opts.batch_timeout
    if preemptions is not None and not quota:
        yield "batch_preemption_retries is given without batch_quota_share: only its jobs are preempted"
    if preemptions is not None and preemptions < 0:
        yield f"batch_preemption_retries must be ≥ 0, not {preemptions}"
    yield from _retries(app, opts)
    if timeout is not None and timeout < SHORTEST_TIMEOUT:
        yield f"batch_timeout must be at least {SHORTEST_TIMEOUT} seconds, not {timeout}"


def _retries(app: AppDef, opts: AWSSageMakerOpts) -> Iterator[str]:
    attempts, rules = attempts_of(app, opts), opts.batch_retry_rules or []
    if not 1 <= attempts <= MOST_ATTEMPTS:
        source = "batch_attempts is" if opts.batch_attempts is not None else "max_retries makes"
        yield f"{source} {attempts} attempts, but AWS Batch makes from 1 to {MOST_ATTEMPTS}"
    if rules and attempts == 1:
        yield "batch_retry_rules are given, but the job has one attempt: give max_retries or batch_attempts"
    if len(rules) > MOST_RETRY_RULES:
        yield f"batch_retry_rules has {len(rules)} rules, but AWS Batch accepts {MOST_RETRY_RULES}"
    for text in rules:
        pattern, _, action = text.strip().rpartition(":")
        if not pattern or action not in _RETRY_ACTIONS:
            yield (
                f"batch_retry_rules: cannot read {text!r}; a rule is PATTERN:retry or PATTERN:final, such as "
                "'Received status from SageMaker: InternalServerError*:retry'"
            )
        elif "*" in pattern[:-1] or len(pattern) > LONGEST_PATTERN:
            yield (
                f"batch_retry_rules: the pattern {pattern!r} may have a * at its end only, and at most "
                f"{LONGEST_PATTERN} characters"
            )

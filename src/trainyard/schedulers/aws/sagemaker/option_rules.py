"""Options that do not go together, refused with the reason before anything is read, uploaded or asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.errors import InvalidRunConfigException
from trainyard.schedulers.aws.sagemaker import names
from trainyard.schedulers.aws.sagemaker.channels import is_s3
from trainyard.schedulers.aws.sagemaker.configs import problems_of as config_problems
from trainyard.schedulers.aws.sagemaker.instances import check_counts, given_groups, role_problems
from trainyard.schedulers.aws.sagemaker.options import INPUT_MODES, AWSSageMakerOpts
from trainyard.schedulers.aws.sagemaker.queue_request import problems_of as queue_problems
from trainyard.schedulers.aws.sagemaker.request_rules import DEFAULT_RUN
from trainyard.specs.app import AppDef

#: API reference, CreateTrainingJob: the most variables that there may be.
MOST_VARIABLES = 100
GIT_KEYS = {"repo", "branch", "commit", "2FA_enabled", "username", "password", "token"}
#: Regions in which SageMaker Debugger is not offered, of the SDK's list.
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
_LOGIN = re.compile(r"arn:[A-Za-z0-9-]+:lambda:[A-Za-z0-9-]+:[0-9]{12}:function:.+")
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def check_options(app: AppDef, opts: AWSSageMakerOpts, *, region: str = "", local: bool = False) -> None:
    """Refuse what is inconsistent; everything that is wrong is said at once.

    Args:
        app: the job.
        opts: its options.
        region: where it is to run, if that is known.
        local: whether it runs on this machine, where paths stand in for S3.

    Raises:
        InvalidRunConfigException: something is.
    """
    problems = [
        *role_problems(app, retries=bool(opts.batch_queue)),
        *_access(opts),
        *check_counts(app, opts),
        *_time(opts),
        *_network(opts),
        *_results(opts, local=local),
        *_input(opts),
        *_code(opts),
        *_program(app, opts),
        *config_problems(opts, local=local),
        *_tags(app, opts),
        *queue_problems(app, opts, region),
    ]
    if region in WITHOUT_DEBUGGER:
        options = ("debugger_hook_config", "debugger_rules", "profiler_config", "profiler_rules")
        given = [option for option in options if getattr(opts, option)]
        problems += [f"{option} is given, but {region} has no SageMaker Debugger" for option in given]
    refuse(app, problems)


def refuse(app: AppDef, problems: list[str]) -> None:
    """Say all problems at once, if there are any.

    Raises:
        InvalidRunConfigException: there are some.
    """
    if problems:
        text = "".join(f"\n  - {problem}" for problem in problems)
        raise InvalidRunConfigException(f"the job {app.name!r} cannot run on SageMaker like this:{text}")


def _access(opts: AWSSageMakerOpts) -> Iterator[str]:
    if not opts.role.strip("/ "):
        yield "role is empty: give the name or the ARN of the IAM role that the job is to have"
    if opts.training_plan_extension and not opts.training_plan:
        yield "training_plan_extension is given without training_plan, which it extends"


def _time(opts: AWSSageMakerOpts) -> Iterator[str]:
    max_run = DEFAULT_RUN if opts.max_run is None else opts.max_run
    if opts.max_run is not None and opts.max_run < 1:
        yield f"max_run is {opts.max_run}, it must be at least 1 second"
    if opts.use_spot_instances:
        if opts.max_wait is None:
            yield "use_spot_instances needs max_wait: how many seconds the job may take with all waiting"
        elif opts.max_wait < max_run:
            default = " (the default)" if opts.max_run is None else ""
            yield f"max_wait is {opts.max_wait}, less than max_run, which is {max_run}{default}"
        if opts.keep_alive_period_in_seconds:
            yield "keep_alive_period_in_seconds keeps no spot instances: a warm pool needs on-demand ones"
    elif opts.max_wait is not None:
        yield "max_wait is given without use_spot_instances, which alone wait"
    if opts.keep_alive_period_in_seconds and given_groups(opts):
        yield "keep_alive_period_in_seconds keeps no instance_groups: a warm pool is of one type"
    if opts.max_retry_attempts is not None and not 1 <= opts.max_retry_attempts <= 30:
        yield f"max_retry_attempts is {opts.max_retry_attempts}, it must be from 1 to 30"
    if opts.volume_size is not None and opts.volume_size < 1:
        yield f"volume_size is {opts.volume_size}, it must be at least 1 GB"


def _network(opts: AWSSageMakerOpts) -> Iterator[str]:
    if bool(opts.subnets) != bool(opts.security_group_ids):
        there, missing = ("subnets", "security_group_ids")[:: 1 if opts.subnets else -1]
        yield f"{there} are given without {missing}; a VPC needs both"
    mode, provider = (
        opts.training_repository_access_mode,
        opts.training_repository_credentials_provider_arn,
    )
    if provider and mode != "Vpc":
        yield (
            "training_repository_credentials_provider_arn is given, but training_repository_access_mode is "
            f"{mode or 'not'}: logins are for registries in a VPC (access mode Vpc)"
        )
    if provider and not _LOGIN.fullmatch(provider):
        yield (
            f"training_repository_credentials_provider_arn is {provider!r}, which is no ARN of a Lambda "
            "function: arn:aws:lambda:REGION:ACCOUNT:function:NAME"
        )
    if mode == "Vpc" and not opts.subnets:
        yield "training_repository_access_mode is Vpc, but no subnets and security_group_ids are given"


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
        yield f"input_mode is {opts.input_mode!r}, it must be one of {', '.join(INPUT_MODES)}"
    if opts.model_channel_name and not opts.model_uri:
        yield "model_channel_name is given without model_uri"
    for metric in opts.metric_definitions or []:
        yield from _regex_problems(metric)


def _regex_problems(metric: Mapping[str, str]) -> Iterator[str]:
    for name, regex in metric_pairs(metric):
        try:
            groups = re.compile(regex).groups
        except re.error as error:
            yield f"metric_definitions: the regex of {name!r} is none: {error}"
            continue
        if not groups:
            yield f"metric_definitions: the regex of {name!r} has no group around the value: ([0-9.]+)"


def _code(opts: AWSSageMakerOpts) -> Iterator[str]:
    source = opts.source_dir or ""
    if opts.dependencies and is_s3(source):
        yield "dependencies cannot be put into the archive of source_dir, which is in S3 already"
    if opts.git_config is None:
        return
    unknown = sorted(set(opts.git_config) - GIT_KEYS)
    if unknown:
        yield f"git_config has no {', '.join(unknown)}; known: {', '.join(sorted(GIT_KEYS))}"
    for key, value in opts.git_config.items():
        if not isinstance(value, (str, bool) if key == "2FA_enabled" else str):
            yield f"git_config: {key} is {value!r}, which is no text"
    repo = opts.git_config.get("repo", "")
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
    variables: dict[str, Any] = dict.fromkeys(opts.environment or {})
    for role in app.roles:
        variables |= dict.fromkeys(role.env)
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            yield f"the environment variable {name!r} has characters that SageMaker does not take"


def variable_problems(environment: Mapping[str, str]) -> Iterator[str]:
    """Find more variables in a request than it may have, in words that tell whose they are."""
    if len(environment) <= MOST_VARIABLES:
        return
    own = [name for name in environment if name.startswith("TORCHX_")]
    yield (
        f"environment: SageMaker takes {MOST_VARIABLES} variables; the job has "
        f"{len(environment) - len(own)}, and the launcher adds {len(own)} ({', '.join(own)})"
    )


def _tags(app: AppDef, opts: AWSSageMakerOpts) -> Iterator[str]:
    pairs = [pair for given in opts.tags or [] for pair in tag_pairs(given)]
    keys = [key for key, _ in pairs]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        yield f"tags: {key!r} is given twice"
    for key, value in dict(pairs).items():
        if key in names.OWN_TAGS:
            yield f"tags: {key!r} is a tag of the launcher's own"
        if key in app.metadata and str(app.metadata[key]) != value:
            yield f"tags: {key!r} is {value!r}, and {str(app.metadata[key])!r} in the job's own metadata"


def metric_pairs(metric: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return names and regexes of a metric definition: ``{"Name", "Regex"}``, or ``{name: regex}``."""
    return _pairs(metric, "metric_definitions", "Name", "Regex")


def tag_pairs(tag: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return keys and values of a tag: ``{"Key", "Value"}``, or ``{key: value}``."""
    return _pairs(tag, "tags", "Key", "Value")


def _pairs(given: Mapping[str, str], option: str, first: str, second: str) -> list[tuple[str, str]]:
    """Return the pairs of an item that is written in the service's way, or as pairs.

    Raises:
        InvalidRunConfigException: it is in the service's way, but not whole: "Regexp" for "Regex".
    """
    folded = {key.lower(): value for key, value in given.items()}
    if set(folded) == {first.lower(), second.lower()}:
        return [(folded[first.lower()], folded[second.lower()])]
    if first in given or second in given:
        raise InvalidRunConfigException(
            f"{option}: {dict(given)} has to have {first} and {second}, and nothing else", option
        )
    return list(given.items())

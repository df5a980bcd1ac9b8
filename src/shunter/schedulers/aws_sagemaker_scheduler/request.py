"""From a job and options to a CreateTrainingJob request. Nothing is read, uploaded or asked here.

Options that are copied into the request need nothing here: `options` says where each goes. What only AWS or a
disk can tell is a placeholder in the request at first: the account (``<account>``), the content of a
repository (``<content>``), paths of this machine (``file://...``). `settle` replaces them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import shunter
from shunter.errors import ConfigError, InvalidRunConfigException, refuse
from shunter.redaction import Redactor, redact_text
from shunter.schedulers.aws import aws_names, s3
from shunter.schedulers.aws.batch_jobs import TRAINING
from shunter.schedulers.aws.service_model import problems_of
from shunter.schedulers.aws_sagemaker_scheduler import names, request_rules
from shunter.schedulers.aws_sagemaker_scheduler.channels import (
    MODEL_CONTENT_TYPE,
    SETTING_OF_MEMBER,
    InputChannels,
    LocalInput,
    is_s3,
    local_path,
)
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import (
    Containers,
    PlannedCode,
    without_secrets,
)
from shunter.schedulers.aws_sagemaker_scheduler.option_rules import (
    WITHOUT_DEBUGGER,
    attempts_of,
    check_options,
    read_retry_rule,
    refuse_job,
    retries_of_service,
)
from shunter.schedulers.aws_sagemaker_scheduler.options import (
    FILE,
    OPTION_OF_MEMBER,
    AWSSageMakerOpts,
    as_object,
    as_objects,
    copied,
    declared,
    instance_groups,
    metric_pairs,
    tag_pairs,
)
from shunter.schedulers.aws_sagemaker_scheduler.training_script import script_of
from shunter.schedulers.toolkit_supervision import (
    EndRules,
    check_roles,
    check_variables,
    is_asked_for,
    warnings_of,
    with_variables,
)
from shunter.specs.app import AppDef, Role
from shunter.specs.named_resources_aws import INSTANCE_TYPE

DEFAULT_MODEL_CHANNEL = "model"
DEFAULT_VOLUME = 30


@dataclass
class Needs:
    """What has to be done before a request can be sent.

    Attributes:
        role_name: name of the role whose ARN is to be found; "" where the ARN was given.
        role_check: whether the role is to be looked up, though its ARN was given.
        checkpoint_check: where the checkpoints are, if the role's permissions to them are to be checked.
        default_bucket: whether something goes to the account's own bucket, made if it is missing.
        code_uri: where the code is to be uploaded, a "directory" of S3; "" if no code is uploaded.
        uploads: paths of this machine that are to be uploaded.
    """

    role_name: str = ""
    role_check: bool = False
    checkpoint_check: str = ""
    default_bucket: bool = False
    code_uri: str = ""
    uploads: list[LocalInput] = field(default_factory=list)

    def steps(self) -> list[str]:
        """Return in words what will be done."""
        role, checkpoints, code = self.role_name, self.checkpoint_check, self.code_uri
        steps = []
        if role:
            steps.append(f"look up the ARN of the role {role}, and whether SageMaker may assume it")
        if self.role_check:
            steps.append("look up whether SageMaker may assume the role, if that is allowed")
        if checkpoints:
            steps.append(
                f"look up whether the role may read and write {checkpoints}, for when the job is restarted, "
                "if that is allowed"
            )
        if self.default_bucket:
            steps.append("make the account's own bucket, unless it exists")
        if code:
            steps.append(f"upload the code to {code}, unless it is there")
        return [*steps, *(f"upload {upload.path}, unless it is there" for upload in self.uploads)]


@dataclass
class AWSSageMakerJob:
    """A training job that can be submitted.

    Attributes:
        job_name: its name on SageMaker, which is the job's id.
        job_def: the CreateTrainingJob request.
        images_to_push: images with the workspace, where they are made: name -> repository and tag.
        needs: what has to be done before the request can be sent.
        runs: what each role runs, for display: the request may have it in pieces.
        submission: the SubmitServiceJob request of a job that goes through a Batch queue, without its
            payload, which is the CreateTrainingJob request; empty for others.
        supervision: options of `supervision` for the supervisor of a job on this machine.
        warnings: differences from what the user may expect.
    """

    job_name: str
    job_def: dict[str, Any]
    images_to_push: dict[str, tuple[str, str]]
    needs: Needs = field(default_factory=Needs)
    runs: dict[str, list[str]] = field(default_factory=dict)
    submission: dict[str, Any] = field(default_factory=dict)
    supervision: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def app_id(self) -> str:
        """The job's id: its name, and before it the queue if it goes through one."""
        return aws_names.make_app_id(self.submission.get("jobQueue", ""), self.job_name)

    def shown(self) -> dict[str, Any]:
        """Return the request as JSON values, without secrets, with what comes before it and what will run."""
        redactor = Redactor()
        job_def = without_secrets(self.job_def)
        request: dict[str, Any] = {"CreateTrainingJob": job_def}
        if self.submission:
            payload = {"serviceRequestPayload": job_def}
            request = {"SubmitServiceJob": {**redactor.json(self.submission), **payload}}
        before, runs = redactor.json(self.needs.steps()), redactor.json(self.runs)
        supervision = {
            key: redactor.named(key, value) if key == "notify_secret" else redactor.json(value)
            for key, value in self.supervision.items()
        }
        shown = {"before": before, **request, "runs": runs, "supervision": supervision}
        return {key: value for key, value in shown.items() if value}

    def __str__(self) -> str:
        """Return the same as text."""
        return json.dumps(self.shown(), indent=2)

    def __repr__(self) -> str:
        return str(self)


def make_job(
    app: AppDef,
    opts: AWSSageMakerOpts,
    *,
    job_name: str | None = None,
    code: PlannedCode | None = None,
    region: str = "us-east-1",
    local: bool = False,
) -> AWSSageMakerJob:
    """Create the request. A pure function: it calls no service and reads no file.

    Args:
        app: the job; it is not changed.
        opts: the options.
        job_name: name of the training job; a new one by default.
        code: the code that travels with it.
        region: where it runs.
        local: whether it runs on this machine: results and checkpoints may go to paths, given as
            ``file://`` URIs in the request.

    Raises:
        ConfigError: the job or the options do not fit SageMaker, or each other.
    """
    check_options(app, opts, region=region, local=local)
    if opts.retry:
        opts = replace(opts, retry=None, max_retry_attempts=retries_of_service(opts))
    name = job_name or names.make_job_name(opts.base_job_name or app.name)
    warnings: list[str] = []
    if not local:
        app, warnings = _supervised(app, opts)
    job = _RequestBuilder(app, opts, name, code, region).job()
    job.warnings = warnings
    refuse_job(app, request_rules.problems_of(job.job_def, _name_in_options, is_local=local))
    return job


def _supervised(app: AppDef, opts: AWSSageMakerOpts) -> tuple[AppDef, list[str]]:
    """Give the toolkit in the containers what it needs for notifications and hang detection.

    Returns the job, and warnings about differences from what the user may expect.
    """
    has_toolkit = opts.toolkit and len(app.roles) == 1 and script_of(app.roles[0]) is not None
    check_roles(names.BACKEND, app, opts, {role.name: has_toolkit for role in app.roles})
    if not is_asked_for(opts):
        return app, []
    if opts.notify and opts.enable_network_isolation:
        raise ConfigError("notify: containers without a network (enable_network_isolation) reach nobody")
    if opts.notify and opts.batch_queue and attempts_of(app, opts) > 1:
        raise ConfigError(
            "notify: a job of a Batch queue does not know whether it is the last attempt",
            hint="Leave batch_attempts and max_retries out.",
        )
    check_variables(opts, {**(opts.environment or {}), **app.roles[0].env})
    rules = EndRules(stopped="" if opts.use_spot_instances else "CANCELLED")
    # the environment's secret, which may sign for other jobs too, is not sent to where others read it
    secret = opts.notify_secret or ""
    warnings = warnings_of(names.BACKEND, opts, rules, hidden=False, is_signed=bool(secret))
    if secret and opts.notify:
        warnings.append(
            "notify_secret: anyone who may describe the job can read it in the job's variables: do not "
            "use it for anything else"
        )
    return with_variables(app, opts, rules, secret), warnings


def _name_in_options(member: str) -> str:
    """Return the option, or setting of a channel, that a member of the request is made from."""
    return OPTION_OF_MEMBER.get(member) or SETTING_OF_MEMBER.get(member, member)


class _RequestBuilder:
    """Makes one request, part by part."""

    def __init__(
        self, app: AppDef, opts: AWSSageMakerOpts, job_name: str, code: PlannedCode | None, region: str
    ) -> None:
        self.app = app
        self.opts = opts
        self.job_name = job_name
        self.app_id = aws_names.make_app_id(opts.batch_queue or "", job_name)
        self.region = region
        self.needs = Needs()
        self.script = script_of(app.roles[0]) if len(app.roles) == 1 else None
        self.groups: list[str] = []
        self.resources = self._resources()
        self.output_path = self._output_path()
        if code is not None and code.key:
            self.needs.code_uri = self._code_uri(code.key)
        self.containers = Containers(
            app,
            opts,
            self.script,
            code,
            job_name=job_name,
            app_id=self.app_id,
            region=region,
            code_uri=self.needs.code_uri,
            several=self.count > 1,
            types=self.types,
            groups=self.groups,
        )

    def job(self) -> AWSSageMakerJob:
        opts, containers = self.opts, self.containers
        channels = self._channels()
        made: dict[str, Any] = {
            "TrainingJobName": self.job_name,
            "RoleArn": self._role(),
            "AlgorithmSpecification": self._algorithm(),
            "OutputDataConfig": self._output(),
            "ResourceConfig": self.resources,
            "StoppingCondition": {"MaxRuntimeInSeconds": self._max_run()},
            "HyperParameters": containers.hyperparameters,
            "Environment": containers.environment,
            "InputDataConfig": channels.entries,
            "CheckpointConfig": self._checkpoints(),
            "DebugHookConfig": self._debug_hook(),
            "DebugRuleConfigurations": _rules(opts, "debugger_rules", self.region),
            "ProfilerConfig": self._profiler(),
            "ProfilerRuleConfigurations": _rules(opts, "profiler_rules", self.region),
            "Tags": self._tags(),
        }
        request = {key: value for key, value in _with_copied(made, opts, "member").items() if value}
        self.needs.uploads = channels.uploads
        job = AWSSageMakerJob(self.job_name, request, {}, needs=self.needs, runs=containers.runs)
        if opts.batch_queue:
            job.submission = self._submission(request["Tags"])
        return job

    # ---- instances

    def _resources(self) -> dict[str, Any]:
        """Return ``ResourceConfig``, and keep the number, types and groups of the instances."""
        app, opts = self.app, self.opts
        config: dict[str, Any] = {"VolumeSizeInGB": DEFAULT_VOLUME}
        replicas = app.roles[0].num_replicas
        self.count = replicas if replicas > 1 else opts.instance_count
        preferences, groups = as_objects(opts, "instance_preferences"), instance_groups(opts)
        if preferences:
            config["InstancePreferences"] = preferences
            self.types = [str(each.get("InstanceType", "")) for each in preferences]
            counts = [each["InstanceCount"] for each in preferences if "InstanceCount" in each]
            self.count = max((count for count in counts if isinstance(count, int)), default=self.count)
            return config if counts else config | {"InstanceCount": self.count}
        if len(app.roles) > 1 and not groups:
            groups = [
                {
                    "InstanceGroupName": role.name,
                    "InstanceType": _instance_type(role, opts),
                    "InstanceCount": role.num_replicas,
                }
                for role in app.roles
            ]
        if groups:
            self.groups = [group["InstanceGroupName"] for group in groups]
            self.count = sum(group["InstanceCount"] for group in groups)
            self.types = list(dict.fromkeys(group["InstanceType"] for group in groups))
            return config | {"InstanceGroups": groups}
        self.types = [_instance_type(app.roles[0], opts)]
        return config | {"InstanceType": self.types[0], "InstanceCount": self.count}

    # ---- the program

    def _role(self) -> str:
        role = self.opts.role
        if role.startswith("arn:"):
            # the ARN is enough, unless the job starts again after faults, or passes session tags on
            again = self.opts.max_retry_attempts is not None
            self.needs.role_check = again or bool(self.opts.enable_session_tag_chaining)
            return role
        self.needs.role_name = role.rpartition("/")[2]
        return f"arn:aws:iam::{names.ACCOUNT}:role/{role.strip('/')}"

    def _algorithm(self) -> dict[str, Any]:
        algorithm: dict[str, Any] = {
            "TrainingImage": self.app.roles[0].image,
            "TrainingInputMode": FILE,
            "ContainerEntrypoint": self.containers.entrypoint,
            "ContainerArguments": self.containers.arguments,
            "MetricDefinitions": self._metrics(),
        }
        return {key: value for key, value in algorithm.items() if value}

    def _metrics(self) -> list[dict[str, str]]:
        pairs = [pair for given in self.opts.metric_definitions or [] for pair in metric_pairs(given)]
        if self.script is not None:
            for metric in self.script.metrics:
                pairs += metric_pairs({"Name": metric["name"], "Regex": metric.get("regex")})
        for name in request_rules.twice(name for name, _ in pairs):
            raise ConfigError(f"the metric {name!r} is defined twice")
        return [{"Name": name, "Regex": regex} for name, regex in pairs]

    def _max_run(self) -> int:
        of_script = self.script.max_run if self.script is not None else None
        return request_rules.DEFAULT_RUN if of_script is None else of_script

    # ---- input and results

    def _channels(self) -> InputChannels:
        channels = InputChannels()
        given: dict[str, Any] = dict(self.opts.channels or {})
        wanted = self.script.channels if self.script is not None else {}
        for name, uri in [*given.items(), *wanted.items()]:
            channels.add(name, uri)
        if self.opts.model_uri:
            channels.add(
                self.opts.model_channel_name or DEFAULT_MODEL_CHANNEL,
                self.opts.model_uri,
                ContentType=MODEL_CONTENT_TYPE,
                InputMode=FILE,
            )
        for name, uri in self.containers.channels.items():
            channels.add(name, uri, InputMode=FILE)
        channels.assign(self.groups)
        return channels

    def _output_path(self) -> str:
        wanted = self.script.output.get("uri", "") if self.script is not None else ""
        given = _one_of("output", wanted, "output_path", self.opts.output_path)
        return _destination("output", given) if given else self._default_bucket()

    def _default_bucket(self) -> str:
        self.needs.default_bucket = True
        return s3.join_uri(names.default_bucket(self.region))

    def _output(self) -> dict[str, Any]:
        uncompressed = self.opts.disable_output_compression
        if self.script is not None and self.script.output.get("compression") == "none":
            uncompressed = True
        return {"S3OutputPath": self.output_path, **({"CompressionType": "NONE"} if uncompressed else {})}

    def _checkpoints(self) -> dict[str, str]:
        wanted = self.script.checkpoints if self.script is not None else {}
        uri = _one_of("checkpoints", wanted.get("uri", ""), "checkpoint_s3_uri", self.opts.checkpoint_s3_uri)
        if not uri:
            return {}
        again = self.opts.max_retry_attempts is not None or self.opts.use_spot_instances
        if again and uri.startswith("s3://") and not s3.is_directory_bucket(uri):
            self.needs.checkpoint_check = uri
        path = self.opts.checkpoint_local_path or wanted.get("path")
        return {"S3Uri": _destination("checkpoints", uri), **({"LocalPath": str(path)} if path else {})}

    def _debug_hook(self) -> dict[str, Any]:
        given = self.opts.debugger_hook_config
        if given is False or self.region in WITHOUT_DEBUGGER:
            return {}
        # as the SDK has it: Debugger cannot be combined with parameter servers
        parameter_server = (self.opts.distribution or {}).get("parameter_server", {})
        if given is None and not self.opts.debugger_rules and parameter_server.get("enabled"):
            return {}
        config = as_object(self.opts, "debugger_hook_config")
        return {"S3OutputPath": self.output_path, "CollectionConfigurations": [], **config}

    def _profiler(self) -> dict[str, Any]:
        trainium = any(kind.startswith("ml.trn") for kind in self.types)
        given = as_object(self.opts, "profiler_config")
        is_off = self.opts.disable_profiler or self.region in WITHOUT_DEBUGGER or trainium
        if given.get("DisableProfiler") or (is_off and not given):
            return {"DisableProfiler": True}
        return {"S3OutputPath": self.output_path, "DisableProfiler": False, **given}

    def _code_uri(self, key: str) -> str:
        """Return where the code goes: code_location, or the bucket of the results."""
        if self.opts.code_location:
            bucket, prefix = s3.split_uri(self.opts.code_location)
        else:
            place = self.output_path if is_s3(self.output_path) else self._default_bucket()
            bucket, prefix = s3.split_uri(place)[0], ""
        return s3.join_uri(bucket, prefix, "shunter/code", key) + "/"

    # ---- tags and the queue

    def _tags(self) -> list[dict[str, str]]:
        tags = {key: value for given in self.opts.tags or [] for key, value in tag_pairs(given)}
        tags |= {key: str(value) for key, value in self.app.metadata.items()}
        tags[aws_names.TAG_VERSION] = shunter.__version__
        if self.opts.batch_queue:
            tags[names.TAG_QUEUED] = self.app_id
        tags[aws_names.TAG_APP_NAME] = aws_names.tag_value(self.app.name)
        if self.opts.user:
            tags[aws_names.TAG_USER] = aws_names.tag_value(self.opts.user)
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    def _submission(self, tags: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Return the SubmitServiceJob request without its payload, which is the training job's own request.

        Batch stores the payload as text and sends it when the job's turn comes. Each attempt is a training
        job whose name Batch derives from the one in the request.
        """
        retries = [read_retry_rule(text) for text in self.opts.batch_retry_rules or []]
        made: dict[str, Any] = {
            "jobName": self.job_name,
            "jobQueue": self.opts.batch_queue,
            "serviceJobType": TRAINING,
            "retryStrategy": {
                "attempts": attempts_of(self.app, self.opts),
                **({"evaluateOnExit": retries} if retries else {}),
            },
            "tags": {tag["Key"]: tag["Value"] for tag in tags},
            # nobody else has the name, so Batch recognizes a submission that is sent twice
            "clientToken": self.job_name,
        }
        return _with_copied(made, self.opts, "batch_member")


def _with_copied(request: dict[str, Any], opts: AWSSageMakerOpts, key: str) -> dict[str, Any]:
    """Put in the options that the request has as they are given; see `options.copied`."""
    for path, value in copied(opts, key):
        *parents, last = path.split(".")
        place = request
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    return request


def _instance_type(role: Role, opts: AWSSageMakerOpts) -> str:
    if opts.instance_type:
        return opts.instance_type
    named = role.resource.capabilities.get(INSTANCE_TYPE)
    if named:
        return f"ml.{named}"
    raise InvalidRunConfigException(
        "option 'instance_type' (str) is required: type of the instances, such as ml.g5.xlarge",
        "instance_type",
        hint="Give it with -cfg instance_type=ml.m5.xlarge, or name an AWS resource: -h aws_g5.2xlarge.",
    )


def _one_of(name: str, wanted: str, option: str, given: str | None) -> str:
    if wanted and given and wanted.rstrip("/") != given.rstrip("/"):
        raise ConfigError(
            f"the script's {name} go to {wanted}, and {option} is {given}", hint="Give one of them."
        )
    return given or wanted


def _destination(what: str, uri: str) -> str:
    if is_s3(uri):
        return uri
    if "://" in uri and not uri.startswith("file://"):
        raise ConfigError(
            f"{what}: SageMaker cannot write to {uri.partition('://')[0]}:// URIs", hint="s3://bucket/prefix"
        )
    return local_path(uri).uri


#: Accounts of the images with Debugger's own rules: developer guide, "Use Debugger Docker images for
#: built-in or custom rules".
_RULE_ACCOUNTS = {
    "af-south-1": "314341159256",
    "ap-east-1": "199566480951",
    "ap-northeast-1": "430734990657",
    "ap-northeast-2": "578805364391",
    "ap-northeast-3": "479947661362",
    "ap-south-1": "904829902805",
    "ap-southeast-1": "972752614525",
    "ap-southeast-2": "184798709955",
    "ca-central-1": "519511493484",
    "cn-north-1": "618459771430",
    "cn-northwest-1": "658757709296",
    "eu-central-1": "482524230118",
    "eu-north-1": "314864569078",
    "eu-south-1": "563282790590",
    "eu-west-1": "929884845733",
    "eu-west-2": "250201462417",
    "eu-west-3": "447278800020",
    "me-south-1": "986000313247",
    "sa-east-1": "818342061345",
    "us-east-1": "503895931360",
    "us-east-2": "915447279597",
    "us-gov-west-1": "515509971035",
    "us-west-1": "685455198987",
    "us-west-2": "895741380848",
}


def _rules(opts: AWSSageMakerOpts, option: str, region: str) -> list[dict[str, Any]]:
    """Return ``debugger_rules`` or ``profiler_rules``; those without an image are built-in rules."""
    rules = as_objects(opts, option)
    for rule in rules:
        if "RuleEvaluatorImage" in rule:
            continue
        account = _RULE_ACCOUNTS.get(region)
        if account is None:
            raise InvalidRunConfigException(
                f"{option}: a rule has no RuleEvaluatorImage, and no image of built-in rules is known "
                f"for {region}",
                option,
            )
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        rule["RuleEvaluatorImage"] = f"{account}.dkr.ecr.{region}.{domain}/sagemaker-debugger-rules:latest"
        given = rule.get("RuleParameters", {})
        if isinstance(given, dict):
            rule["RuleParameters"] = {"rule_to_invoke": rule.get("RuleConfigurationName"), **given}
    return rules


def settle(request: Mapping[str, Any], replacements: Mapping[str, str]) -> dict[str, Any]:
    """Return a request in which texts are replaced wherever they occur, in the order of the mapping."""
    return {key: _replaced(value, replacements) for key, value in request.items()}


def _replaced(value: Any, replacements: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for old, new in replacements.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, dict):
        return {key: _replaced(item, replacements) for key, item in value.items()}
    return [_replaced(item, replacements) for item in value] if isinstance(value, list) else value


# ---- checks against the services' own models


def check_requests(job: AWSSageMakerJob) -> None:
    """Check all requests of a job, settled or not, against the services' own models."""
    problems = []
    if job.submission:
        submission = {**job.submission, "serviceRequestPayload": "{}"}
        problems = _problems_in_options("batch", "SubmitServiceJob", submission, ("batch_member",))
    check_request(job.job_def, problems)


def check_request(request: Mapping[str, Any], others: Sequence[str] = ()) -> None:
    """Check a request, settled or not, against the service's own model."""
    example = settle(
        request, {names.ACCOUNT: "000000000000", names.CONTENT: "content", "file:///": "s3://local/"}
    )
    own = _problems_in_options("sagemaker", "CreateTrainingJob", example, ("member", "made_into"))
    refuse("SageMaker would refuse the job", [redact_text(problem) for problem in [*others, *own]])


def _problems_in_options(
    service: str, operation: str, request: dict[str, Any], keys: Sequence[str]
) -> list[str]:
    """Return what the service's model finds wrong, with the option that each member comes from."""
    options = {path: name for key in keys for name, path in declared(key).items()}
    options["VpcConfig"] = OPTION_OF_MEMBER["VpcConfig"]
    longest_first = sorted(options, key=len, reverse=True)
    member = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b")

    def with_option(problem: str) -> str:
        path = member.search(problem)
        return f"{options[path[0]]}: {problem}" if path else problem

    return [with_option(problem) for problem in problems_of(service, operation, request)]

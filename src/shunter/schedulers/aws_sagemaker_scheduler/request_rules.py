"""Rules between the members of a CreateTrainingJob request, which the service's model does not contain.

AWS documents each of them; a comment says where. They hold for requests that are made from options, with the
options' names in the messages, and for requests to this machine's endpoint, with the service's names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from shunter.schedulers.aws import s3
from shunter.schedulers.aws_sagemaker_scheduler.channels import MODEL_CONTENT_TYPE

DAY = 24 * 60 * 60
#: API reference, StoppingCondition: the maximum value of MaxRuntimeInSeconds is 28 days.
LONGEST_RUN = 28 * DAY
DEFAULT_RUN = DAY
AUGMENTED = "AugmentedManifestFile"
#: API reference, ProfilerConfig: the possible intervals, in milliseconds.
INTERVALS = (100, 200, 500, 1000, 5000, 60000)
#: Families of instances with their own disks, beside those with a "d" in the name: the SageMaker SDK's
#: list of where no volume is attached (``volume_size_supported``).
_OWN_DISKS = ("g5", "g6", "p5", "trn1")

Names = Callable[[str], str]


def _as_it_is(member: str) -> str:
    return member


def problems_of(request: Mapping[str, Any], name: Names = _as_it_is, *, is_local: bool = False) -> list[str]:
    """Return which rules a request breaks, in words. The request must be valid by the service's model.

    Args:
        request: the request.
        name: returns what messages call a member.
        is_local: whether the job runs on this machine, whose directories need no VPC to be reached.
    """
    return [
        *_time(request, name),
        *_instances(request, name),
        *_preferences(request, name),
        *_placement(request, name),
        *_debugger(request, name),
        *_channels(request, name, is_local=is_local),
        *_results(request, name),
        *_registry(request, name),
        *_tags(request),
    ]


def _time(request: Mapping[str, Any], name: Names) -> Iterator[str]:
    condition = request.get("StoppingCondition") or {}
    longest, wait = condition.get("MaxRuntimeInSeconds", DEFAULT_RUN), condition.get("MaxWaitTimeInSeconds")
    if longest > LONGEST_RUN:
        yield f"{name('MaxRuntimeInSeconds')} is {longest}, more than 28 days ({LONGEST_RUN})"
    # API reference, StoppingCondition: it must be equal to or greater than MaxRuntimeInSeconds
    if wait is not None and wait < longest:
        yield f"{name('MaxWaitTimeInSeconds')} is {wait}, less than {name('MaxRuntimeInSeconds')}, {longest}"


def _instances(request: Mapping[str, Any], name: Names) -> Iterator[str]:
    resources = request.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or []
    if resources.get("KeepAlivePeriodInSeconds"):
        # developer guide, "SageMaker AI Managed Warm Pools", considerations
        warm = name("KeepAlivePeriodInSeconds")
        if groups:
            yield f"{warm} cannot keep instance groups: a warm pool is of one type"
        if request.get("EnableManagedSpotTraining"):
            yield f"{warm} cannot keep spot instances: a warm pool needs on-demand ones"
    preferences = resources.get("InstancePreferences") or []
    types = [each.get("InstanceType", "") for each in groups or preferences]
    types = types or [resources.get("InstanceType", "")]
    # API reference, ResourceConfig: you can't request it with an instance type with local storage
    if resources.get("VolumeKmsKeyId") and all(map(has_own_disks, types)):
        yield (
            f"{name('VolumeKmsKeyId')} is given, but {', '.join(dict.fromkeys(types))} has its own disks, "
            "which the instance encrypts itself: there is no volume to encrypt; leave it out"
        )


def _preferences(request: Mapping[str, Any], name: Names) -> Iterator[str]:
    """Check ``InstancePreferences``: API reference, ResourceConfig and InstancePreference."""
    resources = request.get("ResourceConfig") or {}
    given, option = resources.get("InstancePreferences"), name("InstancePreferences")
    if given is None:
        return
    others = [other for other in ("InstanceType", "InstanceGroups") if resources.get(other)]
    others += ["InstancePlacementConfig"] if resources.get("InstancePlacementConfig") is not None else []
    others += ["EnableManagedSpotTraining"] if request.get("EnableManagedSpotTraining") else []
    for other in others:
        yield f"{option} and {name(other)} are mutually exclusive"
    for kind in twice(each.get("InstanceType") for each in given):
        yield f"{option} has {kind} twice"
    counts = _counts(given)
    total = resources.get("InstanceCount")
    if counts and len(counts) < len(given):
        yield f"{option}: some have an InstanceCount and some do not; give it to all, or to none"
    elif counts and total is not None:
        yield f"{option} have an InstanceCount each, so {name('InstanceCount')} cannot be given too"
    elif not counts and total is None:
        yield f"{option} have no InstanceCount, and {name('InstanceCount')} is not given"
    if any(count < 1 for count in [*counts, *([] if total is None else [total])]):
        yield f"{option}: an InstanceCount is less than 1"
    if resources.get("TrainingPlanArn") and any("TrainingPlanArns" in each for each in given):
        yield f"{option} have TrainingPlanArns, so {name('TrainingPlanArn')} cannot be given too"


def _placement(request: Mapping[str, Any], name: Names) -> Iterator[str]:
    """Check ``InstancePlacementConfig``: API reference, PlacementSpecification."""
    resources = request.get("ResourceConfig") or {}
    config, option = resources.get("InstancePlacementConfig") or {}, name("InstancePlacementConfig")
    counts = _counts(config.get("PlacementSpecifications") or [])
    total = resources.get("InstanceCount")
    if any(count < 1 for count in counts):
        yield f"{option}: an InstanceCount is less than 1"
    if total is not None and sum(counts) > total:
        yield f"{option} places {sum(counts)} instances, and the job has {total}"


def _debugger(request: Mapping[str, Any], name: Names) -> Iterator[str]:
    profiler = request.get("ProfilerConfig") or {}
    interval = profiler.get("ProfilingIntervalInMilliseconds")
    if interval is not None and interval not in INTERVALS:
        known = ", ".join(map(str, INTERVALS))
        yield f"{name('ProfilerConfig')}: the interval must be one of {known} ms, not {interval}"
    if profiler.get("DisableProfiler") and request.get("ProfilerRuleConfigurations"):
        yield f"{name('ProfilerRuleConfigurations')} are given, but the profiler is turned off"
    # API reference, DebugRuleConfiguration: it must be unique relative to other rule configuration names
    kinds = ("DebugRuleConfigurations", "ProfilerRuleConfigurations")
    rules = (rule.get("RuleConfigurationName") for kind in kinds for rule in request.get(kind) or [])
    for rule in twice(rules):
        yield f"{' and '.join(map(name, kinds))}: two rules are named {rule!r}"
    # API reference, CollectionConfiguration: likewise
    collections = (request.get("DebugHookConfig") or {}).get("CollectionConfigurations") or []
    for title in twice(each.get("CollectionName") for each in collections):
        yield f"{name('DebugHookConfig')}: two collections are named {title!r}"


def _counts(items: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the counts of instances that are numbers."""
    return [count for each in items if isinstance(count := each.get("InstanceCount"), int)]


def twice(values: Iterable[Any]) -> list[Any]:
    """Return the texts and numbers that occur more than once."""
    known = [value for value in values if isinstance(value, (str, int, float))]
    return sorted({value for value in known if known.count(value) > 1}, key=str)


def has_own_disks(instance_type: str) -> bool:
    """Tell whether instances of a type have local storage instead of a volume."""
    family = instance_type.removeprefix("ml.").partition(".")[0]
    return "d" in family or family.startswith(_OWN_DISKS)


def _channels(request: Mapping[str, Any], name: Names, *, is_local: bool) -> Iterator[str]:
    default = request["AlgorithmSpecification"].get("TrainingInputMode", "File")
    channels = request.get("InputDataConfig") or []
    for channel in channels:
        mode = channel.get("InputMode") or default
        source = channel["DataSource"]
        if channel["ChannelName"] in (".", ".."):  # the model's pattern lets it pass
            yield f"a channel cannot be named {channel['ChannelName']!r}: its name becomes a directory"
        needs_vpc = "FileSystemDataSource" in source and not request.get("VpcConfig") and not is_local
        # developer guide, "Give SageMaker training jobs access to resources in your VPC"
        no_vpc = [f"is a file system, which needs {name('VpcConfig')}"] if needs_vpc else []
        for problem in [*no_vpc, *_source(source, mode, is_local=is_local), *_form(channel, mode, name)]:
            yield f"the channel {channel['ChannelName']!r} {problem}"
    yield from _assignments(request, channels, name)


def _source(source: Mapping[str, Any], mode: str, *, is_local: bool) -> Iterator[str]:
    """Check the kind of a channel's data, and whether its input mode supports that kind."""
    # developer guide, "Setting up training jobs to access datasets": Pipe and FastFile stream from S3
    if "FileSystemDataSource" in source and mode != "File":
        yield f"is a file system, which needs the input mode File, not {mode}"
    objects = source.get("S3DataSource", {})
    kind, attributes = objects.get("S3DataType"), objects.get("AttributeNames")
    # developer guide, "Access Training Data": FastFile reads no augmented manifests. The API reference,
    # S3DataSource, takes them with Pipe alone, and so does this machine; the guide takes them with File too
    if kind == AUGMENTED and (mode == "FastFile" or (is_local and mode != "Pipe")):
        yield f"is an augmented manifest, which the input mode {mode} cannot read; only Pipe can"
    if kind == AUGMENTED and not attributes:
        yield "is an augmented manifest, and has no AttributeNames"
    if attributes and kind != AUGMENTED:
        yield f"has AttributeNames, which are for an {AUGMENTED}"
    if kind == "ManifestFile" and mode == "FastFile":
        yield "is a manifest, which the input mode FastFile cannot read; it reads an S3Prefix"


def _form(channel: Mapping[str, Any], mode: str, name: Names) -> Iterator[str]:
    """Check the format of a channel's data: compression, record wrapper and content type."""
    # API reference, Channel: the following two are for streams, the third for files
    compression = channel.get("CompressionType", "None")
    if compression != "None" and mode != "Pipe":
        yield f"has {name('CompressionType')} {compression}, which is for the input mode Pipe, not {mode}"
    wrapper = channel.get("RecordWrapperType", "None")
    if wrapper != "None" and mode == "File":
        yield f"has {name('RecordWrapperType')} {wrapper}, which is not for the input mode File"
    if channel.get("ContentType") == MODEL_CONTENT_TYPE and mode != "File":
        yield f"is a model by its {name('ContentType')}, which needs the input mode File, not {mode}"


def _assignments(request: Mapping[str, Any], channels: list[Mapping[str, Any]], name: Names) -> Iterator[str]:
    """Check which instance groups channels are for."""
    groups = (request.get("ResourceConfig") or {}).get("InstanceGroups") or []
    known = [group["InstanceGroupName"] for group in groups]
    assigned: dict[bool, list[str]] = {True: [], False: []}
    for channel in channels:
        source = channel["DataSource"].get("S3DataSource")
        if source is None:
            continue
        wanted = source.get("InstanceGroupNames") or []
        assigned[bool(wanted)].append(channel["ChannelName"])
        for group in wanted:
            if group not in known:
                said = f"known: {', '.join(known)}" if known else "the job has no instance groups"
                yield (
                    f"the channel {channel['ChannelName']!r} has {name('InstanceGroupNames')} {group!r}, "
                    f"which is not a group; {said}"
                )
    # the service's answer: "Some channels have assigned instance groups: [...] while others not: [...]"
    if assigned[True] and assigned[False]:
        yield (
            f"some channels have {name('InstanceGroupNames')} ({', '.join(assigned[True])}) and others "
            f"have not ({', '.join(assigned[False])}): give them to all, or to none"
        )


def _results(request: Mapping[str, Any], name: Names) -> Iterator[str]:
    output = request["OutputDataConfig"]
    # API reference, OutputDataConfig: KMS keys are not supported for S3 Express One Zone
    if output.get("KmsKeyId") and s3.is_directory_bucket(output["S3OutputPath"]):
        yield (
            f"{name('KmsKeyId')} is given, but {name('S3OutputPath')} {output['S3OutputPath']} is in a "
            "directory bucket (S3 Express One Zone), where results cannot have a KMS key"
        )
    path = (request.get("CheckpointConfig") or {}).get("LocalPath")
    if path is not None:
        yield from _checkpoint_path(path, name("LocalPath"))
    for member in ("DebugHookConfig", "TensorBoardOutputConfig"):
        path = (request.get(member) or {}).get("LocalPath")
        if path is not None and ".." in path.split("/"):
            yield f"LocalPath of {member} must not contain '..', but it is {path!r}"


def _checkpoint_path(path: str, name: str) -> Iterator[str]:
    """Check that checkpoints do not lie in or around what the platform puts into the container.

    Developer guide, "Mapping of training storage paths": /opt/ml/input is what the platform brings.
    """
    if not path.startswith("/"):
        yield f"{name} must be absolute, such as /opt/ml/checkpoints, not {path!r}"
        return
    if ".." in path.split("/"):
        yield f"{name} must not contain '..', but it is {path!r}"
        return
    bare = re.sub(r"/(\./|/)*", "/", path + "/").rstrip("/")
    if bare in ("", "/opt", "/opt/ml") or bare == "/opt/ml/input" or bare.startswith("/opt/ml/input/"):
        yield (
            f"{name} is {path}, where the platform puts the job's input; use another directory, such as "
            "/opt/ml/checkpoints"
        )


def _registry(request: Mapping[str, Any], name: Names) -> Iterator[str]:
    # developer guide, "Adapt your training job to access images in a private Docker registry"
    config = request["AlgorithmSpecification"].get("TrainingImageConfig") or {}
    mode = config.get("TrainingRepositoryAccessMode")
    if mode == "Vpc" and not request.get("VpcConfig"):
        yield f"{name('TrainingRepositoryAccessMode')} is Vpc, but no {name('VpcConfig')} are given"
    if mode != "Vpc" and config.get("TrainingRepositoryAuthConfig"):
        yield (
            f"{name('TrainingRepositoryCredentialsProviderArn')} is given, but "
            f"{name('TrainingRepositoryAccessMode')} is {mode or 'not'}: logins are for registries in a VPC "
            "(access mode Vpc)"
        )


def _tags(request: Mapping[str, Any]) -> Iterator[str]:
    keys = [tag["Key"] for tag in request.get("Tags") or []]
    # API reference, Tag: keys must be unique per resource
    for key in twice(keys):
        yield f"the tag {key!r} is given twice"
    # "Tagging AWS resources": keys that begin with aws: are reserved for AWS
    for key in sorted({key for key in keys if str(key).lower().startswith("aws:")}):
        yield f"the tag {key!r} begins with aws:, which is reserved for AWS"

"""Rules between the members of a CreateTrainingJob request that break the job rather than the call.

AWS documents each of them; a comment says where. They hold for requests that are made from options, with the
options' names in the messages, and for requests to this machine's endpoint, with the service's names. What
CreateTrainingJob refuses at once is not repeated here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from shunter.schedulers.aws_sagemaker_scheduler.channels import MODEL_CONTENT_TYPE

#: API reference, StoppingCondition: the default of MaxRuntimeInSeconds.
DEFAULT_RUN = 24 * 60 * 60
AUGMENTED = "AugmentedManifestFile"

Names = Callable[[str], str]


def _as_it_is(member: str) -> str:
    return member


def problems_of(request: Mapping[str, Any], name: Names = _as_it_is, *, is_local: bool = False) -> list[str]:
    """Return which rules a request breaks, in words. The request must be valid by the service's model.

    Args:
        request: the request.
        name: returns what messages call a member.
        is_local: whether the job runs on this machine, where only Pipe reads augmented manifests.
    """
    return [*_time(request, name), *_channels(request, name, is_local=is_local), *_checkpoints(request, name)]


def _time(request: Mapping[str, Any], name: Names) -> Iterator[str]:
    condition = request.get("StoppingCondition") or {}
    longest, wait = condition.get("MaxRuntimeInSeconds", DEFAULT_RUN), condition.get("MaxWaitTimeInSeconds")
    # API reference, StoppingCondition: it must be equal to or greater than MaxRuntimeInSeconds
    if wait is not None and wait < longest:
        yield f"{name('MaxWaitTimeInSeconds')} is {wait}, less than {name('MaxRuntimeInSeconds')}, {longest}"


def twice(values: Iterable[Any]) -> list[Any]:
    """Return the texts and numbers that occur more than once."""
    known = [value for value in values if isinstance(value, (str, int, float))]
    return sorted({value for value in known if known.count(value) > 1}, key=str)


def _channels(request: Mapping[str, Any], name: Names, *, is_local: bool) -> Iterator[str]:
    default = request["AlgorithmSpecification"].get("TrainingInputMode", "File")
    for channel in request.get("InputDataConfig") or []:
        mode = channel.get("InputMode") or default
        if channel["ChannelName"] in (".", ".."):  # the model's pattern lets it pass
            yield f"a channel cannot be named {channel['ChannelName']!r}: its name becomes a directory"
        problems = [*_source(channel["DataSource"], mode, is_local=is_local), *_form(channel, mode, name)]
        yield from (f"the channel {channel['ChannelName']!r} {problem}" for problem in problems)


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


def _checkpoints(request: Mapping[str, Any], name: Names) -> Iterator[str]:
    """Check that checkpoints do not lie in or around what the platform puts into the container.

    Developer guide, "Mapping of training storage paths": /opt/ml/input is what the platform brings.
    """
    path, option = (request.get("CheckpointConfig") or {}).get("LocalPath"), name("LocalPath")
    if path is None:
        return
    bare = re.sub(r"/(\./|/)*", "/", path + "/").rstrip("/")
    if not path.startswith("/"):
        yield f"{option} must be absolute, such as /opt/ml/checkpoints, not {path!r}"
    elif ".." in path.split("/"):
        yield f"{option} must not contain '..', but it is {path!r}"
    elif bare in ("", "/opt", "/opt/ml", "/opt/ml/input") or bare.startswith("/opt/ml/input/"):
        yield (
            f"{option} is {path}, where the platform puts the job's input; use another directory, such as "
            "/opt/ml/checkpoints"
        )

"""The documents in ``/opt/ml/input/config``, and the directories that the request's features write to.

`hyperparameters.json`, `inputdataconfig.json` and `resourceconfig.json` are documented:
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html. The
others are not; they look like those of a real job in the examples of
https://github.com/shiftan/simple_sagemaker (``examples/single_task/expected_output``). Which of them exist
depends on the request.

For two of them, all known examples are empty: `upstreamoutputdataconfig.json`, which is left empty,
and `metric-definition-regex.json`, in which the definitions are spelled as in the request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import (
    BASE,
    CHECKPOINTS,
    FLAGS,
    Host,
    channels_of,
    input_mode,
)

#: Of API_DebugHookConfig and API_TensorBoardOutputConfig in the service's reference.
TENSORS = "/opt/ml/output/tensors"
TENSORBOARD = "/opt/ml/output/tensorboard"
PROFILER = "/opt/ml/output/profiler"
METRICS = "/opt/ml/output/metrics/sagemaker"
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class Situation:
    """What the documents contain in addition to the request.

    Attributes:
        hosts: all hosts.
        current: the host that they are for.
        arn: of the job.
        attempt: which attempt at the job this is, from 1.
        base: what ``/opt/ml`` is called there.
        interface: name of the network interface by which the hosts reach each other.
        names: what each host is called by the others.
    """

    hosts: list[Host]
    current: Host
    arn: str
    attempt: int
    base: str
    interface: str
    names: dict[str, str]

    def path(self, path: str) -> str:
        """Translate a path in the container to the path on this host."""
        return self.base + path.removeprefix(BASE) if _is_below(path) else path


def documents(request: dict[str, Any], here: Situation) -> dict[str, Any]:
    """Return the documents by their names, without ``.json``."""
    found: dict[str, Any] = {
        "hyperparameters": request.get("HyperParameters") or {},
        "inputdataconfig": input_data_config(request, here.current),
        "resourceconfig": resource_config(here),
        "init-config": _init(request, here),
        "trainingjobconfig": _training_job(request, here.arn),
        "metric-definition-regex": request["AlgorithmSpecification"].get("MetricDefinitions") or [],
        "upstreamoutputdataconfig": [],
    }
    checkpoints = request.get("CheckpointConfig")
    if checkpoints:
        found["checkpointconfig"] = {"LocalPath": here.path(checkpoints.get("LocalPath") or CHECKPOINTS)}
    hook = request.get("DebugHookConfig")
    if hook:
        found["debughookconfig"] = {
            "S3OutputPath": hook["S3OutputPath"],
            "LocalPath": here.path(hook.get("LocalPath") or TENSORS),
            "HookParameters": hook.get("HookParameters"),
            "CollectionConfigurations": hook.get("CollectionConfigurations"),
        }
    board = request.get("TensorBoardOutputConfig")
    if board:
        path = here.path(board.get("LocalPath") or TENSORBOARD)
        found["tensorboardoutputconfig"] = {"S3OutputPath": board["S3OutputPath"], "LocalPath": path}
    if _is_profiled(request):
        found["profilerconfig"] = request["ProfilerConfig"]
    return found


def resource_config(here: Situation) -> dict[str, Any]:
    """Return ``resourceconfig.json`` of a host. Hosts are sorted as text: algo-10 comes before algo-2."""
    groups: dict[str, list[Host]] = {}
    for host in here.hosts:
        groups.setdefault(host.group, []).append(host)

    def called(hosts: list[Host]) -> list[str]:
        return [here.names[name] for name in sorted(host.name for host in hosts)]

    return {
        "current_host": here.names[here.current.name],
        "current_instance_type": here.current.instance_type,
        "current_group_name": here.current.group,
        "hosts": called(here.hosts),
        "instance_groups": [
            {
                "instance_group_name": name,
                "instance_type": members[0].instance_type,
                "hosts": called(members),
            }
            for name, members in groups.items()
        ],
        "network_interface_name": here.interface,
    }


def input_data_config(request: dict[str, Any], host: Host) -> dict[str, Any]:
    """Return ``inputdataconfig.json`` of a host. A channel in FastFile mode is called File there."""
    config = {}
    for channel in channels_of(request, host):
        source = channel["DataSource"].get("S3DataSource", {})
        entry = {
            "TrainingInputMode": "Pipe" if input_mode(request, channel) == "Pipe" else "File",
            "S3DistributionType": source.get("S3DataDistributionType", "FullyReplicated"),
            "RecordWrapperType": channel.get("RecordWrapperType", "None"),
        }
        if channel.get("ContentType"):
            entry["ContentType"] = channel["ContentType"]
        config[channel["ChannelName"]] = entry
    return config


def output_directories(request: dict[str, Any]) -> list[str]:
    """Return the directories below ``/opt/ml`` that exist for the request's features, relative to it."""
    paths = [METRICS]
    if request.get("DebugHookConfig"):
        paths.append(request["DebugHookConfig"].get("LocalPath") or TENSORS)
    if request.get("TensorBoardOutputConfig"):
        paths.append(request["TensorBoardOutputConfig"].get("LocalPath") or TENSORBOARD)
    if _is_profiled(request):
        paths.append(PROFILER)
    return [path.removeprefix(f"{BASE}/") for path in paths if _is_below(path)]


def _is_below(path: str) -> bool:
    return path.startswith(f"{BASE}/")


def _is_profiled(request: dict[str, Any]) -> bool:
    config = request.get("ProfilerConfig") or {"DisableProfiler": True}
    return not config.get("DisableProfiler")


def _init(request: dict[str, Any], here: Situation) -> dict[str, Any]:
    document: dict[str, Any] = {
        "inputMode": _upper(request["AlgorithmSpecification"]["TrainingInputMode"]),
        "channels": {
            channel["ChannelName"]: _init_channel(channel, input_mode(request, channel))
            for channel in channels_of(request, here.current)
        },
        "checkpointChannel": None,
        "hostConfig": {"clusterSize": len(here.hosts), "hostNumber": here.current.number + 1},
        "enableAdditionalPlatformLoggingForCustomer": False,
        "jobRunInfo": {"jobRunNumber": here.attempt},
    }
    checkpoints = request.get("CheckpointConfig")
    if checkpoints:
        source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": checkpoints["S3Uri"]}}
        document["checkpointChannel"] = {
            "name": "checkpoints",
            "channel": _init_channel({"DataSource": source}, "File", is_bare=True),
            "outputPath": here.path(CHECKPOINTS),
            "allowEmpty": True,
        }
    return document


def _init_channel(channel: dict[str, Any], mode: str, *, is_bare: bool = False) -> dict[str, Any]:
    sources = channel["DataSource"]
    objects, files = sources.get("S3DataSource"), sources.get("FileSystemDataSource")
    default = None if is_bare else "None"
    shuffle = channel.get("ShuffleConfig")
    distribution = None
    if objects is not None and not is_bare:
        distribution = _upper(objects.get("S3DataDistributionType", "FullyReplicated"))
    return {
        "s3DataSource": objects
        and {
            "s3DataType": _upper(objects["S3DataType"]),
            "s3Uri": objects["S3Uri"],
            "s3DataDistributionType": distribution,
            "attributeNames": objects.get("AttributeNames"),
        },
        "fileSystemDataSource": files and {_camel(name): value for name, value in files.items()},
        "compressionType": _upper(channel.get("CompressionType", default)),
        "recordWrapper": _upper(channel.get("RecordWrapperType", default)),
        "shuffleConfig": shuffle and {"seed": shuffle["Seed"]},
        "inputMode": _upper(mode),
        "sharded": distribution == "SHARDED_BY_S3_KEY",
    }


def _training_job(request: dict[str, Any], arn: str) -> dict[str, Any]:
    """Return the request, in which some enumerations are spelled as programs of the service spell them."""
    document = {**dict.fromkeys(FLAGS, False), **request, "TrainingJobArn": arn}
    if "InputDataConfig" in request:
        document["InputDataConfig"] = list(map(_training_job_channel, request["InputDataConfig"]))
    return document


def _training_job_channel(channel: dict[str, Any]) -> dict[str, Any]:
    source = channel["DataSource"].get("S3DataSource")
    spelled = {name: _upper(channel.get(name, "None")) for name in ("CompressionType", "RecordWrapperType")}
    changed = {**channel, **spelled}
    if source is not None:
        kinds = ("S3DataType", "S3DataDistributionType")
        spelled = {name: _upper(source[name]) for name in kinds if name in source}
        changed["DataSource"] = {"S3DataSource": {**source, **spelled}}
    return changed


def _upper(word: str | None) -> str | None:
    """``ShardedByS3Key`` -> ``SHARDED_BY_S3_KEY``."""
    return None if word is None else _WORD.sub("_", word).upper()


def _camel(name: str) -> str:
    return name[:1].lower() + name[1:]

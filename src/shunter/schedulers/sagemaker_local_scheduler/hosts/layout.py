"""The hosts and groups that a request asks for, and the directories of one host below ``/opt/ml``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: What the service calls the only group of a job without groups.
ONLY_GROUP = "homogeneousCluster"
BASE = "/opt/ml"
CHECKPOINTS = "/opt/ml/checkpoints"
INTERFACE = "eth0"
#: Members of a request that are false if they are missing.
FLAGS = ("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining")


@dataclass(frozen=True)
class Host:
    """One host of a job.

    Attributes:
        name: ``algo-1``.
        number: position among all hosts, from 0.
        group: its group's name.
        index: position within its group, from 0.
        instance_type: such as ``ml.m5.large``.
    """

    name: str
    number: int
    group: str
    index: int
    instance_type: str


@dataclass(frozen=True)
class Shown:
    """A directory of this machine that a host sees as a channel.

    Attributes:
        path: the directory.
        is_fixed: whether the host may only read it.
    """

    path: str
    is_fixed: bool


def selected(config: dict[str, Any]) -> dict[str, Any]:
    """Return a ``ResourceConfig`` with type and count of its instances: of preferences the first."""
    preferences = config.get("InstancePreferences")
    if not preferences:
        return config
    return {"InstanceCount": config.get("InstanceCount", 1), **preferences[0]}


def count_of(request: dict[str, Any]) -> int:
    """Return how many hosts a request asks for."""
    count: int = sum(group["InstanceCount"] for group in _groups(request))
    return count


def hosts_of(request: dict[str, Any]) -> list[Host]:
    """Return the hosts that a request asks for, numbered through all groups in their order."""
    places = [(group, index) for group in _groups(request) for index in range(group["InstanceCount"])]
    return [
        Host(f"algo-{number + 1}", number, group["InstanceGroupName"], index, group["InstanceType"])
        for number, (group, index) in enumerate(places)
    ]


def _groups(request: dict[str, Any]) -> list[dict[str, Any]]:
    config = selected(request["ResourceConfig"])
    return config.get("InstanceGroups") or [
        {
            "InstanceGroupName": ONLY_GROUP,
            "InstanceType": config.get("InstanceType", ""),
            "InstanceCount": config.get("InstanceCount", 1),
        }
    ]


def input_mode(request: dict[str, Any], channel: dict[str, Any]) -> str:
    """Return how a channel's data come: File, FastFile or Pipe."""
    return str(channel.get("InputMode") or request["AlgorithmSpecification"]["TrainingInputMode"])


def channels_of(request: dict[str, Any], host: Host) -> list[dict[str, Any]]:
    """Return the channels that a host gets: all but those that are for other groups."""
    found = []
    for channel in request.get("InputDataConfig") or ():
        names = channel["DataSource"].get("S3DataSource", {}).get("InstanceGroupNames") or [host.group]
        if host.group in names:
            found.append(channel)
    return found


class Tree:
    """The files of one host.

    Args:
        path: its directory, which stands for ``/opt/ml``.
        config: directory of the configuration files, which may hold secrets; in memory.
        base: what ``path`` is called where the program runs.
        interface: name of the network interface by which the hosts reach each other.
    """

    def __init__(self, path: str, config: str, base: str = BASE, interface: str = INTERFACE) -> None:
        self.path = path
        self.config = config
        self.base = base
        self.interface = interface

    def part(self, *names: str) -> str:
        """Return the path of one of its directories or files."""
        return os.path.join(self.path, *names)

    def make(self, directories: Iterable[str], documents: dict[str, Any]) -> None:
        """Make the directories, and write the documents of ``input/config``."""
        for name in ("input/data", "model", "output/data", *directories):
            os.makedirs(self.part(name), exist_ok=True)
        os.makedirs(self.config, exist_ok=True)
        link = self.part("input", "config")
        if not os.path.lexists(link):
            os.symlink(self.config, link)
        for name, document in documents.items():
            with open(os.path.join(self.config, f"{name}.json"), "w", encoding="utf-8") as file:
                json.dump(document, file)


def command_of(request: dict[str, Any]) -> tuple[list[str] | None, list[str]]:
    """Return entry point and arguments of the container; None for the image's own entry point."""
    algorithm = request["AlgorithmSpecification"]
    entrypoint = algorithm.get("ContainerEntrypoint")
    arguments = algorithm.get("ContainerArguments")
    if entrypoint:
        return list(entrypoint), list(arguments or ())
    return None, list(arguments or ["train"])


def checkpoint_path(request: dict[str, Any]) -> str:
    """Return where checkpoints lie in the container; "" without a checkpoint configuration."""
    config = request.get("CheckpointConfig")
    return (config.get("LocalPath") or CHECKPOINTS) if config else ""

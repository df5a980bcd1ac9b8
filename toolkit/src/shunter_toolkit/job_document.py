"""The job document: one JSON object from which the toolkit prepares the base directory off SageMaker.

``docs/contract.md`` has the schema. Every key is checked; an unknown one is an error.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import signal
from typing import Any

from . import channels, code_download, earlier_checkpoints, input_config, kernel, log, metrics
from .errors import ConfigError, StoreError
from .layout import Layout
from .script_launch import MPI_PROCESSES_PARAMETER, TORCHRUN_PROCESSES_PARAMETER
from .store import Place

_NUMBER = (int, float)
_KEYS: dict[str, tuple[type, ...]] = {
    "version": (int,),
    "name": (str,),
    "program": (str,),
    "code": (str,),
    "arguments": (list,),
    "hyperparameters": (dict,),
    "channels": (dict,),
    "hosts": (list,),
    "host_count": (int,),
    "current_host": (str,),
    "instance_type": (str,),
    "instance_groups": (list,),
    "network_interface": (str,),
    "distribution": (dict,),
    "output": (dict,),
    "checkpoints": (dict,),
    "metrics": (list,),
    "timeout_seconds": _NUMBER,
    "grace_seconds": _NUMBER,
    "stop_hook": (list,),
}
_CHANNEL_KEYS: dict[str, tuple[type, ...]] = dict.fromkeys(
    ("uri", "mode", "distribution", "content_type"), (str,)
)
_DISTRIBUTION_KEYS: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "processes_per_host": (int,),
    "mpi_options": (str,),
    "instance_groups": (list,),
}
_OUTPUT_KEYS: dict[str, tuple[type, ...]] = {"uri": (str,), "compression": (str,), "log": (bool,)}
_CHECKPOINT_KEYS: dict[str, tuple[type, ...]] = {"uri": (str,), "path": (str,), "earlier": (dict,)}
_EARLIER_KEYS: dict[str, tuple[type, ...]] = {"uri": (str,), "files": (int,)}
# A host name is resolved, and also names a folder of results.
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")
_FLAGS = {"mpi": "sagemaker_mpi_enabled", "torchrun": "sagemaker_torch_distributed_enabled"}


def load(source: str) -> Job:
    """Read a job document from its text (it starts with ``{``) or from the file that ``source`` names.

    Raises:
        ConfigError: it cannot be read, is not JSON, or has an unknown key or a wrong value.
    """
    if source.lstrip().startswith("{"):
        return Job(input_config.parse_object(source, "Cannot read the job document in SHUNTER_JOB"))
    return Job(input_config.read_object(source, "the job document"))


class Job:
    """A checked job document."""

    def __init__(self, document: dict[str, Any]) -> None:
        _check(document, _KEYS, "The job document")
        if document.get("version", 1) != 1:
            raise ConfigError(
                f"The job document has version {document['version']}; this toolkit reads version 1."
            )
        self.document = document
        self.name: str = document.get("name") or os.environ.get("TRAINING_JOB_NAME") or "job"
        self.hyperparameters: dict[str, Any] = document.get("hyperparameters", {})
        self.arguments = _strings(document, "arguments")
        self.stop_hook = _strings(document, "stop_hook")
        self.timeout_seconds: float | None = document.get("timeout_seconds")
        self.grace_seconds: float | None = document.get("grace_seconds")
        self.channels = [_channel(name, entry) for name, entry in document.get("channels", {}).items()]
        self.metrics = metrics.parse_definitions(document.get("metrics", []))
        self.output = _section(document, "output", _OUTPUT_KEYS)
        self.checkpoints = _section(document, "checkpoints", _CHECKPOINT_KEYS)
        self.distribution = _section(document, "distribution", _DISTRIBUTION_KEYS)
        if self.output.get("compression", "gzip") not in ("gzip", "none"):
            raise ConfigError(
                f'output.compression must be "gzip" or "none", not {self.output["compression"]!r}.'
            )
        if self.distribution.get("kind", "none") not in ("none", *_FLAGS):
            raise ConfigError(
                f"distribution.kind must be none, torchrun or mpi, not {self.distribution['kind']!r}."
            )
        for replica, earlier in self.checkpoints.get("earlier", {}).items():
            _check(earlier, _EARLIER_KEYS, f"checkpoints.earlier.{replica} in the job document")
        path = self.checkpoints.get("path", "")
        if path and (not os.path.isabs(path) or ".." in path.split("/")):
            raise ConfigError(f"checkpoints.path must be an absolute path without '..', not {path!r}.")
        if "/" in self.name or self.name in (".", ".."):
            raise ConfigError(f"The job's name is part of a path, so it cannot be {self.name!r}.")
        code: str = document.get("code", "").replace("file://", "", 1)
        self.code_folder = os.path.abspath(code) if code and os.path.isdir(code) else ""
        self.hosts = self._hosts()
        for host in self.hosts:
            if not _HOST_NAME.match(host):
                raise ConfigError(f"A host cannot be named {host!r}: use letters, digits, '-' and '.'.")
        self.current_host = self._current_host()
        #: By name, the addresses that the script gets in place of the hosts' names.
        self.addresses: dict[str, str] = {}

    def _hosts(self) -> list[str]:
        hosts = _strings(self.document, "hosts")
        if hosts:
            return hosts
        groups = self.document.get("instance_groups", [])
        return [h for group in groups for h in group.get("hosts", [])] or [
            f"algo-{i + 1}" for i in range(self.document.get("host_count", 1))
        ]

    def _current_host(self) -> str:
        """Which host this is: as given, by the replica's number, by the machine's name, or the only one."""
        said = self.document.get("current_host") or os.environ.get("SHUNTER_CURRENT_HOST")
        index = os.environ.get("TORCHX_REPLICA_IDX", "")
        name = os.uname().nodename
        if said in self.hosts:
            return str(said)
        if said is None and index.isdigit() and int(index) < len(self.hosts):
            return self.hosts[int(index)]
        if said is None and name in self.hosts:
            return name
        if said is None and len(self.hosts) == 1:
            return self.hosts[0]
        raise ConfigError(
            f"Cannot tell which host this is ({said or name!r}) among {', '.join(self.hosts)}. "
            "Set current_host in the job document, SHUNTER_CURRENT_HOST or TORCHX_REPLICA_IDX."
        )

    @property
    def host_index(self) -> int:
        """This host's place among the job's hosts, from 0."""
        return self.hosts.index(self.current_host)

    def prepare(self, layout: Layout) -> None:
        """Write the configuration files, put code and channels in place and restore checkpoints.

        Raises:
            ConfigError: there is nothing at the URI of a channel.
            StoreError: a store refused.
            OSError: the base directory cannot be written.
        """
        os.makedirs(layout.config, exist_ok=True)
        if self.document.get("program"):  # it wins over the variables of the image or the user's shell
            os.environ.pop("SAGEMAKER_PROGRAM", None)
            os.environ.pop("SAGEMAKER_TRAINING_MODULE", None)
        if self.code_folder:
            layout.code = code_download.link_folder(self.code_folder, layout.code)
        _write(
            layout.hyperparameters, {name: json.dumps(value) for name, value in self._parameters().items()}
        )
        _write(layout.input_data_config, {channel.name: channel.config() for channel in self.channels})
        _write(layout.resource_config, self._resource_config())
        _write(layout.checkpoint_config, {"LocalPath": self.checkpoint_dir(layout)})
        for channel in self.channels:
            channel.prepare(layout.channel(channel.name), self.host_index, len(self.hosts))
        os.makedirs(self.checkpoint_dir(layout), exist_ok=True)
        if self.checkpoints.get("uri"):
            place = Place.of(self.checkpoints["uri"])
            count = channels.restore(place, self.checkpoint_dir(layout))
            log.info(f"Checkpoints: {count} files restored from {self.checkpoints['uri']}")
        replica = os.environ.get("TORCHX_REPLICA_IDX", str(self.host_index))
        earlier = self.checkpoints.get("earlier", {}).get(replica)
        if earlier:
            earlier_checkpoints.bring(earlier, self.checkpoint_dir(layout))

    @property
    def log_level(self) -> object:
        """The level that the job sets for the toolkit's own messages; None by default."""
        asked = self.hyperparameters.get("sagemaker_container_log_level")
        return asked or os.environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL") or None

    def local_targets(self) -> list[str]:
        """The targets of results and checkpoints that are local folders."""
        uris = [section["uri"] for section in (self.output, self.checkpoints) if section.get("uri")]
        if not uris:
            return []
        folders = []
        for uri in uris:
            with contextlib.suppress(StoreError):  # the job's failure, and reported as that
                place = Place.of(uri)
                folders += [] if place.bucket else [place.key]
        return folders

    def checkpoint_dir(self, layout: Layout) -> str:
        """The directory of this host's checkpoints."""
        path: str = self.checkpoints.get("path", "")
        return layout.place_of(path) if path else layout.checkpoints

    def _parameters(self) -> dict[str, Any]:
        """The user's hyperparameters, and the reserved ones that stand for the document's other keys."""
        kind = self.distribution.get("kind", "none")
        reserved = {
            "sagemaker_program": self.document.get("program"),
            "sagemaker_submit_directory": self.code_folder or self.document.get("code"),
            "sagemaker_job_name": self.name,
            "sagemaker_mpi_custom_mpi_options": self.distribution.get("mpi_options"),
            "sagemaker_distribution_instance_groups": self.distribution.get("instance_groups"),
        }
        if kind in _FLAGS:
            reserved[_FLAGS[kind]] = True
            name = MPI_PROCESSES_PARAMETER if kind == "mpi" else TORCHRUN_PROCESSES_PARAMETER
            reserved[name] = self.distribution.get("processes_per_host")
        return {**self.hyperparameters, **{n: value for n, value in reserved.items() if value is not None}}

    def _resource_config(self) -> dict[str, Any]:
        document = self.document
        has_order = "hosts" in document or "host_count" in document
        resource: dict[str, Any] = {
            "current_host": self._called(self.current_host),
            "hosts": [self._called(host) for host in (self.hosts if has_order else sorted(self.hosts))],
            "network_interface_name": document.get("network_interface") or kernel.network_interface(),
        }
        if "instance_type" in document:
            resource["current_instance_type"] = document["instance_type"]
        groups = document.get("instance_groups")
        if groups:
            resource["instance_groups"] = [
                {**group, "hosts": [self._called(host) for host in group.get("hosts", [])]}
                for group in groups
            ]
            own = [g for g in groups if self.current_host in g.get("hosts", [])]
            if own:
                resource["current_group_name"] = own[0].get("instance_group_name")
                resource["current_instance_type"] = own[0].get("instance_type", "local")
        return resource

    def _called(self, host: str) -> str:
        """The name or address by which the script knows a host."""
        return self.addresses.get(host, host)

    def start_stop_hook(self, pid: int) -> int | None:
        """Run the stop hook, if there is one, beside the script that is being stopped; return the hook's pid.

        The script's pid is in its SHUNTER_SCRIPT_PID.
        """
        if not self.stop_hook:
            return None
        env = {**os.environ, "SHUNTER_SCRIPT_PID": str(pid)}
        try:
            return os.posix_spawnp(self.stop_hook[0], self.stop_hook, env, setsigdef=[signal.SIGPIPE])
        except OSError as error:
            log.warning(f"Cannot run the stop hook {self.stop_hook[0]}: {error.strerror}")
            return None


def _channel(name: str, entry: Any) -> channels.Channel:
    if isinstance(entry, str):
        return channels.Channel(name, entry)
    if not isinstance(entry, dict) or "uri" not in entry:
        raise ConfigError(f'Channel {name!r}: give a URI, or an object with a "uri", not {entry!r}.')
    _check(entry, _CHANNEL_KEYS, f"Channel {name!r}")
    return channels.Channel(name, **entry)


def _section(document: dict[str, Any], name: str, keys: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    section: dict[str, Any] = document.get(name, {})
    _check(section, keys, f"{name!r} in the job document")
    return section


def _strings(document: dict[str, Any], name: str) -> list[str]:
    value = document.get(name, [])
    if all(isinstance(item, str) for item in value):
        return list(value)
    raise ConfigError(f"{name!r} in the job document must be a list of strings, not {value!r}.")


def _check(document: dict[str, Any], keys: dict[str, tuple[type, ...]], what: str) -> None:
    for name, value in document.items():
        if name not in keys:
            close = difflib.get_close_matches(name, keys, 1)
            hint = f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(keys)}."
            raise ConfigError(f"{what} has the unknown key {name!r}.{hint}")
        is_wrong_bool = isinstance(value, bool) and bool not in keys[name]  # True is an int, too
        if is_wrong_bool or not isinstance(value, keys[name]):
            wanted = " or ".join(kind.__name__ for kind in keys[name])
            raise ConfigError(f"{what}: {name!r} must be {wanted}, not {value!r}.")


def _write(path: str, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)

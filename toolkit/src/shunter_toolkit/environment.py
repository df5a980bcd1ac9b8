"""The job as one object: what the platform wrote, decoded, and the ``SM_*`` variables made of it."""

from __future__ import annotations

import os
import shutil
from typing import Any

from . import input_config, mapping, resources
from .errors import ConfigError
from .layout import DEFAULT_BASE, Layout

HOMOGENEOUS_GROUP = "homogeneousCluster"
DEFAULT_INTERFACE = "eth0"
DEFAULT_LOG_LEVEL = 20

BASE_PATH_ENV = "SAGEMAKER_BASE_DIR"
SAGEMAKER_BASE_PATH = DEFAULT_BASE
HYPERPARAMETERS_FILE = "hyperparameters.json"
INPUT_DATA_CONFIG_FILE = "inputdataconfig.json"
RESOURCE_CONFIG_FILE = "resourceconfig.json"

# Module-level paths of the predecessors: `environment.model_dir` and others, see __getattr__.
_PATHS = {
    "base_dir": "base",
    "code_dir": "code",
    "model_dir": "model",
    "input_dir": "input",
    "input_data_dir": "data",
    "input_config_dir": "config",
    "output_dir": "output",
    "output_data_dir": "output_data",
    "output_intermediate_dir": "intermediate",
    "hyperparameters_file_dir": "hyperparameters",
    "input_data_config_file_dir": "input_data_config",
    "resource_config_file_dir": "resource_config",
    "_input_data_dir": "data",
}

#: Beginning of the names of channels that the launcher makes for itself.
LAUNCHER_CHANNELS = "shunter_"
# Flags among the framework parameters that ask for a distributed run.
DISTRIBUTION_FLAGS = (
    "sagemaker_mpi_enabled",
    "sagemaker_torch_distributed_enabled",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_parameter_server_enabled",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
)


class _Value(property):
    """A property that keeps what it is set to. Only such properties are read by ``env["name"]``."""

    def __init__(self) -> None:
        super().__init__()

    def __set_name__(self, owner: type, name: str) -> None:
        stored = f"_value_{name}"
        super().__init__(lambda obj: vars(obj)[stored], lambda obj, value: vars(obj).update({stored: value}))


def _value() -> Any:
    return _Value()


class Environment(mapping.MappingMixin):
    """Everything that a script can ask about its job; each public attribute is a property of the contract.

    Reads ``hyperparameters.json``, ``inputdataconfig.json`` and ``resourceconfig.json`` under the base
    directory, once. Any of the three can be given instead.

    Args:
        resource_config: the cluster, as in ``resourceconfig.json``.
        input_data_config: the channels, as in ``inputdataconfig.json``.
        hyperparameters: decoded hyperparameters, the reserved ``sagemaker_*`` ones included.
        layout: the paths; default: those of this process's base directory.

    Raises:
        ConfigError: a file is missing, is not JSON, or has the wrong shape.
    """

    additional_framework_parameters: dict[str, Any] = _value()
    channel_input_dirs: dict[str, str] = _value()
    current_host: str = _value()
    current_instance_group: str = _value()
    current_instance_group_hosts: list[str] = _value()
    current_instance_type: str = _value()
    distribution_hosts: list[str] = _value()
    distribution_instance_groups: list[str] = _value()
    framework_module: str | None = _value()
    hosts: list[str] = _value()
    hyperparameters: dict[str, Any] = _value()
    input_config_dir: str = _value()
    input_data_config: dict[str, Any] = _value()
    input_dir: str = _value()
    instance_groups: list[str] = _value()
    instance_groups_dict: dict[str, dict[str, Any]] = _value()
    is_hetero: bool = _value()
    is_master: bool = _value()
    is_modelparallel_enabled: str | None = _value()
    is_smddpmprun_installed: bool = _value()
    is_smddprun_installed: bool = _value()
    job_name: str | None = _value()
    log_level: int = _value()
    master_hostname: str = _value()
    model_dir: str = _value()
    module_dir: str = _value()
    module_name: str | None = _value()
    network_interface_name: str = _value()
    num_cpus: int = _value()
    num_gpus: int = _value()
    num_neurons: int = _value()
    output_data_dir: str = _value()
    output_dir: str = _value()
    output_intermediate_dir: str = _value()
    resource_config: dict[str, Any] = _value()
    topology: Any = _value()
    user_entry_point: str | None = _value()

    def __init__(
        self,
        resource_config: dict[str, Any] | None = None,
        input_data_config: dict[str, Any] | None = None,
        hyperparameters: dict[str, Any] | None = None,
        layout: Layout | None = None,
    ) -> None:
        self._layout = layout or Layout()
        where = () if layout is None else (layout,)
        if hyperparameters is None:
            hyperparameters = read_hyperparameters(*where)
        self.input_data_config = input_data_config or read_input_data_config(*where)
        self.resource_config = resource_config or read_resource_config(*where)
        user, core, framework = input_config.split_hyperparameters(hyperparameters)
        self.hyperparameters = user
        self.additional_framework_parameters = framework
        self._core = core
        self._describe_paths()
        self._describe_program()
        self._describe_cluster()
        self._describe_machine()

    def _describe_paths(self) -> None:
        layout = self._layout
        self.model_dir = layout.model
        self._checkpoint_dir = read_checkpoint_dir(layout)
        self.input_dir = layout.input
        self.input_config_dir = layout.config
        self.output_dir = layout.output
        self.output_data_dir = layout.output_data
        self.output_intermediate_dir = layout.intermediate
        self.channel_input_dirs = {name: layout.channel(name) for name in self.input_data_config}

    def _describe_program(self) -> None:
        core = self._core
        environ = os.environ
        self.job_name = environ.get("TRAINING_JOB_NAME")
        self.framework_module = environ.get("SAGEMAKER_TRAINING_MODULE") or None
        name = environ.get("SAGEMAKER_PROGRAM") or core.get("sagemaker_program")
        self.user_entry_point = str(name) if name else None
        self.module_name = self._parse_module_name(self.user_entry_point)
        submitted = core.get("sagemaker_submit_directory") or environ.get("SAGEMAKER_SUBMIT_DIRECTORY")
        self.module_dir = str(submitted or self._layout.code)
        level = core.get("sagemaker_container_log_level") or environ.get("SAGEMAKER_CONTAINER_LOG_LEVEL")
        self.log_level = _log_level(level)

    @staticmethod
    def _parse_module_name(program: str | None) -> str | None:
        return program[:-3] if program and program.endswith(".py") else program

    def _describe_cluster(self) -> None:
        resource = self.resource_config
        groups = _instance_groups(resource)
        self.hosts = _list_of_names(resource.get("hosts", []), "hosts")
        self.current_host = _text(resource, "current_host")
        self.current_instance_type = str(resource.get("current_instance_type") or "local")
        self.current_instance_group = str(resource.get("current_group_name") or HOMOGENEOUS_GROUP)
        self.network_interface_name = str(resource.get("network_interface_name") or DEFAULT_INTERFACE)
        self.topology = resource.get("topology", [])
        self.instance_groups = list(groups)
        self.instance_groups_dict = groups
        self.is_hetero = len(groups) > 1
        self.current_instance_group_hosts = self._hosts_of(self.current_instance_group) if groups else []
        self.distribution_instance_groups = self._distribution_groups()
        self.distribution_hosts = self.get_distribution_hosts()
        self.master_hostname = self.get_master_hostname()
        self.is_master = self.current_host == self.master_hostname

    def _distribution_groups(self) -> list[str]:
        framework = self.additional_framework_parameters
        chosen = framework.get("sagemaker_distribution_instance_groups")
        if chosen:
            return [str(name) for name in chosen]
        asked = any(input_config.is_true(framework.get(flag)) for flag in DISTRIBUTION_FLAGS)
        return [self.current_instance_group] if asked else []

    def get_distribution_hosts(self) -> list[str]:
        """The hosts of the groups that the distribution runs on."""
        if not self.instance_groups_dict:
            return list(self.hosts)
        return [host for group in self.distribution_instance_groups for host in self._hosts_of(group)]

    def _hosts_of(self, group: str) -> list[str]:
        if group not in self.instance_groups_dict:
            known = ", ".join(self.instance_groups) or "none"
            raise ConfigError(
                f"Cannot lay out the cluster: instance group {group!r} is not in "
                f"resourceconfig.json (it has {known})."
            )
        return _list_of_names(self.instance_groups_dict[group].get("hosts", []), f"hosts of {group}")

    def _describe_machine(self) -> None:
        self.num_cpus = num_cpus()
        self.num_gpus = num_gpus()
        self.num_neurons = num_neurons(self.current_instance_type)
        self.is_modelparallel_enabled = os.environ.get("SM_HP_MP_PARAMETERS")
        self.is_smddpmprun_installed = validate_smddpmprun()
        self.is_smddprun_installed = validate_smddprun()

    def properties(self) -> list[str]:
        """The names of the contract's properties, sorted."""
        return sorted(n for c in type(self).__mro__ for n, v in vars(c).items() if isinstance(v, _Value))

    def get_master_hostname(self) -> str:
        """The first host of the distribution."""
        return (self.distribution_hosts or self.hosts or [self.current_host])[0]

    def get_current_instance_group(self) -> str:
        """The instance group of this host."""
        return self.current_instance_group

    def get_current_instance_group_hosts(self) -> list[str]:
        """The hosts of this host's group."""
        return self.current_instance_group_hosts

    def get_instance_groups(self) -> list[str]:
        """The names of all groups."""
        return self.instance_groups

    def get_instance_groups_dict(self) -> dict[str, dict[str, Any]]:
        """Group name -> its entry in ``resourceconfig.json``."""
        return self.instance_groups_dict

    def get_distribution_instance_groups_from_resource_config(self) -> list[str]:
        """The groups that the distribution runs on."""
        return self.distribution_instance_groups

    @property
    def layout(self) -> Layout:
        """The paths of this job."""
        return self._layout

    @property
    def is_main(self) -> bool:
        """The later name of ``is_master``."""
        return self.is_master

    def core_parameter(self, name: str) -> Any:
        """A hyperparameter that the toolkit keeps to itself, such as ``sagemaker_region``; None if absent."""
        return self._core.get(name)

    def sagemaker_s3_output(self) -> str | None:
        """Where the platform puts this job's output, or None."""
        return self._core.get("sagemaker_s3_output")

    def to_cmd_args(self) -> list[str]:
        """The user's hyperparameters as script arguments."""
        return mapping.to_cmd_args(self.hyperparameters)

    def to_env_vars(self) -> dict[str, str]:
        """Every ``SM_*`` variable of the contract, with an alias for each name that shells cannot use."""
        named = {name: getattr(self, name) for name in _EXPORTED}
        named.update(
            framework_module=self.framework_module,
            framework_params=self.additional_framework_parameters,
            hps=self.hyperparameters,
            user_args=self.to_cmd_args(),
            channels=sorted(self.channel_input_dirs),
            training_env=dict(self),
        )
        named["checkpoint_dir"] = self._checkpoint_dir
        if self.topology:
            named["topology"] = self.topology
        for name, path in self.channel_input_dirs.items():
            named[f"channel_{name}"] = path
        for name, value in self.hyperparameters.items():
            named[f"hp_{name}"] = value
        return mapping.with_legal_aliases(mapping.to_env_vars(named))

    def to_process_vars(self) -> dict[str, str]:
        """Variables that go with ``SM_*`` under other names."""
        environ = os.environ
        region = (
            self._core.get("sagemaker_region") or environ.get("AWS_REGION") or environ.get("SAGEMAKER_REGION")
        )
        return {
            "CURRENT_HOST": self.current_host,
            "SAGEMAKER_JOB_NAME": str(self._core.get("sagemaker_job_name") or ""),
            "SAGEMAKER_REGION": str(region or environ.get("AWS_DEFAULT_REGION") or ""),
        }


_EXPORTED = (
    "hosts",
    "network_interface_name",
    "user_entry_point",
    "input_data_config",
    "output_data_dir",
    "output_intermediate_dir",
    "resource_config",
    "current_host",
    "current_instance_type",
    "current_instance_group",
    "current_instance_group_hosts",
    "instance_groups",
    "instance_groups_dict",
    "distribution_instance_groups",
    "is_hetero",
    "input_dir",
    "input_config_dir",
    "output_dir",
    "model_dir",
    "module_dir",
    "module_name",
    "num_cpus",
    "num_gpus",
    "num_neurons",
    "log_level",
)


def read_hyperparameters(layout: Layout | None = None) -> dict[str, Any]:
    """The decoded content of ``hyperparameters.json``, reserved names included."""
    path = (layout or Layout()).hyperparameters
    return input_config.decode_hyperparameters(input_config.read_object(path, "the hyperparameters"))


def read_input_data_config(layout: Layout | None = None) -> dict[str, Any]:
    """The content of ``inputdataconfig.json``: channel name -> its settings.

    Channels through which the launcher delivers the code and the toolkit are left out.
    """
    path = (layout or Layout()).input_data_config
    channels = input_config.read_object(path, "the input channels")
    return {name: value for name, value in channels.items() if not name.startswith(LAUNCHER_CHANNELS)}


def read_resource_config(layout: Layout | None = None) -> dict[str, Any]:
    """The content of ``resourceconfig.json``: hosts, groups, network interface."""
    path = (layout or Layout()).resource_config
    return input_config.read_object(path, "the cluster's layout")


def read_checkpoint_dir(layout: Layout | None = None) -> str:
    """The directory of the job's checkpoints, as ``checkpointconfig.json`` says; default ``checkpoints``.

    The service writes that file, but does not document it: one that cannot be read is ignored.
    """
    layout = layout or Layout()
    try:
        found = input_config.read_object(layout.checkpoint_config, "the checkpoint configuration")
    except ConfigError:
        found = {}
    path = found.get("LocalPath")
    return layout.place_of(path) if isinstance(path, str) and path else layout.checkpoints


def num_cpus() -> int:
    """CPUs that this process may use, quotas of the container included."""
    return resources.num_cpus()


def num_gpus() -> int:
    """NVIDIA GPUs of this container."""
    return resources.num_gpus()


def num_neurons(instance_type: str = "") -> int:
    """AWS Neuron cores of this container."""
    return resources.num_neurons(instance_type)


def channel_path(channel: str) -> str:
    """The folder of a channel."""
    return Layout().channel(channel)


def write_env_vars(env_vars: dict[str, str] | None = None) -> None:
    """Set variables in this process's environment."""
    os.environ.update(env_vars or {})


def validate_smddprun() -> bool:
    """Whether the launcher of SageMaker's data parallel library is in the image."""
    return shutil.which("smddprun") is not None


def validate_smddpmprun() -> bool:
    """Whether the launcher of SageMaker's model parallel library is in the image."""
    return shutil.which("smddpmprun") is not None


def __getattr__(name: str) -> Any:
    if name in _PATHS:
        return str(getattr(Layout(), _PATHS[name]))
    if name == "logger":
        from .predecessor import logging_config

        return logging_config.get_logger()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _instance_groups(resource: dict[str, Any]) -> dict[str, dict[str, Any]]:
    groups = resource.get("instance_groups") or []
    try:
        return {group["instance_group_name"]: group for group in groups}
    except (TypeError, KeyError):
        raise ConfigError(
            "Cannot lay out the cluster: instance_groups in resourceconfig.json must be a list of objects "
            f'with an "instance_group_name" each, but is {groups!r}.'
        ) from None


def _list_of_names(value: Any, what: str) -> list[str]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise ConfigError(
        f'Cannot lay out the cluster: {what} must be a list of names such as ["algo-1"], not {value!r}.'
    )


def _text(resource: dict[str, Any], name: str) -> str:
    value = resource.get(name)
    if isinstance(value, str) and value:
        return value
    raise ConfigError(
        f"Cannot lay out the cluster: resourceconfig.json needs "
        f'"{name}", a name such as "algo-1"; it has {value!r}.'
    )


def _log_level(value: Any) -> int:
    if value in (None, ""):
        return DEFAULT_LOG_LEVEL
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"Cannot use the log level {value!r}: it must be a number of Python's logging module, such as 20."
        ) from None

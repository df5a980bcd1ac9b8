"""The table that maps TorchX's names to the objects of trainyard that implement them.

For each module of TorchX, the table lists the modules of trainyard that hold its objects, with their names;
``old=new`` where trainyard's name differs. ``*`` stands for every public name of a module. Modules that only
contain other modules are listed without names.
"""

from __future__ import annotations

_SPECS = {
    "trainyard.specs": "ALL AppDef AppDryRunInfo AppHandle AppState BindMount CfgVal DeviceMount MISSING "
    "MountType NONE NULL_RESOURCE ReplicaState Resource RetryPolicy Role VolumeMount is_started is_terminal "
    "macros runopt runopts",
    "trainyard.errors": "AppStatusError InvalidRunConfigException MalformedAppHandleException "
    "UnknownAppException UnknownSchedulerException",
    "trainyard.compat.torchx_specs": "AppStatus=TorchxAppStatus ParsedAppHandle=TorchxAppHandle "
    "ReplicaStatus=TorchxReplicaStatus RoleStatus=TorchxRoleStatus T TORCHX_HOME UNKNOWN "
    "Workspace=TorchxWorkspace cases get_type_name parse_app_handle",
}
_WORKSPACE = {
    "trainyard.compat.torchx_specs": "Workspace=TorchxWorkspace",
    "trainyard.compat.torchx_workspace": "WorkspaceMixin walk_workspace",
}
_SCHEDULERS_API = {
    "trainyard.schedulers": "Stream filter_regex",
    "trainyard.compat.plugin_scheduler": "Scheduler=PluginScheduler",
    "trainyard.compat.torchx_schedulers": "DAYS_IN_2_WEEKS DescribeAppResponse=TorchxDescribeAppResponse "
    "ListAppResponse=TorchxListAppResponse StructuredOpts T split_lines split_lines_iterator",
    "trainyard.specs": "AppDef AppDryRunInfo AppState NONE NULL_RESOURCE Role runopts",
    "trainyard.compat.torchx_specs": "AppStatus=TorchxAppStatus RoleStatus=TorchxRoleStatus "
    "Workspace=TorchxWorkspace",
    "trainyard.compat.torchx_workspace": "WorkspaceMixin",
}
_COLORS = {"trainyard.compat.torchx_cli": "BLUE ENDC GRAY GREEN ORANGE"}
_REGISTRATION = {
    "trainyard.compat.plugin_registry": "EIGHTH HALF QUARTER SIXTEENTH WHOLE F halve_mem_down_to "
    "powers_of_two_gpus register resource_tags",
}
_REGISTRY = {
    "trainyard.compat.plugin_registry": "NAMED_RESOURCES_ATTR PluginRegistry PluginSource PluginType "
    "RegistrationError logger registry",
}

_TABLE: dict[str, dict[str, str]] = {
    "torchx": {
        "trainyard.compat.torchx_version": "IMAGE=TORCHX_IMAGE __version__",
    },
    "torchx.version": {"trainyard.compat.torchx_version": "TORCHX_IMAGE __version__"},
    "torchx.settings": {"trainyard.compat.torchx_settings": "*"},
    "torchx.deprecations": {"trainyard.compat.torchx_util": "deprecated deprecated_module"},
    # ---- specs
    "torchx.specs": {
        **_SPECS,
        "trainyard.specs": _SPECS["trainyard.specs"] + " get_named_resources make_app_handle named_resources "
        "parse_mounts resource",
        "trainyard.specs.resources": "ResourceFactory",
        "trainyard.compat.torchx_components": "materialize_appdef",
        "trainyard.compat.torchx_resources": "AWS_NAMED_RESOURCES CUSTOM_NAMED_RESOURCES FB_NAMED_RESOURCES "
        "GENERIC_NAMED_RESOURCES",
        "trainyard.specs.named_resources_generic": "GiB",
        "trainyard.compat.torchx_util": "import_attr load_group",
        "trainyard.compat.torchx_cli": "TorchXRunArgs torchx_run_args_from_argparse "
        "torchx_run_args_from_json",
    },
    "torchx.specs.api": {
        **_SPECS,
        "trainyard.compat.torchx_specs": _SPECS["trainyard.compat.torchx_specs"] + " _TERMINAL_STATES",
        "trainyard.compat.torchx_cli": "RESET YELLOW_BOLD",
    },
    "torchx.specs.builders": {
        "trainyard.specs": "AppDef BindMount DeviceMount MountType VolumeMount make_app_handle parse_mounts",
        "trainyard.components.materialize": "ComponentArgs",
        "trainyard.compat.torchx_components": "component_args_from_str materialize_appdef parse_args",
    },
    "torchx.specs.finder": {
        "trainyard.errors": "ComponentNotFoundException ComponentValidationException",
        "trainyard.compat.torchx_components": "ComponentsFinder CustomComponentsFinder "
        "ModuleComponentsFinder get_builtin_source get_component get_components is_namespace_package "
        "is_package logger module_relname",
    },
    "torchx.specs.file_linter": {
        "trainyard.components.file_linter": "ArgTypeValidator ComponentFunctionValidator LinterMessage "
        "ReturnTypeValidator",
        "trainyard.compat.torchx_components": "ComponentFnVisitor OK TorchFunctionVisitor "
        "TorchXArgumentHelpFormatter TorchxFunctionArgsValidator TorchxFunctionValidator "
        "TorchxReturnValidator get_fn_docstring get_generic_type get_optional_type "
        "is_primitive=is_primitive_annotation validate",
    },
    "torchx.specs.named_resources_aws": {"trainyard.compat.torchx_resources": "*"},
    "torchx.specs.named_resources_generic": {"trainyard.specs.named_resources_generic": "*"},
    "torchx.specs.overlays": {"trainyard.compat.torchx_overlays": "*"},
    "torchx.plugins": {
        "trainyard.compat.plugin_registry": "EIGHTH HALF PluginRegistry PluginType QUARTER RegistrationError "
        "SIXTEENTH WHOLE halve_mem_down_to powers_of_two_gpus register registry resource_tags",
    },
    "torchx.plugins._registration": _REGISTRATION,
    "torchx.plugins._registry": _REGISTRY,
    # ---- runner
    "torchx.runner": {"trainyard.compat.torchx_runner": "Runner=TorchxRunner get_runner"},
    "torchx.runner.api": {
        "trainyard.specs": "NONE",
        "trainyard.compat.torchx_runner": "Runner=TorchxRunner S T get_configured_trackers get_runner "
        "get_scheduler_factories logger",
        "trainyard.compat.torchx_events": "log_event=TorchxLogEvent",
    },
    "torchx.runner.config": {
        "trainyard.compat.torchx_config": "CONFIG_FILE CONFIG_PREFIX_DELIM DEFAULT_CONFIG_DIRS "
        "ENV_TORCHXCONFIG apply dump find_configs get_config get_configs get_scheduler_factories load "
        "load_sections log",
    },
    "torchx.runner.events": {
        "trainyard.compat.torchx_events": "SourceType TorchxEvent get_logging_handler "
        "get_session_id_or_create_new log log_event=TorchxLogEvent record",
    },
    "torchx.runner.events.api": {"trainyard.compat.torchx_events": "SourceType TorchxEvent"},
    "torchx.runner.events.handlers": {"trainyard.compat.torchx_events": "get_logging_handler"},
    # ---- schedulers
    "torchx.schedulers": {
        "trainyard.schedulers": "SchedulerFactory",
        "trainyard.compat.plugin_scheduler": "Scheduler=PluginScheduler",
        "trainyard.compat.torchx_schedulers": "DEFAULT_SCHEDULER_MODULES get_default_scheduler_name "
        "get_scheduler_factories",
        "trainyard.compat.torchx_util": "load_group",
    },
    "torchx.schedulers.api": _SCHEDULERS_API,
    "torchx.schedulers.ids": {
        "trainyard.compat.torchx_schedulers": "END_CANDIDATES START_CANDIDATES get_len_random_id make_unique "
        "random_id random_uint64"
    },
    "torchx.schedulers.devices": {
        "trainyard.compat.torchx_schedulers": "DEVICES efa_to_devicemounts get_device_mounts "
        "neuron_to_devicemounts to_devicemounts"
    },
    "torchx.schedulers.streams": {"trainyard.compat.torchx_local": "Tee"},
    "torchx.schedulers.local_scheduler": {
        "trainyard.compat.torchx_local_scheduler": "LocalScheduler=TorchxLocalScheduler "
        "_LocalAppDef=LocalAppDef _LocalReplica=LocalReplica create_scheduler",
        "trainyard.compat.torchx_options": "LocalOpts Opts=LocalOpts",
        "trainyard.compat.torchx_local": "*",
    },
    "torchx.schedulers.docker_scheduler": {
        "trainyard.compat.torchx_own_schedulers": "DockerScheduler=TorchxDockerScheduler "
        "create_scheduler=create_docker_scheduler",
        "trainyard.compat.torchx_options": "DockerOpts Opts=DockerOpts",
        "trainyard.compat.torchx_docker": "*",
    },
    "torchx.schedulers.slurm_scheduler": {
        "trainyard.compat.torchx_own_schedulers": "SlurmScheduler=TorchxSlurmScheduler "
        "create_scheduler=create_slurm_scheduler",
        "trainyard.compat.torchx_options": "SlurmOpts Opts=SlurmOpts",
        "trainyard.compat.torchx_slurm": "*",
    },
    "torchx.schedulers.kubernetes_scheduler": {
        "trainyard.compat.torchx_own_schedulers": "KubernetesScheduler=TorchxKubernetesScheduler "
        "create_scheduler=create_kubernetes_scheduler",
        "trainyard.compat.torchx_options": "KubernetesOpts Opts=KubernetesOpts",
        "trainyard.compat.torchx_kubernetes": "*",
    },
    "torchx.schedulers.aws_batch_scheduler": {
        "trainyard.compat.torchx_own_schedulers": "AWSBatchScheduler=TorchxAWSBatchScheduler "
        "create_scheduler=create_aws_batch_scheduler",
        "trainyard.compat.torchx_options": "AWSBatchOpts Opts=AWSBatchOpts",
        "trainyard.schedulers.aws.batch.request": "BatchJob",
        "trainyard.compat.torchx_aws": "*",
    },
    "torchx.schedulers.aws_sagemaker_scheduler": {
        "trainyard.compat.torchx_own_schedulers": "AWSSageMakerScheduler=TorchxAWSSageMakerScheduler "
        "create_scheduler=create_aws_sagemaker_scheduler",
        "trainyard.compat.torchx_options": "AWSSageMakerOpts Opts=AWSSageMakerOpts",
        "trainyard.schedulers.aws.sagemaker.request": "AWSSageMakerJob",
        "trainyard.compat.torchx_aws": "JOB_STATE=SAGEMAKER_JOB_STATE",
    },
    "torchx.schedulers.lsf_scheduler": {
        "trainyard.compat.torchx_own_schedulers": "LsfScheduler=TorchxLsfScheduler "
        "create_scheduler=create_lsf_scheduler",
        "trainyard.compat.torchx_options": "LsfOpts",
    },
    "torchx.schedulers.ray_scheduler": {
        "trainyard.schedulers.ray.scheduler": "RayScheduler create_scheduler",
        "trainyard.schedulers.ray.request": "RayJob=RayRequest",
        "trainyard.compat.torchx_schedulers": "has_ray serialize",
        "trainyard.compat.torchx_options": "RayOpts",
    },
    "torchx.schedulers.gcp_batch_scheduler": {
        "trainyard.compat.torchx_removed": "BATCH_LOGGER_NAME DEFAULT_LOC GCPBatchJob GCPBatchOpts "
        "GCPBatchScheduler GPU_COUNT_TO_TYPE GPU_TYPE_TO_COUNT JOB_STATE=GCP_JOB_STATE LABEL_APP_NAME "
        "LABEL_VERSION LOCATIONS create_scheduler=create_gcp_batch",
    },
    "torchx.schedulers.kubernetes_mcad_scheduler": {
        "trainyard.compat.torchx_removed": "KubernetesMCADJob KubernetesMCADOpts KubernetesMCADScheduler "
        "create_scheduler=create_kubernetes_mcad logger",
    },
    "torchx.schedulers.ray": {},
    "torchx.schedulers.ray.ray_driver": {},
    "torchx.schedulers.ray.ray_common": {"trainyard.compat.torchx_schedulers": "RayActor TORCHX_RANK0_HOST"},
    # ---- workspaces
    "torchx.workspace": _WORKSPACE,
    "torchx.workspace.api": {
        **_WORKSPACE,
        "trainyard.compat.torchx_workspace": "PackageType PkgInfo T TORCHX_IGNORE WorkspaceBuilder "
        "WorkspaceConfigType WorkspaceMixin logger walk_workspace",
    },
    "torchx.workspace.dir_workspace": {
        "trainyard.compat.torchx_workspace": "DirWorkspaceMixin TmpDirWorkspaceMixin",
    },
    "torchx.workspace.docker_workspace": {
        "trainyard.compat.torchx_workspace": "DEFAULT_DOCKERFILE "
        "DockerWorkspaceMixin=TorchxDockerWorkspaceMixin TORCHX_DOCKERFILE log print_push_events",
    },
    # ---- components
    "torchx.components": {},
    "torchx.components.dist": {
        "trainyard.components.dist": "*",
        "trainyard.compat.torchx_components": "get_role_name parse_nnodes",
    },
    "torchx.components.utils": {"trainyard.components.utils": "*"},
    "torchx.components.serve": {"trainyard.components.serve": "*"},
    "torchx.components.metrics": {"trainyard.components.metrics": "*"},
    "torchx.components.train": {},
    "torchx.components.interpret": {},
    "torchx.components.structured_arg": {
        "trainyard.components.structured_arg": "StructuredJArgument StructuredNameArgument",
    },
    "torchx.components.component_test_base": {"trainyard.compat.component_test_base": "ComponentTestCase"},
    # ---- programs
    "torchx.apps": {},
    "torchx.apps.utils": {},
    "torchx.apps.utils.booth_main": {
        "trainyard.apps.utils.booth_main": "*",
        "trainyard.compat.torchx_apps": "parse_args=parse_booth_args",
    },
    "torchx.apps.utils.copy_main": {
        "trainyard.apps.utils.copy_main": "*",
        "trainyard.compat.torchx_apps": "parse_args=parse_copy_args",
    },
    "torchx.apps.utils.process_monitor": {
        "trainyard.apps.utils.process_monitor": "*",
        "trainyard.compat.torchx_apps": "TIMEOUT_EXIT_CODE parse_args=parse_monitor_args",
    },
    "torchx.apps.serve": {},
    "torchx.apps.serve.serve": {
        "trainyard.apps.serve.serve": "*",
        "trainyard.compat.torchx_apps": "TORCHSERVE_PARAMS get_routable_ip_to parse_args=parse_serve_args "
        "rand_id",
    },
    # ---- command line
    "torchx.cli": {},
    "torchx.cli.colors": _COLORS,
    "torchx.util.colors": _COLORS,
    "torchx.cli.argparse_util": {
        "trainyard.compat.torchx_cli": "ArgOnceAction torchxconfig torchxconfig_list torchxconfig_run"
    },
    **{
        f"torchx.cli.cmd_{name}": {}
        for name in ("cancel", "configure", "delete", "describe", "runopts", "tracker")
    },
    "torchx.cli.cmd_base": {"trainyard.compat.torchx_cli": "SubCommand"},
    "torchx.cli.cmd_list": {"trainyard.compat.torchx_cli": "HANDLE_HEADER NAME_HEADER STATUS_HEADER"},
    "torchx.cli.cmd_log": {
        "trainyard.compat.torchx_logs": "ENDC GREEN ID_FORMAT _prefix_line=prefix_line find_role_replicas "
        "get_logs get_runner print_log_lines validate=check_log_identifier"
    },
    "torchx.cli.cmd_run": {
        "trainyard.compat.torchx_cli": "LOCAL_SCHEDULER_WARNING_MSG MISSING_COMPONENT_ERROR_MSG "
        "TorchXRunArgs torchx_run_args_from_argparse torchx_run_args_from_json"
    },
    "torchx.cli.cmd_status": {"trainyard.compat.torchx_cli": "parse_list_arg"},
    "torchx.cli.main": {"trainyard.cli": "main"},
    # ---- what runs in the job
    "torchx.tracker": {"trainyard.tracker": "AppRun app_run_from_env"},
    "torchx.tracker.api": {"trainyard.tracker.api": "*"},
    "torchx.tracker.backend": {},
    "torchx.tracker.backend.fsspec": {"trainyard.tracker.backend.fsspec": "*"},
    "torchx.tracker.mlflow": {"trainyard.tracker.mlflow": "*"},
    "torchx.runtime": {},
    "torchx.runtime.tracking": {"trainyard.tracker.results": "*"},
    "torchx.runtime.tracking.api": {
        "trainyard.tracker.results": "*",
        "trainyard.compat.torchx_util": "KeyType ResultType",
    },
    "torchx.distributed": {"trainyard.compat.torch_distributed": "*"},
    "torchx.notebook": {"trainyard.notebook": "*"},
    # ---- helpers for tests
    "torchx.test": {},
    "torchx.test.fixtures": {"trainyard.compat.torchx_testing": "IS_CI TestWithTmpDir write_shell_script"},
    "torchx.testing": {},
    "torchx.testing.fixtures": {"trainyard.compat.torchx_testing": "TestWithTmpDir write_shell_script"},
    # ---- small helpers
    "torchx.util": {},
    "torchx.util.cuda": {"trainyard.compat.torch_distributed": "has_cuda_devices"},
    "torchx.util.datetime": {"trainyard.compat.torchx_util": "get_past_epoch_time"},
    "torchx.util.entrypoints": {"trainyard.compat.torchx_util": "load=load_entry_point load_group metadata"},
    "torchx.util.io": {"trainyard.compat.torchx_util": "COMPONENTS_DIR get_abspath read_conf_file"},
    "torchx.util.log_tee_helpers": {"trainyard.compat.torchx_logs": "tee_logs"},
    "torchx.util.modules": {"trainyard.compat.torchx_util": "T import_attr load_module"},
    "torchx.util.session": {
        "trainyard.compat.torchx_events": "CURRENT_SESSION_ID TORCHX_INTERNAL_SESSION_ID "
        "get_session_id_or_create_new get_torchx_session_id"
    },
    "torchx.util.shlex": {"trainyard.compat.torchx_util": "join"},
    "torchx.util.strings": {"trainyard.compat.torchx_util": "normalize_str"},
    "torchx.util.types": {
        "trainyard.compat.torchx_util": "decode decode_from_string decode_optional get_argparse_param_type "
        "is_bool is_primitive none_throws to_dict to_list"
    },
}


def _by_name(places: dict[str, str]) -> dict[str, str]:
    names = {}
    for module, text in places.items():
        for word in text.split():
            old, _, new = word.partition("=")
            names[old] = module if old == "*" else f"{module}:{new or old}"
    return names


#: By module of TorchX: name -> ``module:attribute``; under ``*`` the module that has all others.
MODULES: dict[str, dict[str, str]] = {module: _by_name(places) for module, places in _TABLE.items()}

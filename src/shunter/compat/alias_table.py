"""The table that maps TorchX's names to the objects of shunter that implement them.

For each module of TorchX, the table lists the modules of shunter that hold its objects, with their names;
``old=new`` where shunter's name differs. ``*`` stands for every public name of a module. Modules that only
contain other modules are listed without names.
"""

from __future__ import annotations

_SPECS = {
    "shunter.specs": "ALL AppDef AppDryRunInfo AppHandle AppState BindMount CfgVal DeviceMount MISSING "
    "MountType NONE NULL_RESOURCE ReplicaState Resource RetryPolicy Role VolumeMount is_started is_terminal "
    "macros runopt runopts",
    "shunter.errors": "AppStatusError InvalidRunConfigException MalformedAppHandleException "
    "UnknownAppException UnknownSchedulerException",
    "shunter.compat.torchx_specs": "AppStatus=TorchxAppStatus ParsedAppHandle=TorchxAppHandle "
    "ReplicaStatus=TorchxReplicaStatus RoleStatus=TorchxRoleStatus T TORCHX_HOME UNKNOWN "
    "Workspace=TorchxWorkspace cases get_type_name parse_app_handle",
}
_WORKSPACE = {
    "shunter.compat.torchx_specs": "Workspace=TorchxWorkspace",
    "shunter.compat.torchx_workspace": "WorkspaceMixin walk_workspace",
}
_SCHEDULERS_API = {
    "shunter.schedulers": "Stream filter_regex",
    "shunter.compat.plugin_scheduler": "Scheduler=PluginScheduler",
    "shunter.compat.torchx_schedulers": "DAYS_IN_2_WEEKS DescribeAppResponse=TorchxDescribeAppResponse "
    "ListAppResponse=TorchxListAppResponse StructuredOpts T split_lines split_lines_iterator",
    "shunter.specs": "AppDef AppDryRunInfo AppState NONE NULL_RESOURCE Role runopts",
    "shunter.compat.torchx_specs": "AppStatus=TorchxAppStatus RoleStatus=TorchxRoleStatus "
    "Workspace=TorchxWorkspace",
    "shunter.compat.torchx_workspace": "WorkspaceMixin",
}
_COLORS = {"shunter.compat.torchx_cli": "BLUE ENDC GRAY GREEN ORANGE"}
_REGISTRATION = {
    "shunter.compat.plugin_registry": "EIGHTH HALF QUARTER SIXTEENTH WHOLE F halve_mem_down_to "
    "powers_of_two_gpus register resource_tags",
}
_REGISTRY = {
    "shunter.compat.plugin_registry": "NAMED_RESOURCES_ATTR PluginRegistry PluginSource PluginType "
    "RegistrationError logger registry",
}

_TABLE: dict[str, dict[str, str]] = {
    "torchx": {
        "shunter.compat.torchx_version": "IMAGE=TORCHX_IMAGE __version__",
    },
    "torchx.version": {"shunter.compat.torchx_version": "TORCHX_IMAGE __version__"},
    "torchx.settings": {"shunter.compat.torchx_settings": "*"},
    "torchx.deprecations": {"shunter.compat.torchx_util": "deprecated deprecated_module"},
    # ---- specs
    "torchx.specs": {
        **_SPECS,
        "shunter.specs": _SPECS["shunter.specs"] + " get_named_resources make_app_handle named_resources "
        "parse_mounts resource",
        "shunter.specs.resources": "ResourceFactory",
        "shunter.compat.torchx_components": "materialize_appdef",
        "shunter.compat.torchx_resources": "AWS_NAMED_RESOURCES CUSTOM_NAMED_RESOURCES FB_NAMED_RESOURCES "
        "GENERIC_NAMED_RESOURCES",
        "shunter.specs.named_resources_generic": "GiB",
        "shunter.compat.torchx_util": "import_attr load_group",
        "shunter.compat.torchx_cli": "TorchXRunArgs torchx_run_args_from_argparse torchx_run_args_from_json",
    },
    "torchx.specs.api": {
        **_SPECS,
        "shunter.compat.torchx_specs": _SPECS["shunter.compat.torchx_specs"] + " _TERMINAL_STATES",
        "shunter.compat.torchx_cli": "RESET YELLOW_BOLD",
    },
    "torchx.specs.builders": {
        "shunter.specs": "AppDef BindMount DeviceMount MountType VolumeMount make_app_handle parse_mounts",
        "shunter.components.materialize": "ComponentArgs",
        "shunter.compat.torchx_components": "component_args_from_str materialize_appdef parse_args",
    },
    "torchx.specs.finder": {
        "shunter.errors": "ComponentNotFoundException ComponentValidationException",
        "shunter.compat.torchx_components": "ComponentsFinder CustomComponentsFinder "
        "ModuleComponentsFinder get_builtin_source get_component get_components is_namespace_package "
        "is_package logger module_relname",
    },
    "torchx.specs.file_linter": {
        "shunter.components.file_linter": "ArgTypeValidator ComponentFunctionValidator LinterMessage "
        "ReturnTypeValidator",
        "shunter.compat.torchx_components": "ComponentFnVisitor OK TorchFunctionVisitor "
        "TorchXArgumentHelpFormatter TorchxFunctionArgsValidator TorchxFunctionValidator "
        "TorchxReturnValidator get_fn_docstring get_generic_type get_optional_type "
        "is_primitive=is_primitive_annotation validate",
    },
    "torchx.specs.named_resources_aws": {"shunter.compat.torchx_resources": "*"},
    "torchx.specs.named_resources_generic": {"shunter.specs.named_resources_generic": "*"},
    "torchx.specs.overlays": {"shunter.compat.torchx_overlays": "*"},
    "torchx.plugins": {
        "shunter.compat.plugin_registry": "EIGHTH HALF PluginRegistry PluginType QUARTER RegistrationError "
        "SIXTEENTH WHOLE halve_mem_down_to powers_of_two_gpus register registry resource_tags",
    },
    "torchx.plugins._registration": _REGISTRATION,
    "torchx.plugins._registry": _REGISTRY,
    # ---- runner
    "torchx.runner": {"shunter.compat.torchx_runner": "Runner=TorchxRunner get_runner"},
    "torchx.runner.api": {
        "shunter.specs": "NONE",
        "shunter.compat.torchx_runner": "Runner=TorchxRunner S T get_configured_trackers get_runner "
        "get_scheduler_factories logger",
        "shunter.compat.torchx_events": "log_event=TorchxLogEvent",
    },
    "torchx.runner.config": {
        "shunter.compat.torchx_config": "CONFIG_FILE CONFIG_PREFIX_DELIM DEFAULT_CONFIG_DIRS "
        "ENV_TORCHXCONFIG apply dump find_configs get_config get_configs get_scheduler_factories load "
        "load_sections log",
    },
    "torchx.runner.events": {
        "shunter.compat.torchx_events": "SourceType TorchxEvent get_logging_handler "
        "get_session_id_or_create_new log log_event=TorchxLogEvent record",
    },
    "torchx.runner.events.api": {"shunter.compat.torchx_events": "SourceType TorchxEvent"},
    "torchx.runner.events.handlers": {"shunter.compat.torchx_events": "get_logging_handler"},
    # ---- schedulers
    "torchx.schedulers": {
        "shunter.schedulers": "SchedulerFactory",
        "shunter.compat.plugin_scheduler": "Scheduler=PluginScheduler",
        "shunter.compat.torchx_schedulers": "DEFAULT_SCHEDULER_MODULES get_default_scheduler_name "
        "get_scheduler_factories",
        "shunter.compat.torchx_util": "load_group",
    },
    "torchx.schedulers.api": _SCHEDULERS_API,
    "torchx.schedulers.ids": {
        "shunter.compat.torchx_schedulers": "END_CANDIDATES START_CANDIDATES get_len_random_id make_unique "
        "random_id random_uint64"
    },
    "torchx.schedulers.devices": {
        "shunter.compat.torchx_schedulers": "DEVICES efa_to_devicemounts get_device_mounts "
        "neuron_to_devicemounts to_devicemounts"
    },
    "torchx.schedulers.streams": {"shunter.compat.torchx_local": "Tee"},
    "torchx.schedulers.local_scheduler": {
        "shunter.compat.torchx_local_scheduler": "LocalScheduler=TorchxLocalScheduler "
        "_LocalAppDef=LocalAppDef _LocalReplica=LocalReplica create_scheduler",
        "shunter.compat.torchx_options": "LocalOpts Opts=LocalOpts",
        "shunter.compat.torchx_local": "*",
    },
    "torchx.schedulers.docker_scheduler": {
        "shunter.compat.torchx_own_schedulers": "DockerScheduler=TorchxDockerScheduler "
        "create_scheduler=create_docker_scheduler",
        "shunter.compat.torchx_options": "DockerOpts Opts=DockerOpts",
        "shunter.compat.torchx_docker": "*",
    },
    "torchx.schedulers.slurm_scheduler": {
        "shunter.compat.torchx_own_schedulers": "SlurmScheduler=TorchxSlurmScheduler "
        "create_scheduler=create_slurm_scheduler",
        "shunter.compat.torchx_options": "SlurmOpts Opts=SlurmOpts",
        "shunter.compat.torchx_slurm": "*",
    },
    "torchx.schedulers.kubernetes_scheduler": {
        "shunter.compat.torchx_own_schedulers": "KubernetesScheduler=TorchxKubernetesScheduler "
        "create_scheduler=create_kubernetes_scheduler",
        "shunter.compat.torchx_options": "KubernetesOpts Opts=KubernetesOpts",
        "shunter.compat.torchx_kubernetes": "*",
    },
    "torchx.schedulers.aws_batch_scheduler": {
        "shunter.compat.torchx_own_schedulers": "AWSBatchScheduler=TorchxAWSBatchScheduler "
        "create_scheduler=create_aws_batch_scheduler",
        "shunter.compat.torchx_options": "AWSBatchOpts Opts=AWSBatchOpts",
        "shunter.schedulers.aws_batch_scheduler.request": "BatchJob",
        "shunter.compat.torchx_aws": "*",
    },
    "torchx.schedulers.aws_sagemaker_scheduler": {
        "shunter.compat.torchx_own_schedulers": "AWSSageMakerScheduler=TorchxAWSSageMakerScheduler "
        "create_scheduler=create_aws_sagemaker_scheduler",
        "shunter.compat.torchx_options": "AWSSageMakerOpts Opts=AWSSageMakerOpts",
        "shunter.schedulers.aws_sagemaker_scheduler.request": "AWSSageMakerJob",
        "shunter.compat.torchx_aws": "JOB_STATE=SAGEMAKER_JOB_STATE",
    },
    "torchx.schedulers.lsf_scheduler": {
        "shunter.compat.torchx_own_schedulers": "LsfScheduler=TorchxLsfScheduler "
        "create_scheduler=create_lsf_scheduler",
        "shunter.compat.torchx_options": "LsfOpts",
    },
    "torchx.schedulers.ray_scheduler": {
        "shunter.schedulers.ray_scheduler.scheduler": "RayScheduler create_scheduler",
        "shunter.schedulers.ray_scheduler.request": "RayJob=RayRequest",
        "shunter.compat.torchx_schedulers": "has_ray serialize",
        "shunter.compat.torchx_options": "RayOpts",
    },
    "torchx.schedulers.gcp_batch_scheduler": {
        "shunter.compat.torchx_removed": "BATCH_LOGGER_NAME DEFAULT_LOC GCPBatchJob GCPBatchOpts "
        "GCPBatchScheduler GPU_COUNT_TO_TYPE GPU_TYPE_TO_COUNT JOB_STATE=GCP_JOB_STATE LABEL_APP_NAME "
        "LABEL_VERSION LOCATIONS create_scheduler=create_gcp_batch",
    },
    "torchx.schedulers.kubernetes_mcad_scheduler": {
        "shunter.compat.torchx_removed": "KubernetesMCADJob KubernetesMCADOpts KubernetesMCADScheduler "
        "create_scheduler=create_kubernetes_mcad logger",
    },
    "torchx.schedulers.ray": {},
    "torchx.schedulers.ray.ray_driver": {},
    "torchx.schedulers.ray.ray_common": {"shunter.compat.torchx_schedulers": "RayActor TORCHX_RANK0_HOST"},
    # ---- workspaces
    "torchx.workspace": _WORKSPACE,
    "torchx.workspace.api": {
        **_WORKSPACE,
        "shunter.compat.torchx_workspace": "PackageType PkgInfo T TORCHX_IGNORE WorkspaceBuilder "
        "WorkspaceConfigType WorkspaceMixin logger walk_workspace",
    },
    "torchx.workspace.dir_workspace": {
        "shunter.compat.torchx_workspace": "DirWorkspaceMixin TmpDirWorkspaceMixin",
    },
    "torchx.workspace.docker_workspace": {
        "shunter.compat.torchx_workspace": "DEFAULT_DOCKERFILE "
        "DockerWorkspaceMixin=TorchxDockerWorkspaceMixin TORCHX_DOCKERFILE log print_push_events",
    },
    # ---- components
    "torchx.components": {},
    "torchx.components.dist": {
        "shunter.components.dist": "*",
        "shunter.compat.torchx_components": "get_role_name parse_nnodes",
    },
    "torchx.components.utils": {"shunter.components.utils": "*"},
    "torchx.components.serve": {"shunter.components.serve": "*"},
    "torchx.components.metrics": {"shunter.components.metrics": "*"},
    "torchx.components.train": {},
    "torchx.components.interpret": {},
    "torchx.components.structured_arg": {
        "shunter.components.structured_arg": "StructuredJArgument StructuredNameArgument",
    },
    "torchx.components.component_test_base": {"shunter.compat.component_test_base": "ComponentTestCase"},
    # ---- programs
    "torchx.apps": {},
    "torchx.apps.utils": {},
    "torchx.apps.utils.booth_main": {
        "shunter.apps.utils.booth_main": "*",
        "shunter.compat.torchx_apps": "parse_args=parse_booth_args",
    },
    "torchx.apps.utils.copy_main": {
        "shunter.apps.utils.copy_main": "*",
        "shunter.compat.torchx_apps": "parse_args=parse_copy_args",
    },
    "torchx.apps.utils.process_monitor": {
        "shunter.apps.utils.process_monitor": "*",
        "shunter.compat.torchx_apps": "TIMEOUT_EXIT_CODE parse_args=parse_monitor_args",
    },
    "torchx.apps.serve": {},
    "torchx.apps.serve.serve": {
        "shunter.apps.serve.serve": "*",
        "shunter.compat.torchx_apps": "TORCHSERVE_PARAMS get_routable_ip_to parse_args=parse_serve_args "
        "rand_id",
    },
    # ---- command line
    "torchx.cli": {},
    "torchx.cli.colors": _COLORS,
    "torchx.util.colors": _COLORS,
    "torchx.cli.argparse_util": {
        "shunter.compat.torchx_cli": "ArgOnceAction torchxconfig torchxconfig_list torchxconfig_run"
    },
    **{
        f"torchx.cli.cmd_{name}": {}
        for name in ("cancel", "configure", "delete", "describe", "runopts", "tracker")
    },
    "torchx.cli.cmd_base": {"shunter.compat.torchx_cli": "SubCommand"},
    "torchx.cli.cmd_list": {"shunter.compat.torchx_cli": "HANDLE_HEADER NAME_HEADER STATUS_HEADER"},
    "torchx.cli.cmd_log": {
        "shunter.compat.torchx_logs": "ENDC GREEN ID_FORMAT _prefix_line=prefix_line find_role_replicas "
        "get_logs get_runner print_log_lines validate=check_log_identifier"
    },
    "torchx.cli.cmd_run": {
        "shunter.compat.torchx_cli": "LOCAL_SCHEDULER_WARNING_MSG MISSING_COMPONENT_ERROR_MSG "
        "TorchXRunArgs torchx_run_args_from_argparse torchx_run_args_from_json"
    },
    "torchx.cli.cmd_status": {"shunter.compat.torchx_cli": "parse_list_arg"},
    "torchx.cli.main": {"shunter.cli": "main"},
    # ---- what runs in the job
    "torchx.tracker": {"shunter.tracker": "AppRun app_run_from_env"},
    "torchx.tracker.api": {"shunter.tracker.api": "*"},
    "torchx.tracker.backend": {},
    "torchx.tracker.backend.fsspec": {"shunter.tracker.backend.fsspec": "*"},
    "torchx.tracker.mlflow": {"shunter.tracker.mlflow": "*"},
    "torchx.runtime": {},
    "torchx.runtime.tracking": {"shunter.tracker.results": "*"},
    "torchx.runtime.tracking.api": {
        "shunter.tracker.results": "*",
        "shunter.compat.torchx_util": "KeyType ResultType",
    },
    "torchx.distributed": {"shunter.compat.torch_distributed": "*"},
    "torchx.notebook": {"shunter.notebook": "*"},
    # ---- helpers for tests
    "torchx.test": {},
    "torchx.test.fixtures": {"shunter.compat.torchx_testing": "IS_CI TestWithTmpDir write_shell_script"},
    "torchx.testing": {},
    "torchx.testing.fixtures": {"shunter.compat.torchx_testing": "TestWithTmpDir write_shell_script"},
    # ---- small helpers
    "torchx.util": {},
    "torchx.util.cuda": {"shunter.compat.torch_distributed": "has_cuda_devices"},
    "torchx.util.datetime": {"shunter.compat.torchx_util": "get_past_epoch_time"},
    "torchx.util.entrypoints": {"shunter.compat.torchx_util": "load=load_entry_point load_group metadata"},
    "torchx.util.io": {"shunter.compat.torchx_util": "COMPONENTS_DIR get_abspath read_conf_file"},
    "torchx.util.log_tee_helpers": {"shunter.compat.torchx_logs": "tee_logs"},
    "torchx.util.modules": {"shunter.compat.torchx_util": "T import_attr load_module"},
    "torchx.util.session": {
        "shunter.compat.torchx_events": "CURRENT_SESSION_ID TORCHX_INTERNAL_SESSION_ID "
        "get_session_id_or_create_new get_torchx_session_id"
    },
    "torchx.util.shlex": {"shunter.compat.torchx_util": "join"},
    "torchx.util.strings": {"shunter.compat.torchx_util": "normalize_str"},
    "torchx.util.types": {
        "shunter.compat.torchx_util": "decode decode_from_string decode_optional get_argparse_param_type "
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

"""Which modules of shunter stand for a module of TorchX: ``torchx.a.b`` is ``shunter.a.b``.

What TorchX has and shunter should not is in ``shunter.compat.a.b``, whose names come first. These are the
exceptions.
"""

from __future__ import annotations

import functools
import importlib.util

#: Modules that stand for one at another place.
_ELSEWHERE = {
    "plugins": "shunter.compat.plugins.registry",
    "plugins._registration": "shunter.compat.plugins",
    "plugins._registry": "shunter.compat.plugins.registry",
    "runner": "shunter.compat.runner.api",
    "runner.events.api": "shunter.compat.runner.events",
    "runner.events.handlers": "shunter.compat.runner.events",
    "runtime.tracking": "shunter.tracker.results",
    "runtime.tracking.api": "shunter.tracker.results",
    "specs.builders": "shunter.specs",
    "specs.file_linter": "shunter.components.file_linter",
    "specs.finder": "shunter.components.finder",
    "testing.fixtures": "shunter.compat.test.fixtures",
    "util.colors": "shunter.compat.cli.colors",
    "util.cuda": "shunter.compat.distributed",
    "util.session": "shunter.compat.runner.events",
    "util.shlex": "shlex",
    "workspace": "shunter.workspace.api",
}

#: Packages in which there are only modules.
_PACKAGES = ("runtime", "testing")

_DERIVABLE = "shunter.compat.schedulers.derivable"
_SCHEDULERS_API = {
    "shunter.compat.plugin_scheduler": "Scheduler=PluginScheduler",
    "shunter.compat.schedulers.structured_opts": "StructuredOpts",
    "shunter.schedulers.lines": "split_lines split_lines_iterator",
}
_SPECS = {"shunter.compat.specs.status": "AppStatus", "shunter.compat.specs.metadata_keys": "UNKNOWN"}

#: Names that are not those of the modules that stand for TorchX's: ``name=new`` where it is called otherwise.
_OTHER_NAMES: dict[str, dict[str, str]] = {
    "": {"shunter.compat.version": "IMAGE __version__"},
    "cli.main": {"shunter.compat.torchx_command": "main"},
    "plugins._registry": {"shunter.compat.plugins": "NAMED_RESOURCES_ATTR"},
    "runner": {"shunter.compat.runner.api": "Runner=TorchxRunner"},
    "runner.api": {"shunter.compat.runner.api": "Runner=TorchxRunner"},
    "schedulers": {
        "shunter.compat.plugin_scheduler": "Scheduler=PluginScheduler",
        "shunter.compat.schedulers.factories": "DEFAULT_SCHEDULER_MODULES get_default_scheduler_name "
        "get_scheduler_factories",
    },
    "schedulers.api": _SCHEDULERS_API,
    "schedulers.aws_batch_scheduler": {_DERIVABLE: "AWSBatchScheduler"},
    "schedulers.aws_sagemaker_scheduler": {_DERIVABLE: "AWSSageMakerScheduler"},
    "schedulers.kubernetes_scheduler": {_DERIVABLE: "KubernetesScheduler"},
    "schedulers.lsf_scheduler": {_DERIVABLE: "LsfScheduler"},
    "specs": {
        **_SPECS,
        "shunter.compat.specs.builders": "materialize_appdef",
        "shunter.compat.specs.capabilities": "CapabilityKey",
        "shunter.compat.specs.metadata_keys": "NA TORCHX_CONTEXT_NAME UNKNOWN app_metadata",
        "shunter.compat.specs.named_resources_aws": "AWS_NAMED_RESOURCES CUSTOM_NAMED_RESOURCES "
        "GENERIC_NAMED_RESOURCES",
        "shunter.specs.named_resources_generic": "GiB",
        "shunter.specs.resources": "ResourceFactory",
    },
    "specs.api": _SPECS,
    "specs.finder": {"shunter.errors": "ComponentNotFoundException ComponentValidationException"},
    "util.entrypoints": {"shunter.compat.util.entrypoints": "load=load_entry_point metadata"},
}


@functools.cache
def places_of(module: str) -> dict[str, str] | None:
    """Return where the names of a module are, as ``module:attribute``; None if shunter has no such module.

    Args:
        module: the module without ``torchx.``; "" for `torchx` itself.

    Returns:
        Places by name; under ``*`` the modules that have the other names, the first of them in case of doubt.
    """
    places = {}
    for new_module, names in _OTHER_NAMES.get(module, {}).items():
        for word in names.split():
            old, _, new = word.partition("=")
            places[old] = f"{new_module}:{new or old}"
    candidates = [f"shunter.compat.{module}", _ELSEWHERE.get(module, f"shunter.{module}")]
    modules = [name for name in candidates if module and _exists(name)]
    if modules:
        places["*"] = " ".join(modules)
    return places if places or module in _PACKAGES else None


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False

"""Which module of shunter stands for a module of TorchX: ``torchx.a.b`` is ``shunter.a.b``, but for these."""

from __future__ import annotations

import functools
import importlib.util

#: Modules that stand for one at another place.
_ELSEWHERE = {
    "": "shunter.compat.torchx_version",
    "components.component_test_base": "shunter.compat.component_test_base",
    "distributed": "shunter.compat.torch_distributed",
    "plugins": "shunter.compat.plugin_registration",
    "runner": "shunter.compat.torchx_runner",
    "runner.api": "shunter.compat.torchx_runner",
    "runner.config": "shunter.compat.torchx_config",
    "runner.events.api": "shunter.runner.events",
    "runtime.tracking": "shunter.tracker.results",
    "runtime.tracking.api": "shunter.tracker.results",
    "specs.builders": "shunter.specs",
    "specs.file_linter": "shunter.components.file_linter",
    "specs.finder": "shunter.components.finder",
    "specs.named_resources_aws": "shunter.compat.torchx_resources",
    "specs.overlays": "shunter.compat.torchx_overlays",
    "util.entrypoints": "shunter.compat.torchx_util",
    "util.types": "shunter.compat.torchx_util",
    "version": "shunter.compat.torchx_version",
    "workspace": "shunter.workspace.api",
    "workspace.api": "shunter.workspace.api",
}

#: Packages in which there are only modules.
_PACKAGES = ("cli", "runtime", "util")

#: Names that are not those of the module that stands for TorchX's: ``name=new`` where it is called otherwise.
_OTHER_NAMES: dict[str, dict[str, str]] = {
    "cli.cmd_base": {"shunter.compat.subcommand": "SubCommand"},
    "cli.main": {"shunter.compat.torchx_command": "main"},
    "runner": {"shunter.compat.torchx_runner": "Runner=TorchxRunner"},
    "runner.api": {"shunter.compat.torchx_runner": "Runner=TorchxRunner"},
    "runner.events": {
        "shunter.compat.torchx_runner": "log_event=torchx_log_event",
        "shunter.runner.events": "TorchxEvent=Event",
    },
    "runner.events.api": {"shunter.runner.events": "TorchxEvent=Event"},
    "schedulers": {"shunter.compat.plugin_scheduler": "Scheduler=PluginScheduler"},
    "schedulers.api": {
        "shunter.compat.plugin_scheduler": "Scheduler=PluginScheduler",
        "shunter.compat.structured_opts": "StructuredOpts",
        "shunter.schedulers.lines": "split_lines",
    },
    "specs": {
        "shunter.compat.torchx_resources": "AWS_NAMED_RESOURCES CUSTOM_NAMED_RESOURCES "
        "GENERIC_NAMED_RESOURCES",
        "shunter.components.materialize": "materialize_appdef",
        "shunter.specs.named_resources_generic": "GiB",
        "shunter.specs.resources": "ResourceFactory",
    },
    "specs.builders": {
        "shunter.components.materialize": "ComponentArgs component_args_from_str materialize_appdef",
    },
    "specs.finder": {"shunter.errors": "ComponentNotFoundException ComponentValidationException"},
    "util.entrypoints": {"shunter.compat.torchx_util": "load=load_entry_point"},
}


@functools.cache
def places_of(module: str) -> dict[str, str] | None:
    """Return where the names of a module are, as ``module:attribute``; None if shunter has no such module.

    Args:
        module: the module without ``torchx.``; "" for `torchx` itself.

    Returns:
        Places by name; under ``*`` the module that has all other names.
    """
    places = {}
    for new_module, names in _OTHER_NAMES.get(module, {}).items():
        for word in names.split():
            old, _, new = word.partition("=")
            places[old] = f"{new_module}:{new or old}"
    if module in _ELSEWHERE:
        places["*"] = _ELSEWHERE[module]
    elif _exists(f"shunter.{module}"):
        places["*"] = f"shunter.{module}"
    elif module not in _PACKAGES and not places:
        return None
    return places


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False

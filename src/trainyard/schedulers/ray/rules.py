"""What is refused before a job is sent to Ray, and what has no effect there."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError
from trainyard.regular_files import read_regular_file
from trainyard.schedulers.ray.options import STRATEGIES
from trainyard.specs.app import NO_IMAGE
from trainyard.specs.limits import seconds_problem
from trainyard.specs.training import specification

if TYPE_CHECKING:
    from trainyard.schedulers.ray.options import RayOpts
    from trainyard.specs.app import AppDef, Role

_REPLACED = {
    "cluster_config_file": "name the cluster's dashboard: -cfg dashboard_address=http://HEAD:8265 "
    "(`ray get-head-ip FILE` prints HEAD)",
    "cluster_name": "name the cluster's dashboard: -cfg dashboard_address=http://HEAD:8265",
}
#: What of Ray's runtime environment this scheduler makes itself.
_OURS = ("working_dir", "py_modules")
_ROLE_NAME = re.compile(r"\S+")


def check_options(opts: RayOpts) -> None:
    """Check what does not depend on the job.

    Raises:
        ConfigError: an option has a value that it cannot have.
    """
    for name, instead in _REPLACED.items():
        if getattr(opts, name) is not None:
            raise ConfigError(
                f"{name} is an option of TorchX that is no longer read", hint=f"Instead, {instead}."
            )
    if opts.placement not in STRATEGIES:
        raise ConfigError(f"placement is {opts.placement!r}", hint=f"It is one of {', '.join(STRATEGIES)}.")
    limits = (
        ("timeout", opts.timeout, False),
        ("placement_timeout", opts.placement_timeout, False),
        ("grace_period", opts.grace_period, True),
    )
    for name, seconds, may_be_zero in limits:
        if problem := seconds_problem(name, seconds, may_be_zero=may_be_zero):
            raise ConfigError(problem)
    if opts.job_dir is not None and not os.path.isabs(opts.job_dir):
        raise ConfigError(f"job_dir is {opts.job_dir}; it must be an absolute path on the nodes")


def check_roles(app: AppDef) -> None:
    """Check what Ray cannot run.

    Raises:
        ConfigError: a role cannot run there.
    """
    for role in app.roles:
        if role.name in (".", "..") or not _ROLE_NAME.fullmatch(role.name):
            raise ConfigError(
                f"a role cannot be named {role.name!r} on Ray", hint="Its logs need a name without spaces."
            )


def warnings_for(app: AppDef, opts: RayOpts) -> list[str]:
    """Return a sentence for each thing that has no effect, or not the expected one."""
    found = []
    for role in app.roles:
        if role.image not in ("", NO_IMAGE):
            found.append(
                f"role {role.name!r}: ray ignores the image {role.image}; the nodes' own environment is used"
            )
        if _keeps_results_on_node(role) and not opts.job_dir:
            found.append(
                f"role {role.name!r}: its results stay on the node that it runs on; send them to storage "
                "(--output URI), or give a directory that all nodes share (-cfg job_dir=...)"
            )
    return found


def _keeps_results_on_node(role: Role) -> bool:
    trained = specification(role.metadata)
    return bool(trained) and not (trained.get("output") or {}).get("uri")


def runtime_environment(opts: RayOpts) -> dict[str, Any]:
    """Return what the user wants of Ray's runtime environment.

    Raises:
        ConfigError: a file cannot be read, or something cannot be used.
    """
    found: dict[str, Any] = {}
    if opts.runtime_env is not None:
        found = _json_of(opts.runtime_env)
        for name in _OURS:
            if name in found:
                raise ConfigError(
                    f"runtime_env has {name}, which is made from the job",
                    hint="Code travels as the workspace: --workspace DIR.",
                )
    if opts.requirements is not None:
        if {"pip", "uv", "conda"} & found.keys():
            raise ConfigError(
                "requirements and runtime_env both say which packages to install",
                hint="Leave one of them out.",
            )
        found["pip"] = _packages(opts.requirements)
    return found


def _json_of(text: str) -> dict[str, Any]:
    source = text
    if not text.lstrip().startswith("{"):
        source = _text_of(text, "runtime_env")
    try:
        found = json.loads(source)
    except ValueError as error:
        raise ConfigError(f"runtime_env is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("runtime_env must be a JSON object")
    return found


def _packages(path: str) -> list[str]:
    lines = [line.split(" #")[0].strip() for line in _text_of(path, "requirements").splitlines()]
    packages = [line for line in lines if line and not line.startswith("#")]
    for line in packages:
        if line.startswith(("-r", "-c", "--requirement", "--constraint", "-e", ".", "/")):
            raise ConfigError(
                f"requirements: {path} has the line {line!r}, which names a file of this machine",
                hint="Ray installs the packages on its nodes, which do not have that file.",
            )
    return packages


def _text_of(path: str, option: str) -> str:
    try:
        return read_regular_file(os.path.expanduser(path)).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path}: {error.strerror or error}") from error

"""Checks before a job is sent to Ray, and warnings about settings that have no effect there."""

from __future__ import annotations

import os
import re

from shunter.errors import ConfigError
from shunter.limits import seconds_problem
from shunter.schedulers.ray_scheduler.options import STRATEGIES, RayOpts
from shunter.specs.app import NO_IMAGE, AppDef, Role
from shunter.specs.training import specification

_REPLACED = {
    "cluster_config_file": "name the cluster's dashboard: -cfg dashboard_address=http://HEAD:8265 "
    "(`ray get-head-ip FILE` prints HEAD)",
    "cluster_name": "name the cluster's dashboard: -cfg dashboard_address=http://HEAD:8265",
}
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
    """Return a warning for each setting that has no effect, or another effect than expected."""
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

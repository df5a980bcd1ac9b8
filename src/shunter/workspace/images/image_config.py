"""The configuration of an image: its working directory, its labels, and what it is with more layers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

#: Where code goes in an image that names no working directory. Its root will not do: a directory entry
#: ``bin`` there would take the place of the image's link ``/bin -> usr/bin``.
DEFAULT_WORKING_DIR = "/workspace"

LABEL_BASE = "shunter.base"
LABEL_FINGERPRINT = "shunter.fingerprint"
LABEL_VERSION = "shunter.version"
#: Which Python environment is in the image.
LABEL_ENVIRONMENT = "shunter.environment"
#: sha256 of the toolkit that is in the image.
LABEL_TOOLKIT = "shunter.toolkit"
LABEL_BASE_NAME = "org.opencontainers.image.base.name"
LABEL_BASE_DIGEST = "org.opencontainers.image.base.digest"

#: What made the layer of a workspace, and the one on top with its changes, in an image's history.
HISTORY = ("shunter: workspace", "shunter: changes of the workspace")

_KEPT = ("architecture", "author", "config", "created", "os", "os.features", "os.version", "variant")


def working_dir(config: Mapping[str, Any]) -> str:
    """Return where code goes: the image's working directory, or ``/workspace`` if that is unset or ``/``."""
    given = str((config.get("config") or {}).get("WorkingDir") or "")
    path = "/" + "/".join(part for part in given.split("/") if part not in ("", "."))
    return DEFAULT_WORKING_DIR if path == "/" else path


def environ_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that an image sets."""
    pairs = ((config.get("config") or {}).get("Env")) or []
    return {name: value for name, _, value in (str(pair).partition("=") for pair in pairs)}


def add_layers(
    config: Mapping[str, Any],
    diff_ids: Sequence[str],
    *,
    workdir: str,
    labels: Mapping[str, str],
    history: Sequence[str],
) -> dict[str, Any]:
    """Return an image configuration with layers added. The same arguments give the same configuration.

    Args:
        config: an image configuration (OCI image spec, ``application/vnd.oci.image.config.v1+json``, or
            Docker's of schema 2, which differs in nothing that matters here).
        diff_ids: sha256 of each new layer's tar, lowest first.
        workdir: the new image's working directory.
        labels: labels to set.
        history: for each new layer, what made it.

    The time of creation stays the base's, so that nothing depends on when this runs. The base's history is
    kept where it describes every layer; where it does not, there is none, since tools match it to the layers
    by counting.
    """
    result = {key: copy.deepcopy(config[key]) for key in _KEPT if config.get(key)}
    inner = result.setdefault("config", {})
    inner["WorkingDir"] = workdir
    inner["Labels"] = {**(inner.get("Labels") or {}), **labels}
    below = list(config["rootfs"]["diff_ids"])
    result["rootfs"] = {"type": "layers", "diff_ids": [*below, *diff_ids]}
    told = config.get("history") or []
    if sum(not step.get("empty_layer") for step in told) == len(below):
        result["history"] = [*copy.deepcopy(told), *({"created_by": text} for text in history)]
    return result

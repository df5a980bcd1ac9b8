"""The default image, for roles without one on schedulers that run containers.

The first of: the setting ``image`` of ``run`` (``SHUNTER_IMAGE``); what a distribution offers as the entry
point ``get_torchx_image`` of the group ``shunter.version`` or ``torchx.version``; TorchX's last image. The
last two are not for scripts (``train.script``), whose packages only their project knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from shunter.plugins import entry_points
from shunter.specs.app import NO_IMAGE, AppDef
from shunter.specs.training import METADATA_KEY

#: What TorchX published last: Python, torch and torchx.
TORCHX_VERSION = "0.7.0"
TORCHX_IMAGE = f"ghcr.io/pytorch/torchx:{TORCHX_VERSION}"
ENTRY_POINT = "get_torchx_image"


def name_images(app: AppDef, setting: str | None) -> Iterator[str]:
    """Give an image to the roles that have none, in place; yields a warning for each built-in one.

    ``setting`` is the image of the configuration; None if it names none, ``<NONE>`` for none at all.
    """
    for role in app.roles:
        if role.image != NO_IMAGE:
            continue
        if setting:
            role.image = setting
        elif METADATA_KEY not in role.metadata:
            role.image = default_image()
            yield (
                f"role {role.name!r}: no image is given, so it runs in {role.image} "
                "(to choose another: --image, or image in [run] of shunter.toml)"
            )


def default_image() -> str:
    """Return the image of builtins where the configuration names none."""
    for point in entry_points("version"):
        if point.name == ENTRY_POINT:
            return str(point.call(TORCHX_VERSION))
    return TORCHX_IMAGE

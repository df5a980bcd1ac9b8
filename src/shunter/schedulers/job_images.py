"""Whether a job's images are in their registries, for backends whose hosts pull them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shunter.docker.image_reference import Reference, image_problem
from shunter.errors import ConfigError, ShunterError
from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import read_image
from shunter.schedulers.responses import Check
from shunter.specs.dryrun_info import AppDryRunInfo

#: A registry is asked once: the hosts may reach one that this machine does not.
PATIENCE = 0.0


def images_of(info: AppDryRunInfo[Any]) -> list[str]:
    """Return the images that must exist; for images that code is put into, their base images."""
    if info.app is None:
        return []
    built = [] if info.shipment is None else info.shipment.plan().get("images", [])
    bases = {item["image"]: item["base"] for item in built}
    images = [bases.get(role.image, role.image) for role in info.app.roles]
    return list(dict.fromkeys(image for image in images if image and not image_problem(image)))


def check_images(info: AppDryRunInfo[Any], platforms: Iterable[str] = ()) -> list[Check]:
    """Check that a job's images are there, for one of the platforms of the machines that will run them.

    Platforms are ``linux/amd64`` and the like; none if they are not known.
    """
    unique = sorted(set(platforms))
    return [_check_image(image, unique) for image in images_of(info)]


def _check_image(image: str, platforms: list[str]) -> Check:
    reference, problem = Reference.parse(image), None
    with RegistryClient(reference.registry, patience=PATIENCE) as client:
        choices: list[str | None] = [*platforms] or [None]
        for platform in choices:
            try:
                image_found = read_image(client, reference, platform)
            except ConfigError as error:
                problem = problem or error
            except ShunterError as error:
                return Check(f"image {image}", None, f"it was not checked: {error.message}")
            else:
                return Check(f"image {image}", True, f"its registry has it, for {image_found.platform}")
    assert problem is not None
    return Check(f"image {image}", False, problem.message, problem.hint)

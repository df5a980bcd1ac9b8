"""Checks of a Docker daemon, and of whether it could run a job: images, platforms, CPUs, memory, GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shunter.docker.command import DockerCommand
from shunter.docker.image_reference import Reference
from shunter.docker.images import inspect_image
from shunter.errors import ShunterError
from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import platforms_of
from shunter.schedulers.api import Check
from shunter.schedulers.job_images import images_of
from shunter.specs.app import Role
from shunter.specs.dryrun_info import AppDryRunInfo

#: Names of processors as the kernel has them, and as images have them.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_MIB = 1024 * 1024


def examine(docker: DockerCommand, cfg: Mapping[str, Any]) -> list[Check]:
    """Check the daemon, and the network of the options."""
    try:
        facts = docker.facts()
    except ShunterError as error:
        return [Check("daemon", False, error.message, error.hint)]
    platform = f"{facts.get('OSType')}/{_processor(facts)}"
    about = f"Docker {facts.get('ServerVersion')} at {docker.endpoint}, {platform}, by {docker.program}"
    has = f"{facts.get('NCPU')} CPUs, {facts.get('MemTotal', 0) // _MIB} MiB"
    gpus = "the NVIDIA runtime" if _has_gpus(facts) else "no NVIDIA runtime"
    checks = [Check("daemon", True, about), Check("machine", None, f"{has}, {gpus}")]
    network = str(cfg.get("network") or "")
    if network and network not in ("host", "none", "bridge"):
        checks.append(_network(docker, network))
    return checks


def examine_job(docker: DockerCommand, info: AppDryRunInfo[Any]) -> list[Check]:
    """Check whether the daemon could run the job's roles. Nothing is pulled or built."""
    app, cfg = info.app, info.cfg
    if app is None:
        return []
    try:
        facts = docker.facts()
        checks = [check for role in app.roles for check in _size(role, facts)]
        platform = str(cfg.get("platform") or f"{facts.get('OSType')}/{_processor(facts)}")
        return [*checks, *(_image(docker, image, platform) for image in images_of(info))]
    except ShunterError as error:
        return [Check("daemon", False, error.message, error.hint)]


def _image(docker: DockerCommand, image: str, platform: str) -> Check:
    found = inspect_image(docker, image)
    if found is not None:
        platforms = [f"{found.get('Os')}/{found.get('Architecture')}"]
        place = "the daemon has it"
    else:
        try:
            reference = Reference.parse(image)
            with RegistryClient(reference.registry) as client:
                platforms = platforms_of(client, reference)
        except ShunterError as error:
            hint = error.hint or "Check its name and tag, and your permission to pull it."
            return Check(
                f"image {image}", False, f"the daemon lacks it, and the registry says: {error.message}", hint
            )
        place = "it will be pulled"
    if platforms and not any(_runs(has, platform) for has in platforms):
        text = f"it is for {', '.join(platforms)}, and jobs run on {platform}"
        hint = "Build the image for that platform, or emulate the other: -cfg platform=OS/ARCHITECTURE."
        return Check(f"image {image}", False, text, hint)
    return Check(f"image {image}", True, f"{place}, for {platform}")


def _runs(has: str, wanted: str) -> bool:
    """Tell whether an image's platform is the wanted one; a variant counts only if both name it."""
    return all(one == other for one, other in zip(has.split("/"), wanted.split("/"), strict=False))


def _size(role: Role, facts: Mapping[str, Any]) -> Iterator[Check]:
    asks = role.resource
    problems = []
    if asks.cpu > facts.get("NCPU", asks.cpu):
        problems.append(f"{asks.cpu} CPUs of {facts['NCPU']}")
    memory = facts.get("MemTotal", 0) // _MIB
    if memory and asks.memMB > memory:
        problems.append(f"{asks.memMB} MiB of {memory}")
    if asks.gpu > 0 and not _has_gpus(facts):
        problems.append(f"{asks.gpu} GPUs, without the NVIDIA runtime")
    if problems:
        text = f"a replica asks for {', '.join(problems)}"
        yield Check(f"role {role.name}", False, text, "Ask for less, or use another machine.")
    else:
        yield Check(f"role {role.name}", True, "a replica fits on the daemon's machine")


def _network(docker: DockerCommand, name: str) -> Check:
    if docker.inspect("network", name):
        return Check("network", True, f"{name} exists")
    return Check("network", False, f"there is no network {name}", "`docker network ls` lists the networks.")


def _processor(facts: Mapping[str, Any]) -> str:
    name = str(facts.get("Architecture"))
    return _ARCHITECTURES.get(name, name)


def _has_gpus(facts: Mapping[str, Any]) -> bool:
    return "nvidia" in facts.get("Runtimes", {}) or bool(facts.get("CDISpecDirs"))

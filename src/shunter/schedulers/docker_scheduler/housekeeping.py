"""What is left in a daemon and belongs to no job known here: containers, networks, images with code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from shunter.docker import image_store
from shunter.docker.command import DockerCommand, remove_containers, remove_networks
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.docker.engine import Engine
from shunter.errors import BackendError
from shunter.paths import state_dir
from shunter.schedulers.docker_scheduler import labels
from shunter.schedulers.docker_scheduler.job import ContainerJob
from shunter.schedulers.responses import Leftover
from shunter.workspace.images.base_files import LOOKING_LABEL
from shunter.workspace.images.image_config import LABEL_FINGERPRINT

#: The longest time that a submission takes to make its network and its containers.
SUBMISSION_SECONDS = 3600.0
_CONTAINER, _NETWORK, _IMAGE = "container ", "network ", "image "


def is_of_daemon(item: Leftover) -> bool:
    """Tell whether this module has found a leftover."""
    return item.name.startswith((_CONTAINER, _NETWORK, _IMAGE))


def leftovers(engine: Engine, ended: Sequence[Leftover], older_than: float) -> list[Leftover]:
    """Return what belongs to no job, and unused images; ``ended`` are the jobs that are removed too.

    Raises:
        EngineUnavailableError: no daemon answers.
    """
    leaving = {item.app_id for item in ended if item.app_id}
    containers = _containers(engine)
    found = list(_without_job(engine, containers, max(older_than, SUBMISSION_SECONDS)))
    return found + list(_unused_images(engine, containers, leaving, older_than))


def remove(engine: Engine, items: Iterable[Leftover]) -> int:
    """Remove what `leftovers` found; returns how many bytes that frees.

    Raises:
        BackendError: something cannot be removed; the rest is.
    """
    docker = DockerCommand(engine.environ())
    freed, problems = 0, []
    # images last: their containers must be gone
    for item in sorted(items, key=lambda item: item.name.startswith(_IMAGE)):
        try:
            if item.name.startswith(_IMAGE):
                freed += item.size if image_store.remove(engine, item.id, force=True) else 0
            elif item.name.startswith(_NETWORK):
                remove_networks(docker, [item.id])
            else:
                remove_containers(docker, [item.id])
        except EngineUnavailableError:
            raise
        except BackendError as error:
            problems.append(f"{item.name}: {error.message}")
    if problems:
        raise BackendError(f"the Docker daemon cannot remove {'; '.join(problems)}", hint="Try again.")
    return freed


def _containers(engine: Engine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = engine.request("GET", "/containers/json", params={"all": True})
    return found


def _without_job(engine: Engine, containers: list[dict[str, Any]], limit: float) -> Iterator[Leftover]:
    """Find containers and networks of jobs that are not known, and containers made to look into images."""
    now = time.time()
    for container in containers:
        held, age = container["Labels"], now - container["Created"]
        name = f"{_CONTAINER}{container['Id'][:12]}"
        if LOOKING_LABEL in held and age >= limit:
            yield Leftover(container["Id"], name, age, shared=held[LOOKING_LABEL] != state_dir())
        elif _is_unknown(held) and age >= limit:
            shared = held.get(labels.OWNER) != labels.owner()
            yield Leftover(container["Id"], name, age, 0, held[labels.APP_ID], shared=shared)
    filters = {"label": [labels.APP_ID]}
    for network in engine.request("GET", "/networks", params={"filters": filters}):
        held, age = network["Labels"], now - _seconds(network.get("Created", ""))
        if _is_unknown(held) and age >= limit:
            shared = held.get(labels.OWNER) != labels.owner()
            name = f"{_NETWORK}{network['Name']}"
            yield Leftover(network["Id"], name, age, 0, held[labels.APP_ID], shared=shared)


def _is_unknown(held: dict[str, str]) -> bool:
    app_id = held.get(labels.APP_ID, "")
    return bool(app_id) and ContainerJob.find(app_id) is None


def _unused_images(
    engine: Engine, containers: list[dict[str, Any]], leaving: set[str], older_than: float
) -> Iterator[Leftover]:
    """Find images that hold a workspace and are used by no container, except those that are removed too."""
    filters = {"label": [LABEL_FINGERPRINT]}
    found: list[dict[str, Any]] = engine.request("GET", "/images/json", params={"filters": filters})
    used = {each["ImageID"] for each in containers if each["Labels"].get(labels.APP_ID) not in leaving}
    for image in found:
        # reproducible images do not say when they were made; the daemon knows when it tagged them
        details = image_store.inspect_image(engine, image["Id"])
        tagged = _seconds(((details or {}).get("Metadata") or {}).get("LastTagTime") or "")
        age = time.time() - (tagged or image["Created"])
        if image["Id"] not in used and age >= older_than:
            tags = [name for name in image.get("RepoTags") or [] if name != "<none>:<none>"]
            name = f"{_IMAGE}{(tags or [image['Id'][:19]])[0]}"
            size = max(0, image["Size"] - max(0, image.get("SharedSize") or 0))
            code = (image.get("Labels") or {}).get(LABEL_FINGERPRINT, "")
            yield Leftover(image["Id"], name, age, size, shared=True, fingerprint=code)


def _seconds(text: str) -> float:
    """Return a time of the daemon in seconds since the epoch; 0 for "never" (the year 1, or nothing)."""
    if not text or text.startswith("0001-"):
        return 0.0
    return datetime.fromisoformat(text).timestamp()

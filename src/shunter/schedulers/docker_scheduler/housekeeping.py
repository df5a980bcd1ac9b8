"""What is left in a daemon and belongs to no job known here: containers, networks, images with code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from shunter.docker import images
from shunter.docker.command import DockerCommand, remove_containers, remove_networks
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.errors import BackendError
from shunter.schedulers.docker_scheduler import labels
from shunter.schedulers.docker_scheduler.job import ContainerJob
from shunter.schedulers.responses import Leftover
from shunter.workspace.images.image_cache import ImageCache
from shunter.workspace.images.image_config import LABEL_ENVIRONMENT, LABEL_FINGERPRINT

#: The longest time that a submission takes to make its network and its containers.
SUBMISSION_SECONDS = 3600.0
_CONTAINER, _NETWORK, _IMAGE = "container ", "network ", "image "


def is_of_daemon(item: Leftover) -> bool:
    """Tell whether this module has found a leftover."""
    return item.name.startswith((_CONTAINER, _NETWORK, _IMAGE))


def leftovers(docker: DockerCommand, ended: Sequence[Leftover], older_than: float) -> list[Leftover]:
    """Return what belongs to no job, and unused images; ``ended`` are the jobs that are removed too.

    Raises:
        EngineUnavailableError: no daemon answers.
    """
    leaving = {item.app_id for item in ended if item.app_id}
    containers = _containers(docker)
    found = list(_without_job(docker, containers, max(older_than, SUBMISSION_SECONDS)))
    return found + list(_unused_images(docker, containers, leaving, older_than))


def remove(docker: DockerCommand, items: Iterable[Leftover]) -> int:
    """Remove what `leftovers` found; returns how many bytes that frees.

    Raises:
        BackendError: something cannot be removed; the rest is.
    """
    freed, problems = 0, []
    # images last: their containers must be gone
    for item in sorted(items, key=lambda item: item.name.startswith(_IMAGE)):
        try:
            if item.name.startswith(_IMAGE):
                freed += item.size if images.remove(docker, item.id) else 0
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


def _containers(docker: DockerCommand) -> list[dict[str, Any]]:
    ids = docker.run("container", "ls", "--all", "--quiet", "--no-trunc").split()
    return docker.inspect("container", *ids) if ids else []


def _without_job(docker: DockerCommand, containers: list[dict[str, Any]], limit: float) -> Iterator[Leftover]:
    """Find containers and networks of jobs that are not known."""
    ids = docker.ids("network", labels.APP_ID)
    networks = docker.inspect("network", *ids) if ids else []
    items = [(f"{_CONTAINER}{item['Id'][:12]}", item, item["Config"]["Labels"] or {}) for item in containers]
    items += [(f"{_NETWORK}{item['Name']}", item, item["Labels"]) for item in networks]
    for name, item, held in items:
        age = time.time() - _seconds(item["Created"])
        if _is_unknown(held) and age >= limit:
            shared = held.get(labels.OWNER) != labels.owner()
            yield Leftover(item["Id"], name, age, 0, held[labels.APP_ID], shared=shared)


def _is_unknown(held: dict[str, str]) -> bool:
    app_id = held.get(labels.APP_ID, "")
    return bool(app_id) and ContainerJob.find(app_id) is None


def _unused_images(
    docker: DockerCommand, containers: list[dict[str, Any]], leaving: set[str], older_than: float
) -> Iterator[Leftover]:
    """Find images with a workspace or an environment that no container uses, but for those removed too."""
    used = {
        item["Image"]
        for item in containers
        if (item["Config"]["Labels"] or {}).get(labels.APP_ID) not in leaving
    }
    ids: set[str] = set()
    made = ImageCache()
    for label in (LABEL_FINGERPRINT, LABEL_ENVIRONMENT):
        chosen = ["--filter", f"label={label}"]
        ids.update(docker.run("image", "ls", "--quiet", "--no-trunc", *chosen).split())
    for image in docker.inspect("image", *ids) if ids else ():
        # reproducible images do not say when they were made; the daemon knows when it tagged them
        tagged = _seconds((image.get("Metadata") or {}).get("LastTagTime") or "")
        tags = image.get("RepoTags") or [image["Id"][:19]]
        submitted = made.remembered_at("environment", tags[0])  # the last job with this environment
        age = time.time() - (submitted or tagged or _seconds(image["Created"]))
        if image["Id"] not in used and age >= older_than:
            code = (image["Config"].get("Labels") or {}).get(LABEL_FINGERPRINT, "")
            # by its name: images with code may be made over it, and keep its layer
            name = tags[0] if submitted else image["Id"]
            size = image["Size"]
            shared = not submitted
            yield Leftover(name, f"{_IMAGE}{tags[0]}", age, size, shared=shared, fingerprint=code)


def _seconds(text: str) -> float:
    """Return a time of the daemon in seconds since the epoch; 0 for "never" (the year 1, or nothing)."""
    if not text or text.startswith("0001-"):
        return 0.0
    return datetime.fromisoformat(text).timestamp()

"""Find and remove what old jobs have left behind: containers, networks, markers, results, images."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from shunter.docker import image_store
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.docker.engine import Engine
from shunter.errors import BackendError
from shunter.paths import state_dir
from shunter.schedulers.exec import directories
from shunter.schedulers.exec.container import inventory, labels
from shunter.schedulers.exec.container.inventory import parse_time, results_dir
from shunter.schedulers.exec.container.judge import judge
from shunter.schedulers.responses import Leftover
from shunter.workspace.images.base_files import LOOKING_LABEL

#: The longest time that a submission takes to make its network and its containers.
SUBMISSION_SECONDS = 3600.0


def leftovers(engine: Engine, older_than: float) -> list[Leftover]:
    """Return the jobs that ended more than this many seconds ago, what belongs to no job, and unused images.

    Raises:
        EngineUnavailableError: no daemon answers.
    """
    known = inventory.load_jobs(engine, size=True)
    found = list(_ended_jobs(known, older_than))
    found += _abandoned_looks(engine, older_than)
    found += _without_job(engine, set(known), older_than)
    found += list(_unused_images(engine, known, {item.app_id for item in found}, older_than))
    return found


def remove(engine: Engine, items: Iterable[Leftover]) -> int:
    """Remove what `leftovers` found; returns how many bytes that frees.

    Raises:
        BackendError: something cannot be removed; the rest is.
    """
    freed, problems = 0, []
    # images last: their containers must be gone
    for item in sorted(items, key=lambda item: item.name.startswith("image ")):
        try:
            if _remove(engine, item):
                freed += item.size
        except EngineUnavailableError:
            raise
        except BackendError as error:
            problems.append(f"{item.name}: {error.message}")
    if problems:
        raise BackendError(f"the Docker daemon cannot remove {'; '.join(problems)}", hint="Try again.")
    return freed


def _remove(engine: Engine, item: Leftover) -> bool:
    kind = item.name.partition(" ")[0]
    if kind == "image":
        return image_store.remove(engine, item.id, force=True)
    if kind == "network":
        return inventory.remove_network(engine, item.id)
    if kind == "container":
        inventory.remove_container(engine, item.id)
    else:
        inventory.remove_job(engine, item.id)
    return True


def _ended_jobs(known: dict[str, inventory.Job], older_than: float) -> Iterator[Leftover]:
    now = time.time()
    for app_id, job in known.items():
        judgement = judge(job)
        if not (job.is_our_own and judgement.is_over):
            continue
        age = now - (judgement.ended_at or job.submitted_at)
        if age >= older_than:
            count, directory = len(job.containers), results_dir(app_id)
            name = f"{count} container{'s' if count > 1 else ''} of local_docker"
            size = sum(c.size for c in job.containers) + directories.size_of([directory])
            results = directories.has_results(directory)
            yield Leftover(app_id, name, age, size, app_id, results, shared=True)


def _without_job(engine: Engine, known: set[str], older_than: float) -> Iterator[Leftover]:
    """Find networks, markers and results of jobs without containers."""
    now, limit = time.time(), max(older_than, SUBMISSION_SECONDS)
    for network in inventory.networks_with(engine, labels.APP_ID):
        age = now - parse_time(network.get("Created", "")) / 1e9
        app_id = network["Labels"][labels.APP_ID]
        if app_id not in known and age >= limit:
            yield Leftover(network["Id"], f"network {network['Name']}", age, 0, app_id, shared=True)
    ages = {marker.app_id: now - marker.at / 1e9 for marker in inventory.load_markers(engine)}
    for app_id, age in ages.items():
        if app_id not in known and age >= older_than:
            yield Leftover(app_id, "markers of local_docker", age, 0, app_id, shared=True)
    try:
        entries = list(os.scandir(results_dir("")))
    except OSError:
        return
    for entry in entries:
        age = now - entry.stat(follow_symlinks=False).st_mtime
        if entry.name not in known and age >= limit:
            size = directories.size_of([entry.path])
            yield Leftover(entry.name, f"results in {entry.path}", age, size, entry.name, True)


def _abandoned_looks(engine: Engine, older_than: float) -> Iterator[Leftover]:
    """Find containers made only to read files of an image, by processes that were then killed."""
    for container in inventory.containers_with(engine, LOOKING_LABEL):
        age = time.time() - container["Created"]
        if age >= max(older_than, SUBMISSION_SECONDS):
            shared = container["Labels"].get(LOOKING_LABEL) != state_dir()
            yield Leftover(container["Id"], f"container {container['Id'][:12]}", age, shared=shared)


def _unused_images(
    engine: Engine, known: dict[str, inventory.Job], going: set[str], older_than: float
) -> Iterator[Leftover]:
    """Find images that hold a workspace and are used by no container, except those that are removed too."""
    filters = labels.label_filter(labels.FINGERPRINT)
    found: list[dict[str, Any]] = engine.request("GET", "/images/json", params={"filters": filters})
    if not found:
        return
    leaving = {c.id for app_id in going if app_id in known for c in known[app_id].containers}
    containers = engine.request("GET", "/containers/json", params={"all": True})
    used = {container["ImageID"] for container in containers if container["Id"] not in leaving}
    for image in found:
        # reproducible images do not say when they were made; the daemon knows when it tagged them
        details = image_store.inspect_image(engine, image["Id"])
        tagged = parse_time(((details or {}).get("Metadata") or {}).get("LastTagTime") or "")
        age = time.time() - (tagged / 1e9 if tagged else image["Created"])
        if image["Id"] not in used and age >= older_than:
            tags = [name for name in image.get("RepoTags") or [] if name != "<none>:<none>"]
            name = f"image {(tags or [image['Id'][:19]])[0]}"
            size = max(0, image["Size"] - max(0, image.get("SharedSize") or 0))
            code = (image.get("Labels") or {}).get(labels.FINGERPRINT, "")
            yield Leftover(image["Id"], name, age, size, shared=True, fingerprint=code)

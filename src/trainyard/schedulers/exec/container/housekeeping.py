"""Removing what old jobs have left on the daemon: containers, networks, markers, images with their code."""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

from trainyard.docker import image_store
from trainyard.docker.engine import Engine, EngineUnavailableError
from trainyard.errors import BackendError
from trainyard.paths import state_dir
from trainyard.schedulers.exec import directories
from trainyard.schedulers.exec.container import inventory, labels, results
from trainyard.schedulers.exec.container.judge import judge, submitter_is_alive
from trainyard.schedulers.exec.container.remove import networks_of_jobs, remove_job, remove_network
from trainyard.schedulers.exec.container.times import parse_time
from trainyard.workspace.images.base_files import LOOKING_LABEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: A submission makes its network before its containers, and takes no longer than this for both.
SUBMISSION_SECONDS = 3600.0


class Garbage(NamedTuple):
    """Something that is not needed any more.

    ``app_id`` is the job's, "" for an image; ``path`` says what it is; ``size`` is in bytes, ``age`` in
    seconds; ``key`` is the id of the job, network or image; ``results`` tells whether some are kept;
    ``fingerprint`` names an image's code. ``shared`` is False of what this state directory alone has.
    """

    path: str
    app_id: str
    size: int
    age: float
    key: str
    results: bool = False
    fingerprint: str = ""
    shared: bool = True


def find(older_than_s: float, engine: Engine | None = None) -> list[Garbage]:
    """Return the jobs that ended more than this many seconds ago, leftovers, and images that none needs.

    Raises:
        EngineUnavailableError: no daemon answers.
    """
    with _engine(engine) as daemon:
        known = inventory.load_jobs(daemon, size=True)
        found = list(_ended_jobs(known, older_than_s))
        found += _abandoned_looks(daemon, older_than_s)
        found += _leftovers(daemon, set(known), older_than_s)
        found += list(_unused_images(daemon, known, {item.app_id for item in found}, older_than_s))
        return found


def collect(items: list[Garbage], engine: Engine | None = None) -> int:
    """Remove what `find` found; returns how many bytes that frees.

    Raises:
        BackendError: something cannot be removed; the rest is.
    """
    freed, problems = 0, []
    with _engine(engine) as daemon:
        # images last: their containers must have gone
        for item in sorted(items, key=lambda item: item.path.startswith("image ")):
            try:
                if _remove(daemon, item):
                    freed += item.size
            except EngineUnavailableError:
                raise
            except BackendError as error:
                problems.append(f"{item.path}: {error.message}")
    if problems:
        raise BackendError(f"the Docker daemon cannot remove {'; '.join(problems)}", hint="Try again.")
    return freed


@contextlib.contextmanager
def _engine(given: Engine | None) -> Iterator[Engine]:
    engine = given or Engine.from_env()
    try:
        yield engine
    finally:
        if given is None:
            engine.close()


def _remove(engine: Engine, item: Garbage) -> bool:
    kind = item.path.partition(" ")[0]
    if kind == "image":
        return image_store.remove(engine, item.key, force=True)
    if kind == "container":
        engine.request("DELETE", f"/containers/{item.key}", params={"force": True})
        return True
    if kind == "network":
        return remove_network(engine, item.key)
    remove_job(engine, item.key)
    results.remove(item.key)
    return True


def _ended_jobs(known: dict[str, inventory.Job], older_than_s: float) -> Iterator[Garbage]:
    now = time.time()
    for app_id, job in known.items():
        verdict = judge(job, submitter_is_alive)
        if not (job.is_our_own and verdict.is_over):
            continue
        age = now - (verdict.ended_at or job.submitted_at)
        if age >= older_than_s:
            count = len(job.containers)
            path = f"{count} container{'s' if count > 1 else ''} of local_docker"
            size = sum(c.size for c in job.containers)
            directory = results.directory_of(app_id)
            size += directories.size_of([directory])
            yield Garbage(path, app_id, size, age, app_id, directories.has_results(directory))


def _leftovers(engine: Engine, known: set[str], older_than_s: float) -> Iterator[Garbage]:
    """Find networks and markers of jobs without containers."""
    now, limit = time.time(), max(older_than_s, SUBMISSION_SECONDS)
    for network in networks_of_jobs(engine):
        age = now - parse_time(network.get("Created", "")) / 1e9
        app_id = network["Labels"][labels.APP_ID]
        if app_id not in known and age >= limit:
            yield Garbage(f"network {network['Name']}", app_id, 0, age, network["Id"])
    ages = {marker.app_id: now - marker.at / 1e9 for marker in inventory.load_markers(engine)}
    for app_id, age in ages.items():
        if app_id not in known and age >= older_than_s:
            yield Garbage("markers of local_docker", app_id, 0, age, app_id)
    for app_id, changed in results.without_job(known):
        if now - changed >= limit:
            path = results.directory_of(app_id)
            size = directories.size_of([path])
            yield Garbage(f"results in {path}", app_id, size, now - changed, app_id, True, shared=False)


def _abandoned_looks(engine: Engine, older_than_s: float) -> Iterator[Garbage]:
    """Find containers by which somebody who was killed looked into an image; they never ran."""
    filters = labels.label_filter(LOOKING_LABEL)
    for container in engine.request("GET", "/containers/json", params={"all": True, "filters": filters}):
        age = time.time() - container["Created"]
        if age >= max(older_than_s, SUBMISSION_SECONDS):
            shared = container["Labels"].get(LOOKING_LABEL) != state_dir()
            name = f"container {container['Id'][:12]}"
            yield Garbage(name, "", 0, age, container["Id"], shared=shared)


def _unused_images(
    engine: Engine, known: dict[str, inventory.Job], going: set[str], older_than_s: float
) -> Iterator[Garbage]:
    """Find images that hold a workspace and that no container uses, but for those that go too."""
    filters = labels.label_filter(labels.FINGERPRINT)
    found: list[dict[str, Any]] = engine.request("GET", "/images/json", params={"filters": filters})
    if not found:
        return
    leaving = {c.id for app_id in going if app_id in known for c in known[app_id].containers}
    containers = engine.request("GET", "/containers/json", params={"all": True})
    used = {container["ImageID"] for container in containers if container["Id"] not in leaving}
    for image in found:
        # made reproducible, an image does not say when it was made; the daemon knows when it got its name
        details = image_store.inspect_image(engine, image["Id"])
        tagged = parse_time(((details or {}).get("Metadata") or {}).get("LastTagTime") or "")
        age = time.time() - (tagged / 1e9 if tagged else image["Created"])
        if image["Id"] not in used and age >= older_than_s:
            names = [name for name in image.get("RepoTags") or [] if name != "<none>:<none>"]
            size = max(0, image["Size"] - max(0, image.get("SharedSize") or 0))
            code = (image.get("Labels") or {}).get(labels.FINGERPRINT, "")
            yield Garbage(
                f"image {(names or [image['Id'][:19]])[0]}", "", size, age, image["Id"], fingerprint=code
            )

"""Jobs as the daemon knows them: containers, and markers that say what was done to them."""

from __future__ import annotations

import json
import re

from trainyard.docker.engine import EngineError
from trainyard.schedulers.exec.container import labels
from trainyard.schedulers.exec.container.times import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from trainyard.docker.engine import Engine

_EXITED = re.compile(r"Exited \((\d+)\)")
_ACTIVE = frozenset(["running", "paused", "restarting"])

CANCELLED = "cancelled"
STOPPED = "stopped"
RETRY = "retry"
WAITING = "waiting"


class Container:
    """One replica's container. Times are nanoseconds since the epoch, 0 for never."""

    __slots__ = (
        "created",
        "error",
        "exit_code",
        "finished",
        "id",
        "image",
        "is_inspected",
        "labels",
        "name",
        "oom",
        "ports",
        "replica",
        "restarts",
        "role",
        "size",
        "started",
        "state",
    )

    def __init__(self, summary: dict[str, Any]) -> None:
        self.id: str = summary["Id"]
        self.name: str = (summary.get("Names") or ["/"])[0].lstrip("/")
        self.labels: dict[str, str] = summary.get("Labels") or {}
        self.role: str = self.labels.get(labels.ROLE) or self.labels.get(labels.OLD_ROLE, "")
        number = self.labels.get(labels.REPLICA) or self.labels.get(labels.OLD_REPLICA, "")
        self.replica = int(number) if number.isdecimal() else 0
        self.image: str = summary.get("ImageID", "")
        self.created: int = summary.get("Created", 0) * 1_000_000_000
        self.state: str = summary.get("State", "")
        found = _EXITED.match(summary.get("Status", ""))
        self.exit_code = int(found[1]) if found else 0
        self.ports = _ports_of_summary(summary.get("Ports") or [])
        self.size: int = summary.get("SizeRw") or 0
        self.oom = False
        self.error = ""
        self.restarts = 0
        self.started = self.finished = 0
        self.is_inspected = False

    @property
    def app_id(self) -> str:
        """Id of its job."""
        return self.labels.get(labels.APP_ID) or self.labels.get(labels.OLD_APP_ID, "")

    @property
    def is_active(self) -> bool:
        """Whether it runs, or the daemon is about to start it again."""
        return self.state in _ACTIVE

    @property
    def is_new(self) -> bool:
        """Whether it was never started."""
        return self.state == "created"

    def add_details(self, inspected: dict[str, Any]) -> None:
        """Take over what only an inspection tells."""
        state = inspected["State"]
        self.state = state["Status"]
        self.exit_code = state["ExitCode"]
        self.oom = state["OOMKilled"]
        self.error = state["Error"] if state["ExitCode"] or self.state == "created" else ""
        self.restarts = inspected.get("RestartCount", 0)
        self.started, self.finished = parse_time(state["StartedAt"]), parse_time(state["FinishedAt"])
        self.is_inspected = True


class Marker:
    """What was done to a job, said once and for all: see `trainyard.schedulers.exec.container.judge`."""

    __slots__ = ("app_id", "facts", "kind", "name")

    def __init__(self, volume: dict[str, Any]) -> None:
        held = volume.get("Labels") or {}
        self.name: str = volume["Name"]
        self.app_id: str = held.get(labels.APP_ID, "")
        self.kind: str = held.get(labels.MARKER, "")
        self.facts: dict[str, Any] = _json(held.get(labels.MARKER_FACTS, ""), {})

    @property
    def at(self) -> int:
        """When it was made, nanoseconds since the epoch."""
        return int(self.facts.get("at", 0))


class Job:
    """All that the daemon knows of one job."""

    def __init__(self, app_id: str, containers: list[Container]) -> None:
        self.app_id = app_id
        self.containers = sorted(containers, key=lambda container: (container.role, container.replica))
        self.markers: list[Marker] = []
        self.labels = self.containers[0].labels
        policy = _json(self.labels.get(labels.POLICY, ""), {})
        self.is_watched: bool = policy.get("watched", False)
        self.timeout: float | None = policy.get("timeout")
        self.grace: float = policy.get("grace", 10.0)
        self.fail_fast: bool = policy.get("fail_fast", False)
        #: Retry policy and number of retries, by role.
        self.retries: dict[str, tuple[str, int]] = {
            k: (v[0], v[1]) for k, v in policy.get("retries", {}).items()
        }
        self.layout: list[tuple[str, int]] = [
            (role, count) for role, count in _json(self.labels.get(labels.LAYOUT, ""), [])
        ] or _layout_of(self.containers)

    @property
    def name(self) -> str:
        """Name of the application."""
        return self.labels.get(labels.APP_NAME, "")

    @property
    def metadata(self) -> dict[str, str]:
        """The application's notes."""
        held: dict[str, str] = _json(self.labels.get(labels.METADATA, ""), {})
        return held

    @property
    def submitted_at(self) -> float:
        """When its containers were made, seconds since the epoch."""
        try:
            return float(self.labels.get(labels.SUBMITTED_AT, ""))
        except ValueError:
            return min(container.created for container in self.containers) / 1e9

    @property
    def is_our_own(self) -> bool:
        """Whether trainyard made it; else its predecessor did."""
        return labels.APP_ID in self.labels

    def by_replica(self) -> dict[tuple[str, int], Container]:
        """Return the containers by role and index."""
        return {(container.role, container.replica): container for container in self.containers}


def load_jobs(
    engine: Engine, app_ids: Iterable[str] | None = None, *, details: bool = True, size: bool = False
) -> dict[str, Job]:
    """Ask the daemon for jobs, by id.

    Containers are asked for first and markers then, so that what a marker explains is never seen without it.

    Args:
        engine: the daemon.
        app_ids: only these; None for all.
        details: inspect every container; otherwise only those whose state the list does not settle.
        size: find out how much disk the containers take, which takes its time.
    """
    wanted = None if app_ids is None else set(app_ids)
    if wanted is not None and not wanted:
        return {}
    one = next(iter(wanted)) if wanted is not None and len(wanted) == 1 else None
    filters = labels.label_filter(labels.OLD_APP_ID, one)
    params = {"all": True, "filters": filters, "size": size or None}
    groups: dict[str, list[Container]] = {}
    for summary in engine.request("GET", "/containers/json", params=params):
        container = Container(summary)
        if wanted is None or container.app_id in wanted:
            groups.setdefault(container.app_id, []).append(container)
    jobs = {app_id: Job(app_id, containers) for app_id, containers in groups.items()}
    if not jobs:
        return {}
    if details:
        _inspect(engine, jobs.values())
    _add_markers(engine, jobs, one)
    if not details:
        unclear = [job for job in jobs.values() if _is_unclear(job)]
        if unclear:
            _inspect(engine, unclear)
            _add_markers(engine, jobs, one)
    return jobs


def load_job(engine: Engine, app_id: str) -> Job | None:
    """Return one job; None if the daemon has nothing of it."""
    return load_jobs(engine, [app_id]).get(app_id)


def load_markers(engine: Engine, app_id: str | None = None) -> list[Marker]:
    """Return the markers of one job, or of all."""
    found = labels.label_filter(labels.MARKER)
    if app_id is not None:
        found["label"].append(f"{labels.APP_ID}={app_id}")
    volumes = engine.request("GET", "/volumes", params={"filters": found}).get("Volumes") or []
    return [Marker(volume) for volume in volumes]


def make_marker(engine: Engine, app_id: str, name: str, kind: str, facts: dict[str, Any]) -> None:
    """Say something of a job. Where the same was said before, that stands."""
    held = {labels.APP_ID: app_id, labels.MARKER: kind, labels.MARKER_FACTS: json.dumps(facts)}
    engine.request("POST", "/volumes/create", json={"Name": labels.marker_name(app_id, name), "Labels": held})


def _add_markers(engine: Engine, jobs: dict[str, Job], one: str | None) -> None:
    for job in jobs.values():
        job.markers = []
    for marker in load_markers(engine, one):
        if marker.app_id in jobs:
            jobs[marker.app_id].markers.append(marker)


def _inspect(engine: Engine, jobs: Iterable[Job]) -> None:
    """Ask for the details of the jobs' containers; those that have gone meanwhile are dropped."""
    from trainyard.schedulers.exec.container.parallel import for_all

    def inspect(container: Container) -> None:
        try:
            container.add_details(engine.request("GET", f"/containers/{container.id}/json"))
        except EngineError as error:
            if error.status != 404:
                raise

    chosen = list(jobs)
    for_all(inspect, [container for job in chosen for container in job.containers])
    for job in chosen:
        job.containers = [container for container in job.containers if container.is_inspected]


def _is_unclear(job: Job) -> bool:
    """Tell whether the list of containers does not settle the state of a job."""
    if job.markers or any(container.state in ("created", "dead", "removing") for container in job.containers):
        return True
    ended = [container for container in job.containers if not container.is_active]
    return job.is_watched and any(container.exit_code for container in ended)


def _layout_of(containers: list[Container]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for container in containers:
        counts[container.role] = max(counts.get(container.role, 0), container.replica + 1)
    return list(counts.items())


def _ports_of_summary(ports: list[dict[str, Any]]) -> dict[int, str]:
    """Return where ports of the container are found outside of it."""
    found: dict[int, str] = {}
    for port in ports:
        if port.get("PublicPort") and ":" not in (port.get("IP") or ""):
            host = "127.0.0.1" if port.get("IP") in ("", "0.0.0.0", None) else port["IP"]
            found.setdefault(port["PrivatePort"], f"{host}:{port['PublicPort']}")
    return found


def _json(text: str, default: Any) -> Any:
    try:
        value = json.loads(text) if text else default
    except ValueError:
        return default
    return value if isinstance(value, type(default)) else default

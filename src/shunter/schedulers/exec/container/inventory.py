"""Load and remove what the daemon keeps of jobs: containers, networks, and markers of what was done."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable
from typing import Any

from shunter.backoff import Backoff
from shunter.docker import networks
from shunter.docker.daemon_errors import EngineError, NoSubnetLeftError
from shunter.docker.engine import Engine
from shunter.docker.networks import Network
from shunter.errors import BackendError
from shunter.parallel import for_all
from shunter.paths import remove_tree, state_dir
from shunter.schedulers.exec.container import labels
from shunter.system.identity import Process, host_name

_EXITED = re.compile(r"Exited \((\d+)\)")
_ACTIVE = frozenset(["running", "paused", "restarting"])
#: How long another client may take to remove a container that we are to remove.
REMOVAL_SECONDS = 60.0

#: How long a submission from another machine, where no process can be checked, is assumed to be under way.
LONGEST_REMOTE_SUBMISSION = 3600.0

# Kinds of markers; what each says is explained in `shunter.schedulers.exec.container.judge`.
CANCELLED = "cancelled"
STOPPED = "stopped"
RETRY = "retry"
WAITING = "waiting"
FINAL = "final"
HUNG = "hung"


class Container:
    """One replica's container. Times are nanoseconds since the epoch, 0 for never."""

    __slots__ = (
        "created",
        "error",
        "exit_code",
        "finished",
        "gpus",
        "id",
        "image",
        "is_inspected",
        "labels",
        "memory_mb",
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
        #: Where its ports are found outside of it, by their numbers inside.
        self.ports: dict[int, str] = {}
        for port in summary.get("Ports") or []:
            if port.get("PublicPort") and ":" not in (port.get("IP") or ""):
                host = "127.0.0.1" if port.get("IP") in ("", "0.0.0.0", None) else port["IP"]
                self.ports.setdefault(port["PrivatePort"], f"{host}:{port['PublicPort']}")
        self.size: int = summary.get("SizeRw") or 0
        self.oom = False
        self.memory_mb = 0
        #: Numbers or ids of the GPUs that it was given, as in CUDA_VISIBLE_DEVICES; None for all.
        self.gpus: str | None = ""
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
        """Whether it runs, or the daemon is about to restart it."""
        return self.state in _ACTIVE

    @property
    def is_new(self) -> bool:
        """Whether it was never started."""
        return self.state == "created"

    @property
    def named_ports(self) -> dict[str, str]:
        """Where its ports are found outside of it, by name, or by number if they have no name."""
        names = {number: name for name, number in json.loads(self.labels.get(labels.PORTS) or "{}").items()}
        return {names.get(number, str(number)): place for number, place in sorted(self.ports.items())}

    def add_details(self, inspected: dict[str, Any]) -> None:
        """Add what only an inspection shows."""
        state = inspected["State"]
        self.state = state["Status"]
        self.exit_code = state["ExitCode"]
        self.oom = state["OOMKilled"]
        self.error = state["Error"] if state["ExitCode"] or self.state == "created" else ""
        self.restarts = inspected.get("RestartCount", 0)
        self.memory_mb = (inspected.get("HostConfig", {}).get("Memory") or 0) >> 20
        self.gpus = gpus_of(inspected.get("HostConfig", {}).get("DeviceRequests") or [])
        self.started, self.finished = parse_time(state["StartedAt"]), parse_time(state["FinishedAt"])
        self.is_inspected = True


class Marker:
    """What was done to a job, recorded once: a volume without content, since the daemon keeps its labels."""

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
        #: Rules for retries by class of failure, as fields of `RetryRule`; if any, the watcher restarts.
        self.rules: dict[str, dict[str, int]] = policy.get("rules", {})
        self.hang_timeout: float | None = policy.get("hang_timeout")
        self.stops_on_hang: bool = policy.get("on_hang") == "stop"
        counts: dict[str, int] = {}
        for container in self.containers:
            counts[container.role] = max(counts.get(container.role, 0), container.replica + 1)
        #: Roles and their numbers of replicas.
        self.layout: list[tuple[str, int]] = [
            (role, count) for role, count in _json(self.labels.get(labels.LAYOUT, ""), [])
        ] or list(counts.items())

    @property
    def name(self) -> str:
        """Name of the application."""
        return self.labels.get(labels.APP_NAME, "")

    @property
    def metadata(self) -> dict[str, str]:
        """The application's metadata."""
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
        """Whether shunter submitted it; otherwise TorchX did."""
        return labels.APP_ID in self.labels

    @property
    def was_submitted_here(self) -> bool:
        """Whether it was submitted from this machine."""
        return self.labels.get(labels.HOST) == host_name()

    @property
    def submitter_is_alive(self) -> bool:
        """Whether the process that submits it may still run; a guess if that is on another machine."""
        if not self.was_submitted_here:
            return time.time() - self.submitted_at < LONGEST_REMOTE_SUBMISSION
        process = Process.parse(self.labels.get(labels.SUBMITTER, ""))
        return process is not None and process.is_alive()

    def places(self) -> list[tuple[str, int]]:
        """Return role and index of all replicas, in order."""
        return [(role, k) for role, count in self.layout for k in range(count)]

    def by_replica(self) -> dict[tuple[str, int], Container]:
        """Return the containers by role and index."""
        return {(container.role, container.replica): container for container in self.containers}


def gpus_of(requests: list[dict[str, Any]]) -> str | None:
    """Return which GPUs a container was given, as in CUDA_VISIBLE_DEVICES; None for all."""
    chosen: list[str] = []
    for each in requests:
        if not any("gpu" in capabilities for capabilities in each.get("Capabilities") or []):
            continue
        if each.get("Count") == -1:
            return None
        chosen += each.get("DeviceIDs") or map(str, range(each.get("Count") or 0))
    return ",".join(chosen)


def _json(text: str, default: Any) -> Any:
    try:
        value = json.loads(text) if text else default
    except ValueError:
        return default
    return value if isinstance(value, type(default)) else default


# ---- reading

#: How long after the end of a container the daemon may note that the kernel killed it for lack of memory:
#: both reach the daemon as events of containerd, in either order.
MEMORY_EVENT_SECONDS = 1.0
#: How long after its end a busy daemon may first show a container as ended.
_JUST_ENDED_SECONDS = 15.0
_KILLED = 137


def containers_with(
    engine: Engine, label: str, value: str | None = None, **params: Any
) -> list[dict[str, Any]]:
    """Return the daemon's summaries of the containers that have a label, stopped ones too."""
    params = {"all": True, "filters": labels.label_filter(label, value), **params}
    found: list[dict[str, Any]] = engine.request("GET", "/containers/json", params=params)
    return found


def networks_with(engine: Engine, label: str, value: str | None = None) -> list[dict[str, Any]]:
    """Return the networks that have a label."""
    params = {"filters": labels.label_filter(label, value)}
    found: list[dict[str, Any]] = engine.request("GET", "/networks", params=params)
    return found


def load_jobs(
    engine: Engine, app_ids: Iterable[str] | None = None, *, details: bool = True, size: bool = False
) -> dict[str, Job]:
    """Ask the daemon for jobs, by id.

    Containers are requested before markers, so that an effect is never seen without its marker.

    Args:
        engine: the daemon.
        app_ids: only these; None for all.
        details: inspect every container; otherwise only those whose state is not clear from the list.
        size: find out how much disk the containers use, which takes time.
    """
    wanted = None if app_ids is None else set(app_ids)
    if wanted == set():
        return {}
    one = next(iter(wanted)) if wanted and len(wanted) == 1 else None
    groups: dict[str, list[Container]] = {}
    for summary in containers_with(engine, labels.OLD_APP_ID, one, size=size or None):
        container = Container(summary)
        if wanted is None or container.app_id in wanted:
            groups.setdefault(container.app_id, []).append(container)
    jobs = {app_id: Job(app_id, containers) for app_id, containers in groups.items()}
    if not jobs:
        return {}
    if details:
        _inspect(engine, list(jobs.values()))
    _add_markers(engine, jobs, one)
    if not details:
        unclear = [job for job in jobs.values() if _is_unclear(job)]
        if unclear:
            _inspect(engine, unclear)
            _add_markers(engine, jobs, one)
    _await_memory_events(engine, list(jobs.values()))
    return jobs


def load_job(engine: Engine, app_id: str) -> Job | None:
    """Return one job, or None if the daemon does not know it."""
    return load_jobs(engine, [app_id]).get(app_id)


def load_markers(engine: Engine, app_id: str | None = None) -> list[Marker]:
    """Return the markers of one job, or of all."""
    filters = labels.label_filter(labels.MARKER)
    if app_id is not None:
        filters["label"].append(f"{labels.APP_ID}={app_id}")
    volumes = engine.request("GET", "/volumes", params={"filters": filters}).get("Volumes") or []
    return [Marker(volume) for volume in volumes]


def make_marker(engine: Engine, app_id: str, name: str, facts: dict[str, Any]) -> None:
    """Record what was done to a job. An existing marker of the same name stays as it is.

    Its name is its kind, which a hyphen and a number may follow; ``facts`` is what it says.
    """
    kind = name.partition("-")[0]
    held = {labels.APP_ID: app_id, labels.MARKER: kind, labels.MARKER_FACTS: json.dumps(facts)}
    engine.request("POST", "/volumes/create", json={"Name": f"{app_id}.{name}", "Labels": held})


def _add_markers(engine: Engine, jobs: dict[str, Job], one: str | None) -> None:
    for job in jobs.values():
        job.markers = []
    for marker in load_markers(engine, one):
        if marker.app_id in jobs:
            jobs[marker.app_id].markers.append(marker)


def _inspect(engine: Engine, jobs: list[Job]) -> None:
    """Ask for the details of the jobs' containers; those that are gone by now are dropped."""

    def inspect(container: Container) -> None:
        try:
            container.add_details(engine.request("GET", f"/containers/{container.id}/json"))
        except EngineError as error:
            if error.status != 404:
                raise

    for_all(inspect, [container for job in jobs for container in job.containers])
    for job in jobs:
        job.containers = [container for container in job.containers if container.is_inspected]


def _await_memory_events(engine: Engine, jobs: list[Job]) -> None:
    """Inspect again what was killed just now under a memory limit, until the daemon knows why."""
    backoff = Backoff(0.05, 0.2, jitter=0, limit=MEMORY_EVENT_SECONDS)
    while True:
        unsure = [job for job in jobs if _may_lack_memory_event(job)]
        if not unsure or not backoff.pause():
            return
        _inspect(engine, unsure)


def _may_lack_memory_event(job: Job) -> bool:
    if any(marker.kind in (CANCELLED, STOPPED) for marker in job.markers):
        return False  # it was killed by us
    since = time.time_ns() - int(_JUST_ENDED_SECONDS * 1e9)
    return any(
        container.state == "exited"
        and container.exit_code == _KILLED
        and container.memory_mb > 0
        and not container.oom
        and container.finished > since
        for container in job.containers
    )


def _is_unclear(job: Job) -> bool:
    """Tell whether the list of containers does not settle the state of a job."""
    if job.markers or any(container.state in ("created", "dead", "removing") for container in job.containers):
        return True
    ended = [container for container in job.containers if not container.is_active]
    return job.is_watched and any(container.exit_code for container in ended)


# ---- networks, and removing


def remove_job(engine: Engine, app_id: str) -> None:
    """Remove a job's containers, running or not, its network, its markers, and its results on this machine.

    Raises:
        BackendError: something cannot be removed.
    """
    containers = containers_with(engine, labels.OLD_APP_ID, app_id)
    for_all(lambda container: remove_container(engine, container["Id"]), containers)
    remove_networks(engine, app_id)
    for marker in load_markers(engine, app_id):
        try:
            engine.request("DELETE", f"/volumes/{marker.name}")
        except EngineError as error:
            if error.status not in (404, 409):
                raise
    remove_results(app_id)


def remove_container(engine: Engine, container_id: str) -> None:
    """Kill and remove a container with its anonymous volumes; it is gone when this returns."""
    backoff = Backoff(0.1, jitter=0, limit=REMOVAL_SECONDS)
    while True:
        try:
            engine.request("DELETE", f"/containers/{container_id}", params={"force": True, "v": True})
        except EngineError as error:
            if error.status == 404:
                return
            if error.status != 409 or not backoff.pause():  # 409: another client is removing it
                raise
        else:
            return


def make_network(engine: Engine, app_id: str, containers: int) -> Network:
    """Make the network of a job of several containers, which has the job's name.

    Raises:
        NoSubnetLeftError: no addresses are left for it.
        EngineError: the daemon refuses it for another reason; 409 if there is one of this name.
    """
    held = {labels.APP_ID: app_id}
    body = {"Name": app_id, "Driver": "bridge", "CheckDuplicate": True, "Labels": held}
    try:
        return networks.make_network(engine, body, containers)
    except NoSubnetLeftError:
        # Networks of jobs whose watcher was killed at the very end may hold some.
        if not remove_ended_networks(engine):
            raise
        return networks.make_network(engine, body, containers)


def remove_networks(engine: Engine, app_id: str) -> None:
    """Remove the network that was made for a job."""
    for network in networks_with(engine, labels.APP_ID, app_id):
        remove_network(engine, network["Id"])


def remove_network(engine: Engine, network_id: str) -> bool:
    """Remove a network; returns False if containers still use it."""
    try:
        engine.request("DELETE", f"/networks/{network_id}")
    except EngineError as error:
        if error.status in (403, 409):
            return False
        if error.status != 404:
            raise
    return True


def remove_ended_networks(engine: Engine) -> bool:
    """Remove the networks of jobs that have ended; returns whether there were any."""
    active = {
        app_id
        for app_id, job in load_jobs(engine, details=False).items()
        if any(container.is_active or container.is_new for container in job.containers)
    }
    idle = [n for n in networks_with(engine, labels.APP_ID) if n["Labels"].get(labels.APP_ID) not in active]
    removed = [remove_network(engine, network["Id"]) for network in idle]
    return any(removed)


# ---- results on this machine


def results_dir(app_id: str) -> str:
    """Return the directory that holds a directory ROLE-K for the results of each replica of a job."""
    return os.path.join(state_dir(), "docker", app_id)


def usage_path(app_id: str) -> str:
    """Return the file with what the replicas of a job have used over time (`exec.usage_file`)."""
    return os.path.join(results_dir(app_id), "usage")


def remove_results(app_id: str) -> None:
    """Remove a job's results from this machine.

    Raises:
        BackendError: they cannot be removed.
    """
    path = results_dir(app_id)
    if os.path.basename(path) != app_id or app_id in ("", ".", ".."):
        return
    try:
        remove_tree(path)
    except OSError as error:
        raise BackendError(
            f"cannot remove {error.filename or path}: {error.strerror or error}",
            hint="A container's user wrote it. Remove it as root, and delete the job again.",
        ) from error


# ---- times as the daemon writes them, to the nanosecond

_SECOND = 1_000_000_000


def parse_time(text: str) -> int:
    """Return nanoseconds since the epoch of an RFC 3339 text; 0 for "never" (the year 1, or nothing)."""
    if not text or text.startswith("0001-"):
        return 0
    year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
    seconds = _days(year, month, day) * 86400
    seconds += int(text[11:13]) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
    rest = text[19:]
    digits = ""
    if rest.startswith("."):
        digits = rest[1:].rstrip("Z").partition("+")[0].partition("-")[0]
        rest = rest[1 + len(digits) :]
    if rest and rest[0] in "+-":
        hours, _, minutes = rest[1:].partition(":")
        offset = int(hours) * 3600 + int(minutes or 0) * 60
        seconds += -offset if rest[0] == "+" else offset
    return seconds * _SECOND + int((digits + "000000000")[:9])


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 in the Gregorian calendar."""
    year -= month <= 2
    era_days = year * 365 + year // 4 - year // 100 + year // 400
    return era_days + (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1 - 719468


def format_time(time_ns: int) -> str:
    """Return a time as ``since`` and ``until`` of the API take it."""
    return f"{time_ns // _SECOND}.{time_ns % _SECOND:09d}"

"""Submitting a job of containers that outlive this process: either all of them start, or none is left.

Containers whose starter stays with them are in `shunter.schedulers.exec.container.attached`.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter._toolkit import stack_dump
from shunter.docker.daemon_errors import EngineError, NoSubnetLeftError
from shunter.docker.engine import Engine
from shunter.docker.image_store import inspect_image, pull_image
from shunter.errors import BackendError
from shunter.parallel import for_all
from shunter.paths import make_private_dir, state_error
from shunter.progress import Silent
from shunter.redaction import Redactor
from shunter.schedulers.exec import outbox
from shunter.schedulers.exec.container import container_hangs, inventory, labels
from shunter.schedulers.exec.container.daemon_refusals import refused
from shunter.schedulers.exec.container.watcher import ensure_watcher, sample_later
from shunter.system.identity import host_name, myself

#: Prefix of SageMaker's host names.
HOST_PREFIX = "algo-"
#: How long the machine may take to set up a container and start it, which is long on a loaded one.
START_SECONDS = 300.0
#: Where results are, in words, if not on this machine.
IN_CONTAINERS = "its containers, in /opt/ml, until it is deleted (docker cp)"


# ---- parts of a container's definition


def bind(source: str, target: str, *, read_only: bool = False) -> dict[str, Any]:
    """Return the mount of a file or directory of the daemon's machine."""
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def gpus(count: int = -1, ids: Sequence[str] = ()) -> dict[str, Any]:
    """Return the request for GPUs: those with these ids, or a number of them, or all (-1)."""
    chosen = {"Count": 0, "DeviceIDs": list(ids)} if ids else {"Count": count}
    return {"Driver": "", "Capabilities": [["gpu", "compute", "utility"]], **chosen}


def on_network(network: str, aliases: list[str], address: str = "") -> dict[str, Any]:
    """Return the network that a container is on, its names there, and its address if that is chosen."""
    endpoint: dict[str, Any] = {"Aliases": aliases}
    if address:
        endpoint["IPAMConfig"] = {"IPv4Address": address}
    return {"EndpointsConfig": {network: endpoint}}


# ---- the request


@dataclass
class ReplicaRequest:
    """One container. ``body`` is the API's, without what the other fields hold."""

    name: str
    role: str
    replica: int
    image: str
    env: dict[str, str]
    body: dict[str, Any]
    #: The script that its program reads, from the working directory; "" if that is not known.
    script: str = ""

    def full_body(self, more_labels: dict[str, str]) -> dict[str, Any]:
        """Return what is sent to the daemon."""
        return {
            **self.body,
            "Image": self.image,
            "Env": [f"{name}={value}" for name, value in self.env.items()],
            "Labels": {**self.body["Labels"], **more_labels},
        }


@dataclass
class DockerRequest:
    """All that the daemon is asked for.

    ``network`` is the name of the network to be made for the job, which is the job's id, or "" for none.
    """

    app_id: str
    containers: list[ReplicaRequest]
    network: str = ""
    platform: str | None = None
    watched: bool = False
    #: Directories of this machine that results are sent to, to be made if they do not exist.
    folders: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    #: The targets of notifications, the secret that signs them, and the job's handle.
    notify: list[str] = field(default_factory=list)
    notify_secret: str = ""
    handle: str = ""
    #: Whether hangs are detected, so that Python processes should be able to write their stacks.
    writes_stacks: bool = False

    def __str__(self) -> str:
        return json.dumps(self.shown(), indent=2)

    def shown(self) -> dict[str, Any]:
        """Return the request as JSON values for people, secrets masked."""
        redactor = Redactor()
        containers = []
        for container in self.containers:
            shown = redactor.json({**vars(container), "env": {}})
            shown["env"] = {name: redactor.named(name, value) for name, value in container.env.items()}
            shown["body"]["Labels"] = {
                name: _shown_label(redactor, value) for name, value in container.body["Labels"].items()
            }
            containers.append(shown)
        told = [redactor.text(target) for target in self.notify]
        secret = redactor.named("notify_secret", self.notify_secret) if self.notify_secret else ""
        return {**vars(self), "containers": containers, "notify": told, "notify_secret": secret}

    def place_hosts(self, addresses: Iterator[str]) -> None:
        """Give the containers addresses in their network, and pass these to the hosts of a training job.

        The daemon resolves the name of a container only while it runs; the names added here always resolve.
        """
        known: dict[str, list[str]] = {}
        for container, address in zip(self.containers, addresses, strict=False):
            endpoint = container.body["NetworkingConfig"]["EndpointsConfig"][self.network]
            endpoint["IPAMConfig"] = {"IPv4Address": address}
            hosts = known.setdefault(container.role, [])
            hosts += [f"{alias}:{address}" for alias in endpoint["Aliases"] if alias.startswith(HOST_PREFIX)]
        for container in self.containers:
            if known[container.role]:
                container.body["HostConfig"]["ExtraHosts"] = known[container.role]


def _shown_label(redactor: Any, value: str) -> str:
    try:
        return json.dumps(redactor.json(json.loads(value)))
    except ValueError:
        return str(redactor.text(value))


class AlreadySubmitted(Exception):
    """A job with this id already exists."""


def submit(engine: Engine, request: DockerRequest) -> str:
    """Make and start a job's containers; returns its id. What was made is removed again if it fails.

    Submitting a request once more does nothing. If no addresses are left for the job's network, its
    containers are made, and the watcher starts them when there are.

    Raises:
        BackendError: the daemon refused; the message says what and why.
        EngineUnavailableError: the daemon does not answer.
    """
    for warning in request.warnings:
        warnings.warn(warning, RuntimeWarning, stacklevel=4)
    submission = _Submission(engine, request)
    try:
        submission.make()
        if request.watched:
            ensure_watcher(engine, request.app_id)
        if not submission.why_waiting:  # else the watcher starts them
            submission.start()
        if not request.watched:
            sample_later(engine, request.app_id)
    except AlreadySubmitted:
        return request.app_id
    except BaseException:
        submission.undo()
        raise
    return request.app_id


class _Submission:
    """Makes, starts and removes the containers of a request.

    Attributes:
        why_waiting: why there is no network for them yet; "" if they need not wait.
    """

    def __init__(self, engine: Engine, request: DockerRequest) -> None:
        self.engine = engine
        self.request = request
        self.why_waiting = ""
        self._results_dir = inventory.results_dir(request.app_id)
        self._ids: dict[str, str] = {}
        self._working_dirs: dict[str, str] = {}
        self._python_paths: dict[str, str] = {}
        self._lock = threading.Lock()
        self._labels: dict[str, str] = {}
        self._has_begun = False

    def make(self) -> None:
        """Make directories, network and containers."""
        app_id, containers = self.request.app_id, self.request.containers
        if inventory.containers_with(self.engine, labels.APP_ID, app_id):
            raise AlreadySubmitted
        for_all(self._ensure_image, dict.fromkeys(container.image for container in containers))
        self._has_begun = True
        self._make_directories()
        if self.request.notify:
            self._write_outbox()
        self._labels = {
            labels.SUBMITTER: str(myself()),
            labels.HOST: host_name(),
            labels.SUBMITTED_AT: repr(time.time()),
        }
        if self.request.network:
            for_all(lambda _: self._make_network(), [None], shielded=True)
        for_all(self._make_container, containers, shielded=True)
        if self.why_waiting:
            facts = {"reason": self.why_waiting, "at": time.time_ns()}
            inventory.make_marker(self.engine, app_id, inventory.WAITING, facts)

    def _ensure_image(self, image: str) -> None:
        found = ensure_image(self.engine, image, self.request.platform)
        config = found.get("Config") or {}
        values = dict(pair.partition("=")[::2] for pair in config.get("Env") or ())
        self._python_paths[image] = values.get("PYTHONPATH", "")
        self._working_dirs[image] = config.get("WorkingDir") or "/"

    def _write_outbox(self) -> None:
        """Record the targets of notifications."""
        make_private_dir(self._results_dir)
        try:
            outbox.prepare(
                self._results_dir, self.request.handle, self.request.notify, self.request.notify_secret
            )
        except OSError as error:
            raise state_error("write the targets of notifications to", self._results_dir, error) from error

    def _make_directories(self) -> None:
        """Make the directories that containers write results to.

        Any user in a container may write to those in the state directory; other users of this machine cannot.
        """
        for folder in self.request.folders:
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise BackendError(
                    f"cannot make the folder {folder} for the job's results: {error.strerror or error}"
                ) from error
        mounts = [mount for c in self.request.containers for mount in c.body["HostConfig"]["Mounts"]]
        own = [mount["Source"] for mount in mounts if self._holds_results(mount)]
        if not own:
            return
        make_private_dir(self._results_dir)
        try:
            for source in own:
                os.makedirs(source, exist_ok=True)
                os.chmod(source, 0o777)
        except OSError as error:
            raise state_error("make the directory of the job's results", self._results_dir, error) from error

    def _holds_results(self, mount: dict[str, Any]) -> bool:
        return str(mount["Source"]).startswith(self._results_dir + os.sep)

    def _leave_results_in_containers(self) -> None:
        """Mount no directories for results: the daemon cannot see our files, for example from a container."""
        for container in self.request.containers:
            config = container.body["HostConfig"]
            config["Mounts"] = [mount for mount in config["Mounts"] if not self._holds_results(mount)]
            if container.body["Labels"].get(labels.RESULTS, "").startswith(self._results_dir):
                container.body["Labels"][labels.RESULTS] = IN_CONTAINERS
        inventory.remove_results(self.request.app_id)
        if self.request.notify:
            self._write_outbox()

    def _make_network(self) -> None:
        try:
            network = inventory.make_network(self.engine, self.request.app_id, len(self.request.containers))
            self.request.place_hosts(network.addresses())
        except NoSubnetLeftError as error:
            self.why_waiting = error.message
        except EngineError as error:
            if error.status == 409:
                raise AlreadySubmitted from error
            raise refused(error, "make the job's network") from error

    def _make_container(self, replica: ReplicaRequest) -> None:
        if self.request.writes_stacks:
            found = replica.env.get("PYTHONPATH") or self._python_paths[replica.image]
            replica.env["PYTHONPATH"] = ":".join(filter(None, [container_hangs.PYTHON_DIR, found]))
            replica.env[stack_dump.VARIABLE] = str(int(stack_dump.SIGNAL))
        params = {"name": replica.name, "platform": self.request.platform}
        body = replica.full_body(self._labels)
        try:
            made = self.engine.request("POST", "/containers/create", params=params, json=body)
        except EngineError as error:
            if error.status == 409:
                raise AlreadySubmitted from error
            if self._results_dir + os.sep in error.message:
                with self._lock:
                    self._leave_results_in_containers()
                self._make_container(replica)
                return
            raise refused(error, "make the container of", replica) from error
        with self._lock:
            self._ids[replica.name] = made["Id"]
        self._check_script(replica)
        if self.request.writes_stacks:
            self.engine.request(
                "PUT",
                f"/containers/{made['Id']}/archive",
                params={"path": "/"},
                data=container_hangs.handler_archive(),
                headers={"Content-Type": "application/x-tar"},
            )

    def _check_script(self, replica: ReplicaRequest) -> None:
        """Refuse a container whose script is missing, before it is started, unless a mount may hold it."""
        if not replica.script or replica.replica:
            return
        path = os.path.normpath(os.path.join(self._working_dirs[replica.image], replica.script))
        targets = [mount["Target"].rstrip("/") + "/" for mount in replica.body["HostConfig"]["Mounts"]]
        if any(path.startswith(target) for target in targets):
            return
        try:
            place = f"/containers/{self._ids[replica.name]}/archive"
            self.engine.request("HEAD", place, params={"path": path})
        except EngineError as error:
            if error.status == 404:
                raise BackendError(
                    f"cannot start {replica.role}/{replica.replica}: there is no script {path} in its image",
                    hint="Name a script of the workspace, relative to its top, or one that the image has.",
                ) from error

    def start(self) -> None:
        """Start the containers: the first, whose name the others look up, and then the others."""
        first, *others = self.request.containers
        for_all(self._start, [first], shielded=True)
        for_all(self._start, others, shielded=True)

    def _start(self, replica: ReplicaRequest) -> None:
        try:
            self.engine.request("POST", f"/containers/{self._ids[replica.name]}/start", timeout=START_SECONDS)
        except EngineError as error:
            raise refused(error, "start", replica) from error

    def undo(self) -> None:
        """Remove everything again. `gc` finds later what cannot be removed now."""
        if not self._has_begun:
            return
        try:
            inventory.remove_job(self.engine, self.request.app_id)
        except BackendError:
            warnings.warn(
                f"parts of {self.request.app_id} may be left on the Docker daemon; "
                "`shunter gc --older-than 0s` finds it",
                RuntimeWarning,
                stacklevel=2,
            )


def ensure_image(engine: Engine, image: str, platform: str | None = None) -> dict[str, Any]:
    """Pull an image if the daemon does not have it; returns what the daemon knows of it.

    Raises:
        BackendError: it cannot be pulled.
        EngineUnavailableError: no daemon answers.
    """
    found = inspect_image(engine, image)
    if found is not None:
        return found
    if image.startswith("sha256:"):
        raise BackendError(
            f"the daemon has no image {image}",
            hint="Images named by their id cannot be pulled. Submit the job again.",
        )
    return pull_image(engine, image, Silent(), platform)

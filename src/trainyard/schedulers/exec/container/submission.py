"""Starting a job: all of it, or nothing that stays."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from dataclasses import dataclass, field

from trainyard.docker import image_store
from trainyard.docker.engine import EngineError, NoSubnetLeftError
from trainyard.errors import BackendError
from trainyard.schedulers.exec.container import inventory, labels, refusals, results
from trainyard.schedulers.exec.container.parallel import for_all
from trainyard.schedulers.exec.container.remove import remove_ended_networks, remove_job
from trainyard.system.identity import host_name, myself

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from trainyard.docker.engine import Engine
    from trainyard.docker.networks import Network

#: SageMaker's names of hosts begin with it.
HOST_PREFIX = "algo-"
#: Starting takes as long as the machine takes to set a container up, which a loaded one may do slowly.
START_SECONDS = 300.0


@dataclass
class ReplicaRequest:
    """One container. ``body`` is the API's, without what stands beside it here."""

    name: str
    role: str
    replica: int
    image: str
    env: dict[str, str]
    body: dict[str, Any]
    #: The script that its program reads, from the working directory; "" if nobody can tell.
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
    """Everything that the daemon is asked for.

    ``network`` is the name of a network to be made for the job, which is the job's id, or "".
    """

    app_id: str
    containers: list[ReplicaRequest]
    network: str = ""
    platform: str | None = None
    watched: bool = False
    #: Directories of this machine to be made if they do not exist: where results are sent to.
    folders: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return json.dumps(self.shown(), indent=2)

    def shown(self) -> dict[str, Any]:
        """Return the request as JSON values for people, secrets masked."""
        from trainyard.redaction import Redactor

        redactor = Redactor()
        containers = []
        for container in self.containers:
            shown = redactor.json({**vars(container), "env": {}})
            shown["env"] = {name: redactor.value(name, value) for name, value in container.env.items()}
            shown["body"]["Labels"] = {
                name: _shown_label(redactor, value) for name, value in container.body["Labels"].items()
            }
            containers.append(shown)
        return {**vars(self), "containers": containers}

    def place_hosts(self, addresses: Iterator[str]) -> None:
        """Give the containers addresses of their job's network, and let hosts of a training job know theirs.

        The names that the daemon itself gives come with a container's start and go with its end; these stay.
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
    """A job of this id is there."""


def submit(engine: Engine, request: DockerRequest, start_watcher: Callable[[str], None]) -> str:
    """Make and start a job's containers; returns its id. What was made is removed again if it fails.

    Submitting a request once more does nothing. Where no addresses are left for the job's network its
    containers are made, and started by the watcher when there are.

    Args:
        engine: the daemon.
        request: what to make.
        start_watcher: called with the job's id as soon as there is something to watch.

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
            start_watcher(request.app_id)
        if not submission.is_waiting:  # else the watcher starts them
            submission.start()
    except AlreadySubmitted:
        return request.app_id
    except BaseException:
        submission.undo()
        raise
    return request.app_id


class _Submission:
    def __init__(self, engine: Engine, request: DockerRequest) -> None:
        self.engine = engine
        self.request = request
        self._ids: dict[str, str] = {}
        self._working_dirs: dict[str, str] = {}
        self._pulls: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._labels: dict[str, str] = {}
        self._has_begun = False
        self._why_waiting = ""

    # ---- making

    @property
    def is_waiting(self) -> bool:
        """Whether there is no network for its containers yet."""
        return bool(self._why_waiting)

    def make(self) -> None:
        """Make network and containers."""
        if self._exists():
            raise AlreadySubmitted
        self._ensure_images()
        self._has_begun = True
        results.make(
            self.request.app_id, [mount["Source"] for mount in self._own_mounts()], self.request.folders
        )
        self._labels = {
            labels.SUBMITTER: str(myself()),
            labels.HOST: host_name(),
            labels.SUBMITTED_AT: repr(time.time()),
        }
        if self.request.network:
            for_all(lambda _: self._make_network(), [None], shielded=True)
        for_all(self._make_container, self.request.containers, shielded=True)
        if self.is_waiting:
            facts = {"reason": self._why_waiting, "at": time.time_ns()}
            inventory.make_marker(
                self.engine, self.request.app_id, inventory.WAITING, inventory.WAITING, facts
            )

    def _own_mounts(self) -> list[dict[str, Any]]:
        """Return the mounts that bring the job's results to this machine."""
        own = results.directory_of(self.request.app_id) + os.sep
        mounts = [mount for c in self.request.containers for mount in c.body["HostConfig"]["Mounts"]]
        return [mount for mount in mounts if mount["Source"].startswith(own)]

    def _leave_results_there(self) -> None:
        """Leave results in the containers: the daemon sees other files than we do, as from within one."""
        own = results.directory_of(self.request.app_id)
        for container in self.request.containers:
            config = container.body["HostConfig"]
            config["Mounts"] = [m for m in config["Mounts"] if not m["Source"].startswith(own + os.sep)]
            if container.body["Labels"].get(labels.RESULTS, "").startswith(own):
                container.body["Labels"][labels.RESULTS] = results.IN_CONTAINERS
        results.remove(self.request.app_id)

    def _exists(self) -> bool:
        filters = labels.label_filter(labels.APP_ID, self.request.app_id)
        return bool(self.engine.request("GET", "/containers/json", params={"all": True, "filters": filters}))

    def _ensure_images(self) -> None:
        """Pull what is not there, each image once, before anything is made."""
        needed = dict.fromkeys(container.image for container in self.request.containers)
        for_all(self._ensure_image, needed)

    def _ensure_image(self, image: str) -> None:
        found = image_store.inspect_image(self.engine, image)
        if found is not None:
            self._working_dirs[image] = (found.get("Config") or {}).get("WorkingDir") or "/"
            return
        if image.startswith("sha256:"):
            raise refusals.not_pulled(image, EngineError(404, "no such image"))
        try:
            image_store.pull(self.engine, image, _credentials(image), platform=self.request.platform)
        except EngineError as error:
            raise refusals.not_pulled(image, error) from error

    def _make_network(self) -> None:
        try:
            network = make_job_network(self.engine, self.request.app_id, len(self.request.containers))
            self.request.place_hosts(network.addresses())
        except NoSubnetLeftError as error:
            self._why_waiting = error.message
        except EngineError as error:
            if error.status == 409:
                raise AlreadySubmitted from error
            raise refusals.refused(error, "make the job's network") from error

    def _make_container(self, replica: ReplicaRequest) -> None:
        params = {"name": replica.name, "platform": self.request.platform}
        body = replica.full_body(self._labels)
        try:
            made = self.engine.request("POST", "/containers/create", params=params, json=body)
        except EngineError as error:
            if error.status == 409:
                raise AlreadySubmitted from error
            if results.directory_of(self.request.app_id) + os.sep in error.message:
                with self._lock:
                    self._leave_results_there()
                self._make_container(replica)
                return
            raise refusals.refused(error, "make the container of", replica) from error
        with self._lock:
            self._ids[replica.name] = made["Id"]
        self._check_script(replica)

    def _check_script(self, replica: ReplicaRequest) -> None:
        """Refuse a container whose script is not there, before it is started. Mounts may bring one."""
        if not replica.script or replica.replica or replica.image not in self._working_dirs:
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

    # ---- starting

    def start(self) -> None:
        """Start the containers: the first, whose name the others look up, and then all."""
        first, *others = self.request.containers
        for_all(self._start, [first], shielded=True)
        for_all(self._start, others, shielded=True)

    def _start(self, replica: ReplicaRequest) -> None:
        try:
            self.engine.request("POST", f"/containers/{self._ids[replica.name]}/start", timeout=START_SECONDS)
        except EngineError as error:
            raise refusals.refused(error, "start", replica) from error

    # ---- undoing

    def undo(self) -> None:
        """Remove everything again. What cannot be removed now is found by `gc` later."""
        if not self._has_begun:
            return
        try:
            remove_job(self.engine, self.request.app_id)
            results.remove(self.request.app_id)
        except BackendError:
            warnings.warn(
                f"something of {self.request.app_id} may be left on the Docker daemon; "
                "`trainyard gc --older-than 0s` finds it",
                RuntimeWarning,
                stacklevel=2,
            )


def make_job_network(engine: Engine, app_id: str, containers: int) -> Network:
    """Make the network of a job of several containers, which has the job's name.

    Raises:
        NoSubnetLeftError: no addresses are left for it.
        EngineError: the daemon refuses it for another reason; 409, there is one of this name.
    """
    from trainyard.docker.networks import make_network  # late: most jobs have one container

    body = {
        "Name": app_id,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Labels": {labels.APP_ID: app_id},
    }
    try:
        return make_network(engine, body, containers)
    except NoSubnetLeftError:
        # Those of jobs whose watcher was killed at the very end may hold some.
        if not remove_ended_networks(engine):
            raise
        return make_network(engine, body, containers)


def _credentials(image: str) -> str | None:
    """Return the header with which the daemon pulls an image; None where nothing is known."""
    from trainyard.docker.credentials import credentials_for, engine_auth_header
    from trainyard.docker.image_reference import Reference

    found = credentials_for(Reference.parse(image).registry)
    return None if found is None else engine_auth_header(found)

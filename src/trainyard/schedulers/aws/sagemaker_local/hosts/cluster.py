"""The network that containers of a job are on, their image, and their removal."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from typing import Any

from trainyard.backoff import Backoff
from trainyard.docker.engine import Engine, EngineError
from trainyard.docker.image_store import inspect_image, pull
from trainyard.docker.networks import make_network, shared_network
from trainyard.errors import BackendError
from trainyard.schedulers.aws.sagemaker_local.hosts.host import PlatformFailure, StartFailure
from trainyard.schedulers.aws.sagemaker_local.hosts.layout import Host

#: Marks containers and networks; its value is the job's directory.
LABEL = "trainyard.sagemaker.job"
#: How long a daemon may be away, or somebody else take to remove a container.
DAEMON_SECONDS = 60.0
#: What hosts that are their job's only one are on, and what they are on where they may reach nothing.
SHARED_NETWORK, ISOLATED_NETWORK = "trainyard-single-hosts", "trainyard-isolated-hosts"
#: How often another shared network is joined before a container is given up.
MOST_RENEWALS = 8
_FULL = re.compile(r"no available IPv4 addresses|exchange full", re.IGNORECASE)
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "0.0.0.0")
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS", "S3_ENDPOINT_URL")


class Cluster:
    """The network that the hosts of a job are on, and what else all of them share.

    Args:
        engine: the daemon.
        job_dir: the job's directory.
        request: the request.
        patience: seconds for which the daemon may be away, at most a minute.
    """

    def __init__(
        self, engine: Engine, job_dir: str, request: dict[str, Any], patience: float = DAEMON_SECONDS
    ) -> None:
        self.patience = min(patience, DAEMON_SECONDS)
        self.engine = engine
        self.labels = {LABEL: job_dir}
        self.request = request
        self.network = ""
        self.gateway = ""
        self.addresses: dict[str, str] = {}
        self._only_host: Host | None = None
        self._full = self._renewals = 0
        info = engine.request("GET", "/info")
        self.has_init = (info.get("InitBinary") or "") != ""
        self.shared_memory = max(int(info.get("MemTotal") or 0) // 2, 64 << 20)
        self.has_gpus = "nvidia" in (info.get("Runtimes") or {})

    def join_network(self, hosts: list[Host]) -> None:
        """Have a network for the hosts. An isolated job's leads nowhere.

        Jobs of one host share one, on which containers do not reach each other. Several hosts get one of
        their own, where every host's address is settled beforehand: all names resolve before the first
        program starts.

        Raises:
            NoSubnetLeftError: no addresses are left for it now.
            EngineError: the daemon refuses it for another reason.
        """
        is_isolated = bool(self.request.get("EnableNetworkIsolation"))
        if len(hosts) == 1:
            name = ISOLATED_NETWORK if is_isolated else SHARED_NETWORK
            self._only_host = hosts[0]
            tail = f"-{self._full + 1}" if self._full else ""
            made = shared_network(self.engine, name + tail, is_internal=is_isolated)
        else:
            body = {
                "Name": f"trainyard-{self.request['TrainingJobName']}-{os.urandom(3).hex()}",
                "Driver": "bridge",
                "Internal": is_isolated,
                "Labels": self.labels,
            }
            made = make_network(self.engine, body, len(hosts))
            pairs = zip(hosts, made.addresses(), strict=False)
            self.addresses = {host.name: address for host, address in pairs}
        self.network, self.gateway = made.id, made.gateway

    def renew_network(self, error: EngineError) -> bool:
        """Join the shared network again where somebody has removed it since, or another one where it is full.

        Returns:
            whether one of that was why a container did not start, and another attempt may help.

        Raises:
            PlatformFailure: there are no addresses for another one.
        """
        is_gone = error.status == 404 and "network" in error.message
        is_full = _FULL.search(error.message) is not None
        self._renewals += 1
        if self._only_host is None or not (is_gone or is_full) or self._renewals > MOST_RENEWALS:
            return False
        self._full += is_full
        try:
            self.join_network([self._only_host])
        except BackendError as problem:
            raise PlatformFailure(problem.message) from problem
        return True

    def endpoint_variables(self, environ: dict[str, str]) -> dict[str, str]:
        """Return the variables that name AWS endpoints, as containers reach them: not by loopback."""
        found = {}
        for name in _ENDPOINTS:
            url = environ.get(name)
            if not url:
                continue
            scheme, _, rest = url.partition("://")
            for address in _LOOPBACK:
                if rest == address or rest.startswith((f"{address}:", f"{address}/")):
                    rest = self.gateway + rest[len(address) :]
                    break
            found[name] = f"{scheme}://{rest}"
        return found


def ensure_image(engine: Engine, image: str) -> None:
    """Pull an image that is not there.

    Raises:
        StartFailure: it cannot be had.
    """
    if inspect_image(engine, image) is not None:
        return
    try:
        pull(engine, image)
    except EngineError as error:
        raise StartFailure(
            f"the image {image!r} is not on this machine, and it cannot be pulled: {error.message}"
        ) from error


def reclaim(engine: Engine, image: str, job_dir: str, folder: str) -> None:
    """Give files that containers have left in a folder to this user, by the image's own ``chown``."""
    if os.geteuid() == 0:
        return
    definition = {
        "Image": image,
        "Entrypoint": ["chown", "-R", f"{os.geteuid()}:{os.getegid()}", "/trainyard"],
        "Cmd": [],
        "User": "0:0",
        "Labels": {LABEL: job_dir},
        "HostConfig": {
            "Mounts": [{"Type": "bind", "Source": folder, "Target": "/trainyard"}],
            "NetworkMode": "none",
        },
    }
    created = ""
    try:
        created = engine.request("POST", "/containers/create", json=definition)["Id"]
        engine.request("POST", f"/containers/{created}/start")
        engine.request("POST", f"/containers/{created}/wait")
    except EngineError:  # an image without chown: what cannot be read is missed later, and named
        pass
    finally:
        if created:
            remove_container(engine, created)


def remove_container(engine: Engine, container_id: str) -> None:
    """Remove a container, and return when it is gone, whoever removes it."""
    backoff = Backoff(0.1, jitter=0, limit=DAEMON_SECONDS)
    while True:
        try:
            engine.request("DELETE", f"/containers/{container_id}", params={"force": True, "v": True})
        except EngineError as error:
            if error.status == 404:
                return
            if error.status != 409 or not backoff.pause():  # 409: somebody else is removing it
                raise
        else:
            return


def sweep(engine: Engine, job_dir: str) -> None:
    """Remove all containers and networks of a job.

    Raises:
        EngineUnavailableError: no daemon answers.
        EngineError: it cannot.
    """
    filters = {"label": [f"{LABEL}={job_dir}"]}
    for item in engine.request("GET", "/containers/json", params={"all": True, "filters": filters}):
        remove_container(engine, item["Id"])
    for item in engine.request("GET", "/networks", params={"filters": filters}):
        remove_network(engine, item["Id"])


def remove_network(engine: Engine, network_id: str) -> None:
    """Remove a network, whoever else does."""
    try:
        engine.request("DELETE", f"/networks/{network_id}")
    except EngineError as error:
        if error.status != 404:
            raise


def all_of_jobs(engine: Engine) -> list[tuple[str, str, str, float]]:
    """Return kind, id, job's directory and age in seconds of all containers and networks of jobs.

    Raises:
        EngineUnavailableError: no daemon answers.
    """
    params = {"all": True, "filters": {"label": [LABEL]}}
    now = time.time()
    found = [
        ("container", item["Id"], item["Labels"][LABEL], now - item["Created"])
        for item in engine.request("GET", "/containers/json", params=params)
    ]
    for item in engine.request("GET", "/networks", params={"filters": {"label": [LABEL]}}):
        made = datetime.fromisoformat(item["Created"]).timestamp()
        found.append(("network", item["Id"], item["Labels"][LABEL], now - made))
    return found

"""The network that containers of a job are on, their image, and their removal."""

from __future__ import annotations

import functools
import ipaddress
import os
import time
from typing import Any

from trainyard.docker.engine import Engine, EngineError
from trainyard.docker.images import inspect_image, pull
from trainyard.schedulers.aws.sagemaker_local.hosts.host import StartFailure
from trainyard.schedulers.aws.sagemaker_local.hosts.layout import Host

#: Marks containers and networks; its value is the job's directory.
LABEL = "trainyard.sagemaker.job"
#: How long a daemon may be away, or somebody else take to remove a container.
DAEMON_SECONDS = 60.0
NETWORK_ATTEMPTS = 5
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "0.0.0.0")
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS", "S3_ENDPOINT_URL")


class Cluster:
    """The network that the hosts of a job are on, and what all of them share.

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
        info = engine.request("GET", "/info")
        self.has_init = (info.get("InitBinary") or "") != ""
        self.shared_memory = max(int(info.get("MemTotal") or 0) // 2, 64 << 20)
        self.has_gpus = "nvidia" in (info.get("Runtimes") or {})

    def make_network(self, hosts: list[Host]) -> None:
        """Make the network. An isolated job's leads nowhere.

        Every host's address is settled beforehand, so that all names resolve before the first program starts.
        """
        for attempt in range(1, NETWORK_ATTEMPTS + 1):
            self._create_network({})
            facts = self.engine.request("GET", f"/networks/{self.network}")
            settled = facts["IPAM"]["Config"][0]
            subnet = settled["Subnet"]
            if len(hosts) == 1:
                self.gateway = settled.get("Gateway", "")
                return
            # A daemon gives addresses that are asked for in networks only whose range was asked for.
            self.remove_network()
            try:
                self._create_network({"Config": [{"Subnet": subnet}]})
                break
            except EngineError:  # another network has got the range meanwhile
                if attempt == NETWORK_ATTEMPTS:
                    raise
        addresses = ipaddress.ip_network(subnet).hosts()
        self.gateway = str(next(addresses))
        self.addresses = {host.name: str(address) for host, address in zip(hosts, addresses, strict=False)}

    def _create_network(self, ipam: dict[str, Any]) -> None:
        answer = self.engine.request(
            "POST",
            "/networks/create",
            json={
                "Name": f"trainyard-{self.request['TrainingJobName']}-{os.urandom(3).hex()}",
                "Driver": "bridge",
                "Internal": bool(self.request.get("EnableNetworkIsolation")),
                "Labels": self.labels,
                "IPAM": ipam,
            },
        )
        self.network = answer["Id"]

    def remove_network(self) -> None:
        """Remove the network."""
        if self.network:
            _ignoring(404, lambda: self.engine.request("DELETE", f"/networks/{self.network}"))
            self.network = ""

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
        pull(engine, image, _auth(image))
    except EngineError as error:
        raise StartFailure(
            f"the image {image!r} is not on this machine, and it cannot be pulled: {error.message}"
        ) from error


def _auth(image: str) -> str | None:
    try:
        from trainyard.docker.credentials import credentials_for, engine_auth_header
    except ImportError:
        return None
    head, slash, _ = image.partition("/")
    registry = head if slash and ("." in head or ":" in head or head == "localhost") else "docker.io"
    found = credentials_for(registry)
    return None if found is None else engine_auth_header(found)


def _ignoring(status: int, action: Any) -> None:
    try:
        action()
    except EngineError as error:
        if error.status != status:
            raise


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
    deadline = time.monotonic() + DAEMON_SECONDS
    while True:
        try:
            engine.request("DELETE", f"/containers/{container_id}", params={"force": True, "v": True})
        except EngineError as error:
            if error.status == 404:
                return
            if error.status != 409 or time.monotonic() > deadline:  # 409: somebody else is at it
                raise
            time.sleep(0.1)
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
        _ignoring(404, functools.partial(engine.request, "DELETE", f"/networks/{item['Id']}"))

"""Removing what jobs are made of."""

from __future__ import annotations

from trainyard.docker.engine import EngineError
from trainyard.schedulers.exec.container import inventory, labels
from trainyard.schedulers.exec.container.parallel import for_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.docker.engine import Engine


def remove_job(engine: Engine, app_id: str) -> None:
    """Remove a job's containers, whatever they do, its network and its markers.

    Raises:
        EngineError: something cannot be removed.
    """
    filters = labels.label_filter(labels.OLD_APP_ID, app_id)
    found = engine.request("GET", "/containers/json", params={"all": True, "filters": filters})
    for_all(lambda container: remove_container(engine, container["Id"]), found)
    remove_networks(engine, app_id)
    remove_markers(engine, app_id)


def remove_container(engine: Engine, container_id: str) -> None:
    """Kill and remove a container with its anonymous volumes."""
    _quietly(engine, "DELETE", f"/containers/{container_id}", {"force": True, "v": True})


def remove_networks(engine: Engine, app_id: str) -> None:
    """Remove the network that was made for a job."""
    for network in networks_of_jobs(engine, app_id):
        remove_network(engine, network["Id"])


def remove_network(engine: Engine, network_id: str) -> bool:
    """Remove a network; returns False where containers still use it."""
    try:
        engine.request("DELETE", f"/networks/{network_id}")
    except EngineError as error:
        if error.status in (403, 409):
            return False
        if error.status != 404:
            raise
    return True


def remove_markers(engine: Engine, app_id: str) -> None:
    """Remove a job's markers."""
    for marker in inventory.load_markers(engine, app_id):
        _quietly(engine, "DELETE", f"/volumes/{marker.name}")


def networks_of_jobs(engine: Engine, app_id: str | None = None) -> list[dict[str, Any]]:
    """Return the networks that were made for one job, or for all."""
    filters = labels.label_filter(labels.APP_ID, app_id)
    found: list[dict[str, Any]] = engine.request("GET", "/networks", params={"filters": filters})
    return found


def remove_ended_networks(engine: Engine) -> bool:
    """Remove the networks of jobs that have ended; tells whether there were any."""
    active = {
        app_id
        for app_id, job in inventory.load_jobs(engine, details=False).items()
        if any(container.is_active or container.is_new for container in job.containers)
    }
    idle = [n for n in networks_of_jobs(engine) if n["Labels"].get(labels.APP_ID) not in active]
    removed = [remove_network(engine, network["Id"]) for network in idle]
    return any(removed)


def _quietly(engine: Engine, method: str, path: str, params: dict[str, Any] | None = None) -> None:
    """Send a request whose object may have gone meanwhile, or be on its way."""
    try:
        engine.request(method, path, params=params)
    except EngineError as error:
        if error.status not in (404, 409):
            raise

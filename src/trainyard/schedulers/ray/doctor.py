"""Whether jobs could run on a Ray cluster: its address, the token, its nodes, and the options."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainyard.errors import BackendError, TrainyardError
from trainyard.http.url_client import is_loopback_host
from trainyard.schedulers.ray.dashboard import MODE_VARIABLE, Dashboard, token_in
from trainyard.schedulers.ray.observe import all_jobs
from trainyard.schedulers.ray.options import RayOpts
from trainyard.schedulers.ray.rules import check_options, runtime_environment
from trainyard.schedulers.responses import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainyard.schedulers.ray.request import RayRequest


def examine(cfg: Mapping[str, Any]) -> list[Check]:
    """Check what jobs with these options need. Changes nothing."""
    checks: list[Check] = []

    def check(name: str, ask: Callable[[], str]) -> bool:
        try:
            checks.append(Check(name, True, ask()))
        except TrainyardError as error:
            checks.append(Check(name, False, error.message, error.hint))
            return False
        return True

    def options() -> str:
        opts = RayOpts(**{key: value for key, value in cfg.items() if value is not None})
        check_options(opts)
        runtime_environment(opts)
        return "valid"

    check("options", options)
    made: list[Dashboard] = []

    def address() -> str:
        made.append(Dashboard.of(cfg))
        return made[0].address

    if not check("address", address):
        return checks
    dashboard = made[0]
    try:
        if check("dashboard", lambda: _version(dashboard)):
            check("Jobs API", lambda: f"{len(all_jobs(dashboard))} jobs")
            check("nodes", lambda: _nodes(dashboard))
        checks.append(_token(dashboard))
    finally:
        dashboard.close()
    return checks


def _version(dashboard: Dashboard) -> str:
    answer = dashboard.get("/api/version")
    if not isinstance(answer, dict) or "ray_version" not in answer:
        raise BackendError(f"{dashboard.address} is not the dashboard of Ray")
    return f"Ray {answer['ray_version']}"


def examine_job(dashboard: Dashboard, request: RayRequest) -> list[Check]:
    """Check that the nodes have room for the replicas of each role while nothing else runs there."""
    try:
        nodes = _alive_nodes(dashboard)
        grows = _has_autoscaler(dashboard)
    except TrainyardError as error:
        return [Check("the job", False, error.message, error.hint)]
    return [_room(role, nodes, request.plan["strategy"], grows) for role in request.plan["roles"]]


def _room(role: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], strategy: str, grows: bool) -> Check:
    """Check that a role fits, with the fewest replicas it may have."""
    bundle, wanted = role["bundle"], role["min"] or role["replicas"]
    able = [node for node in nodes if _has_labels(node.get("labels") or {}, role["labels"])]
    places = [
        min(int((node.get("resources_total") or {}).get(name, 0) / size) for name, size in bundle.items())
        for node in able
    ]
    if strategy == "STRICT_PACK":
        room = max(places, default=0)
    elif strategy == "STRICT_SPREAD":
        room = sum(count > 0 for count in places)
    else:
        room = sum(places)
    name, labels = f"role {role['name']}", role["labels"]
    replica = ", ".join(f"{_amount(key, size)}" for key, size in bundle.items())
    where = f" with the labels {', '.join(f'{k}={v}' for k, v in labels.items())}" if labels else ""
    text = (
        f"the cluster's {len(able)} nodes{where} have room for {room} replicas of {replica} ({strategy}), "
        f"and the role has {wanted}"
    )
    if room >= wanted:
        return Check(name, True, text)
    if grows:
        return Check(name, None, text, "The job waits until the cluster's autoscaler has added nodes.")
    return Check(name, False, text, "The job would wait until such nodes join, or placement_timeout ends it.")


def _has_labels(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Tell whether a node has what a selector asks for: ``value``, ``!value``, ``in(a,b)`` or ``!in(a,b)``.

    https://docs.ray.io/en/latest/ray-core/scheduling/labels.html
    """
    for name, condition in selector.items():
        text = condition.removeprefix("!")
        values = text[3:-1].split(",") if text.startswith("in(") and text.endswith(")") else [text]
        if (labels.get(name) in [value.strip() for value in values]) is condition.startswith("!"):
            return False
    return True


def _amount(name: str, size: float) -> str:
    return f"{size / (1 << 30):.3g} GiB of memory" if name == "memory" else f"{size:g} {name}"


def _has_autoscaler(dashboard: Dashboard) -> bool:
    """Tell whether the cluster has types of nodes: without an autoscaler each node is a type, ``node_ID``."""
    answer = dashboard.get("/api/cluster_status") or {}
    status = (answer.get("data") or {}).get("clusterStatus") or {}
    types = (status.get("autoscalerReport") or {}).get("nodeTypeMapping") or {}
    return not all(str(name).startswith("node_") for name in types.values())


def _alive_nodes(dashboard: Dashboard) -> list[dict[str, Any]]:
    answer = dashboard.get("/api/v0/nodes", {"detail": "1", "limit": "10000"}) or {}
    rows = ((answer.get("data") or {}).get("result") or {}).get("result") or []
    return [row for row in rows if row.get("state") == "ALIVE"]


def _nodes(dashboard: Dashboard) -> str:
    alive = _alive_nodes(dashboard)
    totals: dict[str, float] = {}
    for row in alive:
        for name, amount in (row.get("resources_total") or {}).items():
            if name in ("CPU", "GPU", "memory"):
                totals[name] = totals.get(name, 0.0) + float(amount)
    if "memory" in totals:
        totals["GiB of memory"] = round(totals.pop("memory") / (1 << 30), 1)
    return ", ".join(
        [f"{len(alive)} alive", *(f"{amount:g} {name}" for name, amount in sorted(totals.items()))]
    )


def _token(dashboard: Dashboard) -> Check:
    try:
        token = token_in(os.environ)
    except TrainyardError as error:
        return Check("token", False, error.message, error.hint)
    host = urlsplit(dashboard.address).hostname or ""
    if not token:
        mode = os.environ.get(MODE_VARIABLE, "")
        return Check("token", None, "none is sent" + (f" ({MODE_VARIABLE}={mode})" if mode else ""))
    if dashboard.address.startswith("http://") and not is_loopback_host(host):
        return Check(
            "token",
            None,
            "it is sent without encryption",
            "Reach the dashboard over https, or through a tunnel: ssh -L 8265:localhost:8265 HEAD.",
        )
    return Check("token", True, "it is sent")

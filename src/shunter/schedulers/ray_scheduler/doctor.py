"""Check whether a Ray cluster could run jobs: address, token, nodes, options, room for a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from shunter.errors import BackendError, ShunterError
from shunter.schedulers.ray_scheduler.dashboard import MODE_VARIABLE, Dashboard, token_in
from shunter.schedulers.ray_scheduler.observe import all_jobs
from shunter.schedulers.ray_scheduler.options import RayOpts
from shunter.schedulers.ray_scheduler.request import RayRequest, runtime_environment
from shunter.schedulers.ray_scheduler.rules import check_options
from shunter.schedulers.responses import Check
from shunter.url_client import is_loopback_host

#: For how many nodes the report says why they cannot run a replica.
MOST_NODES = 4


def examine(cfg: Mapping[str, Any]) -> list[Check]:
    """Check what jobs with these options need. Changes nothing."""
    checks: list[Check] = []

    def check(name: str, ask: Callable[[], str]) -> bool:
        try:
            checks.append(Check(name, True, ask()))
        except ShunterError as error:
            checks.append(Check(name, False, error.message, error.hint))
            return False
        return True

    def options() -> str:
        opts = RayOpts(**{key: value for key, value in cfg.items() if value is not None})
        check_options(opts)
        runtime_environment(opts)
        return "valid"

    check("options", options)
    try:
        dashboard = Dashboard.of(cfg)
    except ShunterError as error:
        return [*checks, Check("address", False, error.message, error.hint)]
    checks.append(Check("address", True, dashboard.address))
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


def _alive(dashboard: Dashboard) -> list[dict[str, Any]]:
    """Return the nodes that are up, with what they have in all."""
    answer = dashboard.get("/api/v0/nodes", {"detail": "1", "limit": "10000"}) or {}
    rows = ((answer.get("data") or {}).get("result") or {}).get("result") or []
    return [row for row in rows if row.get("state") == "ALIVE"]


def _nodes(dashboard: Dashboard) -> str:
    alive = _alive(dashboard)
    totals: dict[str, float] = {}
    for row in alive:
        for name, amount in (row.get("resources_total") or {}).items():
            if name in ("CPU", "GPU", "memory"):
                totals[name] = totals.get(name, 0.0) + float(amount)
    return ", ".join(
        [f"{len(alive)} alive", *(_words(name, amount) for name, amount in sorted(totals.items()))]
    )


def _token(dashboard: Dashboard) -> Check:
    try:
        token = token_in(os.environ)
    except ShunterError as error:
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


# ---- whether one job has room


def examine_job(dashboard: Dashboard, request: RayRequest) -> list[Check]:
    """Check whether the nodes that are up could hold a job's replicas, if they were empty."""
    try:
        nodes = _alive(dashboard)
        why_more = _why_it_may_grow(dashboard)
    except ShunterError as error:
        return [Check("the job", None, f"it was not compared with the nodes: {error.message}", error.hint)]
    problems = list(dict.fromkeys(_lacks_room(nodes, request)))
    if problems:
        hint = why_more or "Ask for less, unless nodes are added by hand."
        return [Check("the job", None if why_more else False, "; ".join(problems), hint)]
    return [Check("the job", True, "the nodes that are up could hold it, if empty")]


def _why_it_may_grow(dashboard: Dashboard) -> str:
    """Return why nodes that are not up yet may hold what others cannot; "" if none will be added.

    Without an autoscaler Ray's monitor reports each node as a type by itself, named after the node.
    """
    answer = dashboard.get("/api/cluster_status") or {}
    report = ((answer.get("data") or {}).get("clusterStatus") or {}).get("autoscalerReport") or {}
    types = report.get("nodeTypeMapping") or {}
    if not types:
        return "Ray does not say whether nodes are added when needed; those may hold it."
    if all(kind == f"node_{node}" for node, kind in types.items()):
        return ""
    return "Ray's autoscaler may add nodes that can."


def _lacks_room(nodes: list[dict[str, Any]], request: RayRequest) -> Iterator[str]:
    """Yield why nodes could not hold a job, even if they were empty."""
    submission, roles, strategy = request.submission, request.plan["roles"], request.plan["strategy"]
    driver = _driver_bundle(submission)
    alone = [(driver, submission.get("entrypoint_label_selector"), "the driver")] if driver else []
    alone += [(role["bundle"], role["labels"], f"a replica of {role['name']}") for role in roles]
    problems = [problem for each in alone for problem in _fits_no_node(nodes, *each)]
    yield from problems
    if problems:
        return
    bundles: list[dict[str, float]] = []
    for role in roles:
        bundles += [role["bundle"]] * (role["replicas"] if role["min"] is None else role["min"])
    together = {name: sum(each.get(name, 0) for each in bundles) for each in bundles for name in each}
    if strategy == "STRICT_PACK":
        yield from _fits_no_node(nodes, together, {}, f"all replicas (placement={strategy})")
        return
    if strategy == "STRICT_SPREAD" and len(bundles) > len(nodes):
        yield f"placement={strategy} needs {len(bundles)} nodes, a replica on each; {len(nodes)} are up"
    for name, wanted in together.items():
        there = sum(_has(node, name) for node in nodes)
        if wanted > there:
            yield f"the replicas ask for {_words(name, wanted)}, and all nodes have {_words(name, there)}"


def _driver_bundle(submission: Mapping[str, Any]) -> dict[str, float]:
    given = {
        "CPU": submission.get("entrypoint_num_cpus"),
        "GPU": submission.get("entrypoint_num_gpus"),
        "memory": submission.get("entrypoint_memory"),
        **(submission.get("entrypoint_resources") or {}),
    }
    return {name: amount for name, amount in given.items() if amount}


def _fits_no_node(
    nodes: list[dict[str, Any]], bundle: Mapping[str, float], labels: Mapping[str, str] | None, who: str
) -> Iterator[str]:
    """Yield that no node could hold something, and why not; nothing if one could."""
    lacking = {
        str(node.get("node_name") or number): [*_lacks(node, bundle, labels or {})]
        for number, node in enumerate(nodes)
    }
    if all(lacking.values()):
        why = "; ".join(f"{name}: {', '.join(each)}" for name, each in list(lacking.items())[:MOST_NODES])
        asked = ", ".join(_words(name, wanted) for name, wanted in bundle.items())
        yield f"none of {len(nodes)} could hold {who} with {asked}" + (f" ({why})" if why else "")


def _lacks(node: Mapping[str, Any], bundle: Mapping[str, float], labels: Mapping[str, str]) -> Iterator[str]:
    for key, wanted in labels.items():
        if not _has_label(node, key, wanted):
            yield f"its label {key} is not {wanted}"
    for name, amount in bundle.items():
        if amount > _has(node, name):
            yield f"it has {_words(name, _has(node, name))}"


def _has(node: Mapping[str, Any], name: str) -> float:
    return float((node.get("resources_total") or {}).get(name, 0.0))


def _has_label(node: Mapping[str, Any], key: str, wanted: str) -> bool:
    """Tell whether a node has what a selector asks for: ``value``, ``!value``, ``in(a,b)`` or ``!in(a,b)``.

    https://docs.ray.io/en/latest/ray-core/scheduling/labels.html
    """
    labels = node.get("labels")
    if labels is None:
        return True
    text = wanted.removeprefix("!")
    values = text[3:-1].split(",") if text.startswith("in(") and text.endswith(")") else [text]
    is_one = labels.get(key) in [value.strip() for value in values]
    return is_one is not wanted.startswith("!")


def _words(name: str, amount: float) -> str:
    if name != "memory":
        return f"{amount:g} {name}"
    if 0 < amount < 1 << 30:
        return f"{amount / (1 << 20):.0f} MiB of memory"
    return f"{round(amount / (1 << 30), 1):g} GiB of memory"

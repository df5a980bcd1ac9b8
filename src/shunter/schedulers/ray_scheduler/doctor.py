"""Check whether a Ray cluster could run jobs: address, token, nodes, options, room for a job."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from shunter.errors import BackendError, ShunterError
from shunter.schedulers.ray_scheduler.dashboard import MODE_VARIABLE, SILENCE, Dashboard, find_token
from shunter.schedulers.ray_scheduler.options import RayOpts
from shunter.schedulers.ray_scheduler.request import RayRequest, checked_environment
from shunter.schedulers.responses import Check
from shunter.url_client import is_loopback_host

Node = dict[str, Any]
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
        return checks[-1].ok is True

    def options() -> str:
        checked_environment(RayOpts(**{key: value for key, value in cfg.items() if value is not None}))
        return "valid"

    check("options", options)
    if check("address", lambda: Dashboard.of(cfg).address):
        dashboard = Dashboard.of(cfg)
        if check("dashboard", lambda: _version(dashboard)):
            check("Jobs API", lambda: f"{len(dashboard.jobs())} jobs")
            check("nodes", lambda: _totals(dashboard))
        try:
            checks.append(_token(dashboard))
        except ShunterError as error:
            checks.append(Check("token", False, error.message, error.hint))
    return checks


def _version(dashboard: Dashboard) -> str:
    answer = dashboard.ask("GET", "/api/version", silence=SILENCE)
    if not isinstance(answer, dict) or "ray_version" not in answer:
        raise BackendError(f"{dashboard.address} is not the dashboard of Ray")
    return f"Ray {answer['ray_version']}"


def _nodes(dashboard: Dashboard) -> list[Node]:
    """Return the nodes that are up, with what they have in all."""
    answer = dashboard.ask("GET", "/api/v0/nodes?detail=1&limit=10000", silence=SILENCE) or {}
    rows = ((answer.get("data") or {}).get("result") or {}).get("result") or []
    return [row for row in rows if row.get("state") == "ALIVE"]


def _totals(dashboard: Dashboard) -> str:
    nodes = _nodes(dashboard)
    totals = [_words(name, sum(_has(node, name) for node in nodes)) for name in ("CPU", "GPU", "memory")]
    return ", ".join([f"{len(nodes)} alive", *totals])


def _token(dashboard: Dashboard) -> Check:
    if not find_token():
        mode = os.environ.get(MODE_VARIABLE, "")
        return Check("token", None, "none is sent" + (f" ({MODE_VARIABLE}={mode})" if mode else ""))
    if dashboard.address.startswith("http://") and not is_loopback_host(
        urlsplit(dashboard.address).hostname or ""
    ):
        hint = "Reach the dashboard over https, or through a tunnel: ssh -L 8265:localhost:8265 HEAD."
        return Check("token", None, "it is sent without encryption", hint)
    return Check("token", True, "it is sent")


# ---- whether one job has room


def examine_job(dashboard: Dashboard, request: RayRequest) -> list[Check]:
    """Check whether the nodes that are up could hold a job's replicas, if they were empty."""
    try:
        nodes, why_more = _nodes(dashboard), _why_it_may_grow(dashboard)
    except ShunterError as error:
        return [Check("the job", None, f"it was not compared with the nodes: {error.message}", error.hint)]
    problems = _lacks_room(nodes, request)
    if not problems:
        return [Check("the job", True, "the nodes that are up could hold it, if empty")]
    hint = why_more or "Ask for less, unless nodes are added by hand."
    return [Check("the job", None if why_more else False, "; ".join(problems), hint)]


def _why_it_may_grow(dashboard: Dashboard) -> str:
    """Return why nodes that are not up yet may hold what others cannot; "" if none will be added.

    Without an autoscaler Ray's monitor reports each node as a type by itself, named after the node.
    """
    answer = dashboard.ask("GET", "/api/cluster_status") or {}
    report = ((answer.get("data") or {}).get("clusterStatus") or {}).get("autoscalerReport") or {}
    types = report.get("nodeTypeMapping") or {}
    if not types:
        return "Ray does not say whether nodes are added when needed; those may hold it."
    if all(kind == f"node_{node}" for node, kind in types.items()):
        return ""
    return "Ray's autoscaler may add nodes that can."


def _lacks_room(nodes: list[Node], request: RayRequest) -> list[str]:
    """Return why nodes could not hold a job, even if they were empty."""
    submission, roles, strategy = request.submission, request.plan["roles"], request.plan["strategy"]
    driver = {
        "CPU": submission.get("entrypoint_num_cpus") or 0,
        "GPU": submission.get("entrypoint_num_gpus") or 0,
        "memory": submission.get("entrypoint_memory") or 0,
        **(submission.get("entrypoint_resources") or {}),
    }
    problems = [_fits_no_node(nodes, driver, submission.get("entrypoint_label_selector"), "the driver")]
    problems += [
        _fits_no_node(nodes, role["bundle"], role["labels"], f"a replica of {role['name']}") for role in roles
    ]
    if not any(problems):
        counts = [role["replicas"] if role["min"] is None else role["min"] for role in roles]
        together: collections.Counter[str] = collections.Counter()
        for role, count in zip(roles, counts, strict=True):
            together.update({name: amount * count for name, amount in role["bundle"].items()})
        totals = {name: sum(_has(node, name) for node in nodes) for name in together}
        if strategy == "STRICT_PACK":
            problems.append(_fits_no_node(nodes, together, {}, f"all replicas (placement={strategy})"))
        if strategy == "STRICT_SPREAD" and sum(counts) > len(nodes):
            problems.append(
                f"placement={strategy} needs {sum(counts)} nodes, a replica on each; {len(nodes)} are up"
            )
        problems += [
            f"the replicas ask for {_words(name, wanted)}, and all nodes have {_words(name, totals[name])}"
            for name, wanted in together.items()
            if wanted > totals[name]
        ]
    return list(dict.fromkeys(filter(None, problems)))


def _fits_no_node(
    nodes: list[Node], bundle: Mapping[str, float], labels: Mapping[str, str] | None, who: str
) -> str:
    """Say that no node could hold something, and why not; "" if one could."""
    reasons = []
    for number, node in enumerate(nodes):
        others = [pair for pair in (labels or {}).items() if not _has_label(node, *pair)]
        lacks = [f"its label {key} is not {text}" for key, text in others]
        short = [name for name, amount in bundle.items() if amount > _has(node, name)]
        lacks += [f"it has {_words(name, _has(node, name))}" for name in short]
        if not lacks:
            return ""
        reasons.append(f"{node.get('node_name') or number}: {', '.join(lacks)}")
    asked = ", ".join(_words(name, wanted) for name, wanted in bundle.items() if wanted)
    why = f" ({'; '.join(reasons[:MOST_NODES])})" if reasons else ""
    return f"none of {len(nodes)} could hold {who} with {asked}{why}"


def _has(node: Node, name: str) -> float:
    return float((node.get("resources_total") or {}).get(name, 0.0))


def _has_label(node: Node, key: str, wanted: str) -> bool:
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

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
    from collections.abc import Callable, Mapping


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


def _nodes(dashboard: Dashboard) -> str:
    answer = dashboard.get("/api/v0/nodes", {"detail": "1", "limit": "10000"}) or {}
    rows = ((answer.get("data") or {}).get("result") or {}).get("result") or []
    alive = [row for row in rows if row.get("state") == "ALIVE"]
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

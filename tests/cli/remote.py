"""A scheduler that is not local, offered as a plugin to the processes that the tests start.

Its jobs are files in ``$REMOTE_JOBS``; a test writes their states. While ``$REMOTE_JOBS/down`` exists it
cannot be reached, while ``$REMOTE_JOBS/expired`` exists it refuses the credentials.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shunter.errors import AccessError, BackendError
from shunter.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from shunter.schedulers.ids import make_unique
from shunter.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, RoleStatus, option


@dataclass
class RemoteOpts:
    queue: str = option("where it waits")
    login: str | None = option("what opens the door", default=None, secret=True)


class RemoteScheduler(Scheduler[RemoteOpts]):
    opts_class = RemoteOpts

    def _directory(self) -> Path:
        directory = Path(os.environ["REMOTE_JOBS"])
        if (directory / "down").exists():
            raise BackendError("the cluster does not answer", hint="Is the network up?")
        if (directory / "expired").exists():
            raise AccessError("the credentials have expired", hint="Log in again.")
        directory.mkdir(exist_ok=True)
        return directory

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[dict[str, Any]]:
        roles = {role.name: role.num_replicas for role in app.roles}
        request = {"app_id": make_unique(app.name), "name": app.name, "roles": roles, "queue": cfg["queue"]}
        info: AppDryRunInfo[dict[str, Any]] = AppDryRunInfo(request, json.dumps)
        info.app_id = request["app_id"]
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[dict[str, Any]]) -> str:
        request = dryrun_info.request
        if request["queue"] == "full":
            raise BackendError("the queue is full")
        if request["queue"] == "slow":
            (self._directory() / "gate").write_text("submitting")
            for _ in range(3000):
                time.sleep(0.1)  # one long sleep may miss a signal that comes just before it
        job = {**request, "state": "RUNNING", "submitted_at": time.time()}
        (self._directory() / request["app_id"]).write_text(json.dumps(job))
        return str(request["app_id"])

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        path = self._directory() / app_id
        if not path.exists():
            return None
        job = json.loads(path.read_text())
        state = AppState[job["state"]]
        roles = [
            RoleStatus(name, [ReplicaStatus(k, state, name) for k in range(count)])
            for name, count in job["roles"].items()
        ]
        return DescribeAppResponse(app_id, state, 0, job.get("msg", ""), roles_statuses=roles)

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        return {app_id: self.describe(app_id) for app_id in app_ids}

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        jobs = [json.loads(path.read_text()) for path in sorted(self._directory().iterdir())]
        rows = []
        for job in jobs:
            rows.append(ListAppResponse(job["app_id"], AppState[job["state"]], name=job["name"]))
            rows[-1].submitted_at = job["submitted_at"]
        return rows


def create_scheduler(session_name: str, **params: Any) -> RemoteScheduler:
    return RemoteScheduler("remote", session_name)


class Greet:
    """Say hello."""

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("who")

    def run(self, args: Any) -> int:
        print(f"hello {args.who}")
        return 0


class Old:
    """Leave with a message, as scripts do."""

    def add_arguments(self, parser: Any) -> None:
        pass

    def run(self, args: Any) -> None:
        raise SystemExit("no thanks")


class Broken:
    """Raise what nobody expects."""

    def add_arguments(self, parser: Any) -> None:
        pass

    def run(self, args: Any) -> None:
        raise RuntimeError("kaputt")

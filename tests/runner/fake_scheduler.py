"""A scheduler whose jobs are files: other processes see them, and a test sets their states."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shunter.errors import BackendError
from shunter.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from shunter.schedulers.ids import make_unique
from shunter.specs import (
    AppDef,
    AppDryRunInfo,
    AppState,
    ReplicaStatus,
    Role,
    RoleStatus,
    Workspace,
    from_json,
    macros,
    option,
    to_json,
)
from shunter.workspace.docker_workspace import DockerWorkspaceMixin
from shunter.workspace.shipment import Shipment


@dataclass
class FakeOpts:
    queue: str = option("where it waits", default="default")
    tags: list[str] = option("its tags", factory=list)  # noqa: RUF009 - a field
    priority: int | None = option("its priority", default=None)
    fast: bool = option("whether to hurry", default=False)
    login: str | None = option("what opens the door", default=None, secret=True)


class FakeShipment:
    """Code that travels by being named in a file."""

    def __init__(self, scheduler: FakeScheduler, workspace: Workspace) -> None:
        self.scheduler = scheduler
        self.workspace = workspace
        self.manifest = SimpleNamespace(fingerprint="f" * 64)
        self.report = SimpleNamespace(warnings=list)

    def plan(self) -> dict[str, Any]:
        return {"workspace": str(self.workspace)}

    def ship(self, progress: Any) -> dict[str, str]:
        if self.scheduler.fail_ship is not None:
            raise self.scheduler.fail_ship
        progress.step("shipping")
        self.scheduler.shipped.append(str(self.workspace))
        return {"planned:code": "exact@sha256:1234"}


class FakeScheduler(DockerWorkspaceMixin, Scheduler[FakeOpts]):
    opts_class = FakeOpts

    def __init__(self, session_name: str, backend: str = "fake", **params: Any) -> None:
        super().__init__(backend, session_name)
        self.params = params
        self.directory = Path(os.environ["SHUNTER_HOME"]) / f"jobs-of-{backend}"
        self.chooses_ids = True
        self.fail_schedule: Exception | None = None
        self.fail_after_schedule: Exception | None = None
        self.fail_describe: Exception | None = None
        self.describe_calls: list[list[str]] = []
        self.fail_ship: BaseException | None = None
        self.shipped: list[str] = []
        self.images: set[str] = set()
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def _plan_shipment(
        self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]
    ) -> FakeShipment | None:
        if not workspace:
            return None
        for role in app.roles:
            role.image = "planned:code"
        return FakeShipment(self, workspace)

    def _toolkit_place(self, role: Role) -> None:
        return None

    def has_images(self, images: Sequence[str]) -> bool:
        return self.images.issuperset(images)

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], shipment: Shipment | None = None
    ) -> AppDryRunInfo[dict[str, Any]]:
        app_id = make_unique(app.name)
        roles = []
        for role in app.roles:
            values = macros.Values(os.getcwd(), app_id, "0", "TORCHX_RANK0_HOST")
            roles.append(to_json(values.apply(role)))
        request = {"app_id": app_id, "name": app.name, "roles": roles, "cfg": cfg, "state": "RUNNING"}
        info: AppDryRunInfo[dict[str, Any]] = AppDryRunInfo(request, json.dumps)
        info.app_id = app_id if self.chooses_ids else None
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[dict[str, Any]]) -> str:
        if self.fail_schedule is not None:
            raise self.fail_schedule
        request = dryrun_info.request
        self.directory.mkdir(parents=True, exist_ok=True)
        job = {**request, "cwd": os.getcwd(), "token": dryrun_info.client_token}
        path = self.directory / request["app_id"]
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(job))
        partial.rename(path)
        if self.fail_after_schedule is not None:
            raise self.fail_after_schedule
        return str(request["app_id"])

    def job(self, app_id: str) -> dict[str, Any]:
        job: dict[str, Any] = json.loads((self.directory / app_id).read_text())
        return job

    def set(self, app_id: str, **fields: Any) -> None:
        (self.directory / app_id).write_text(json.dumps({**self.job(app_id), **fields}))

    def forget(self, app_id: str) -> None:
        (self.directory / app_id).unlink()

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return self.describe_many([app_id])[app_id]

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = list(app_ids)
        self.describe_calls.append(ids)
        if self.fail_describe is not None:
            raise self.fail_describe
        return {app_id: self._look(app_id) for app_id in ids}

    def _look(self, app_id: str) -> DescribeAppResponse | None:
        try:
            job = self.job(app_id)
        except FileNotFoundError:
            return None
        state = AppState[job["state"]]
        statuses = [
            RoleStatus(
                role["name"], [ReplicaStatus(k, state, role["name"]) for k in range(role["num_replicas"])]
            )
            for role in job["roles"]
        ]
        from shunter.specs import Role

        roles = [from_json(Role, role) for role in job["roles"]]
        response = DescribeAppResponse(
            app_id, state, 0, job.get("msg", ""), roles_statuses=statuses, roles=roles
        )
        response.started_at, response.ended_at = job.get("started_at"), job.get("ended_at")
        return response

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        ids = sorted(path.name for path in self.directory.glob("*") if path.suffix != ".partial")
        return [ListAppResponse(i, AppState[self.job(i)["state"]], name=self.job(i)["name"]) for i in ids]

    def _cancel_existing(self, app_id: str) -> None:
        if self.job(app_id)["state"] not in ("SUCCEEDED", "FAILED", "CANCELLED"):
            self.set(app_id, state="CANCELLED")

    def _delete_existing(self, app_id: str) -> None:
        self.forget(app_id)

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: Any = None,
        until: Any = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        return [f"{role_name}/{k} says hello\n"]


class UnreachableScheduler(FakeScheduler):
    """One that always fails to answer."""

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        raise BackendError("the wire is cut, password=hunter22")

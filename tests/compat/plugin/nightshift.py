"""A scheduler as TorchX 0.7 documents it: options by `_run_opts`, `_validate` and `list` without options."""

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional

from torchx.schedulers.api import (
    AppDryRunInfo,
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
    filter_regex,
)
from torchx.schedulers.ids import make_unique
from torchx.specs import AppDef, AppState, CfgVal, ReplicaStatus, Role, RoleStatus, macros, runopts


class NightJob:
    def __init__(self, app_id: str, queue: str, roles: List[Dict[str, Any]]) -> None:
        self.app_id = app_id
        self.queue = queue
        self.roles = roles


class NightScheduler(Scheduler[Mapping[str, CfgVal]]):
    def __init__(self, session_name: str, depot: str = "") -> None:
        super().__init__("night", session_name)
        self.jobs = Path(depot)

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("queue", type_=str, help="where it waits", required=True)
        opts.add("nice", type_=int, help="how nice it is", default=3)
        opts.add("tags", type_=List[str], help="its tags")
        opts.add("labels", type_=Dict[str, str], help="its labels")
        return opts

    def _validate(self, app: AppDef, scheduler: str) -> None:
        if len(app.roles) != 1:
            raise ValueError(f"{scheduler} runs one role")

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[NightJob]:
        app_id = make_unique(app.name)
        roles = []
        for role in app.roles:
            replicas = []
            for replica_id in range(role.num_replicas):
                values = macros.Values(img_root="", app_id=app_id, replica_id=str(replica_id), rank0_env="X")
                own = values.apply(role)
                replicas.append({"args": [own.entrypoint, *own.args], "env": own.env})
            roles.append({"name": role.name, "image": role.image, "replicas": replicas})
        request = NightJob(app_id, str(cfg["queue"]), roles)
        return AppDryRunInfo(request, lambda job: f"night job on {job.queue}, nice {cfg['nice']}")

    def schedule(self, dryrun_info: AppDryRunInfo[NightJob]) -> str:
        job = dryrun_info.request
        folder = self.jobs / job.app_id
        folder.mkdir(parents=True)
        for role in job.roles:
            for number, replica in enumerate(role["replicas"]):
                with open(folder / f"{role['name']}-{number}.log", "w") as log:
                    env = {**os.environ, **replica["env"]}
                    subprocess.run(replica["args"], env=env, stdout=log, check=True)
        state = "RUNNING" if job.queue == "slow" else "SUCCEEDED"
        (folder / "job.json").write_text(json.dumps({"state": state, "roles": job.roles}))
        return job.app_id

    def describe(self, app_id: str) -> Optional[DescribeAppResponse]:
        path = self.jobs / app_id / "job.json"
        if not path.exists():
            return None
        job = json.loads(path.read_text())
        state = AppState[job["state"]]
        statuses, roles = [], []
        for role in job["roles"]:
            count = len(role["replicas"])
            replicas = [
                ReplicaStatus(id=k, state=state, role=role["name"], hostname="") for k in range(count)
            ]
            statuses.append(RoleStatus(role=role["name"], replicas=replicas))
            words = role["replicas"][0]["args"]
            roles.append(
                Role(role["name"], role["image"], entrypoint=words[0], args=words[1:], num_replicas=count)
            )
        return DescribeAppResponse(
            app_id=app_id, state=state, msg="by moonlight", roles_statuses=statuses, roles=roles
        )

    def list(self) -> List[ListAppResponse]:
        found = self.jobs.glob("*/job.json")
        return [
            ListAppResponse(app_id=path.parent.name, state=AppState[json.loads(path.read_text())["state"]])
            for path in found
        ]

    def _cancel_existing(self, app_id: str) -> None:
        path = self.jobs / app_id / "job.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "state": "CANCELLED"}))

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: Optional[str] = None,
        since: Optional[datetime] = None,
        until: Optional[datetime] = None,
        should_tail: bool = False,
        streams: Optional[Stream] = None,
    ) -> Iterable[str]:
        lines: Iterable[str] = (self.jobs / app_id / f"{role_name}-{k}.log").read_text().splitlines()
        return filter_regex(regex, lines) if regex else lines


def create_scheduler(session_name: str, **kwargs: Any) -> NightScheduler:
    return NightScheduler(session_name, depot=kwargs["depot"])  # of the variable TORCHX_DEPOT

"""A scheduler that derives from an installed TorchX's `Scheduler`, in our runner. Run by TorchX's Python.

It checks that it is given objects of TorchX's classes, and prints what the runner answers as JSON.
"""

from __future__ import annotations

import json
from typing import Any

import torchx.specs as specs
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream

from shunter.runner.api import Runner
from shunter.schedulers.responses import Stream as OurStream


class Shelf(Scheduler[dict[str, Any]]):
    """Keeps jobs in memory; one ends when it has been looked at twice, unless it is on the queue ``slow``."""

    def __init__(self, session_name: str) -> None:
        super().__init__("shelf", session_name)
        self.jobs: dict[str, tuple[Any, Any]] = {}
        self.looks = 0

    def _run_opts(self) -> specs.runopts:
        options = specs.runopts()
        options.add("queue", type_=str, help="where it waits", required=True)
        options.add("nice", type_=int, help="priority", default=3)
        return options

    def _submit_dryrun(self, app: specs.AppDef, cfg: Any) -> specs.AppDryRunInfo[Any]:
        assert type(app) is specs.AppDef
        assert {type(role) for role in app.roles} == {specs.Role}
        assert isinstance(app.roles[0].retry_policy, specs.RetryPolicy)
        return specs.AppDryRunInfo({"app": app.name, "cfg": dict(cfg)}, str)

    def schedule(self, dryrun_info: specs.AppDryRunInfo[Any]) -> str:
        assert type(dryrun_info) is specs.AppDryRunInfo
        assert type(dryrun_info._app) is specs.AppDef
        assert dryrun_info._scheduler == "renamed"
        app_id = f"{dryrun_info.request['app']}-{len(self.jobs)}"
        ended = dryrun_info.request["cfg"]["queue"] != "slow"
        self.jobs[app_id] = dryrun_info._app, specs.AppState.SUCCEEDED if ended else specs.AppState.RUNNING
        self.looks = 0
        return app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        if app_id not in self.jobs:
            return None
        app, state = self.jobs[app_id]
        self.looks += 1
        state = state if self.looks > 2 else specs.AppState.RUNNING
        replicas = [specs.ReplicaStatus(0, state, app.roles[0].name, "host")]
        return DescribeAppResponse(
            app_id,
            state,
            msg="on the shelf",
            roles=app.roles,
            roles_statuses=[specs.RoleStatus(app.roles[0].name, replicas)],
        )

    def list(self) -> list[ListAppResponse]:
        return [ListAppResponse(app_id, state) for app_id, (_, state) in self.jobs.items()]

    def _cancel_existing(self, app_id: str) -> None:
        self.jobs[app_id] = self.jobs[app_id][0], specs.AppState.CANCELLED

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
    ) -> Any:
        assert streams is None or type(streams) is Stream
        return iter([f"{role_name}/{k}", f"{streams and streams.value}\n"])


def main() -> None:
    """Ask the runner everything."""
    answers: dict[str, Any] = {}
    role = specs.Role("r", "", entrypoint="true", args=["x"], resource=specs.Resource(1, 0, 10))
    app = specs.AppDef("job", [role])
    factories: Any = {"renamed": lambda session_name, **_: Shelf(session_name)}
    with Runner("s", factories) as runner:
        info = runner.dryrun(app, "renamed", {"queue": "q"})
        answers["dryrun"] = info.request
        handle = runner.run(app, "renamed", {"queue": "q"})
        answers["run"] = handle
        ended = runner.wait(handle, 0.01)
        assert ended is not None
        answers["wait"] = [ended.state.name, ended.msg, ended.roles[0].replicas[0].hostname]
        answers["log_lines"] = list(runner.log_lines(handle, "r", 1, streams=OurStream.STDERR))
        described = runner.describe(handle)
        assert described is not None
        answers["describe"] = [described.roles[0].entrypoint, described.roles[0].args]
        made = runner.run_component("utils.echo", ["--msg", "hello"], "renamed", {"queue": "slow"})
        answers["run_component"] = made
        runner.cancel(made)
        runner.status(made)
        status = runner.wait(made, 0.01)
        assert status is not None
        answers["cancel"] = status.state.name
        answers["list"] = [[row.app_handle, row.state.name] for row in runner.list("renamed")]
        answers["nothing"] = [runner.status("renamed://s/no"), runner.describe("renamed://s/no")]
        answers["options"] = [name for name, _ in runner.scheduler_run_opts("renamed")]
        try:
            runner.dryrun(app, "renamed", {"queue": 1})
        except ValueError as error:
            answers["wrong option"] = str(error)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()

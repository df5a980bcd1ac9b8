"""A scheduler as TorchX documents it in 2026: options as a dataclass, and given to every method."""

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional

from nightshift import NightJob, NightScheduler
from torchx.schedulers.api import AppDryRunInfo, ListAppResponse, StructuredOpts
from torchx.specs import AppDef, Role


@dataclass
class DayOpts(StructuredOpts):
    queue: str
    """where it waits"""

    nice: Optional[int] = 7
    """how nice it is"""


class DayScheduler(NightScheduler):
    def _run_opts(self) -> Any:
        return DayOpts.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, Any]) -> None:
        if cfg["queue"] == "closed":
            raise ValueError(f"the queue of {scheduler} is closed")

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[NightJob]:
        opts = DayOpts.from_cfg(cfg)
        return super()._submit_dryrun(app, {"queue": opts.queue, "nice": opts.nice})

    def list(self, cfg: Optional[Mapping[str, Any]] = None) -> List[ListAppResponse]:
        return super().list()

    def workspace_opts(self) -> Any:
        from torchx.specs import runopts

        opts = runopts()
        opts.add("job_dir", type_=str, help="where the code goes")
        return opts

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        role.image = f"code of {workspace}"


def create_scheduler(session_name: str, depot: str) -> DayScheduler:
    return DayScheduler(session_name, depot)

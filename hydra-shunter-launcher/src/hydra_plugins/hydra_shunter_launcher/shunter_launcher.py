"""Runs each job of a multirun as a shunter job, which runs the script again with the job's overrides."""

# No `from __future__ import annotations`: Hydra executes this file outside of sys.modules.
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.hydra_shunter_launcher.return_value import FILE
from omegaconf import DictConfig, OmegaConf, open_dict

_CALLBACK = "hydra_plugins.hydra_shunter_launcher.return_value.SaveReturnValue"


@dataclass
class ShunterLauncherConf:
    """The options, as ``hydra.launcher.NAME=VALUE``; see the README."""

    _target_: str = "hydra_plugins.hydra_shunter_launcher.shunter_launcher.ShunterLauncher"
    scheduler: str = "local_cwd"
    cfg: Dict[str, Any] = field(default_factory=dict)
    workspace: Optional[str] = None
    image: str = "<NONE>"
    env: Dict[str, str] = field(default_factory=dict)
    h: Optional[str] = None
    cpu: int = 1
    gpu: int = 0
    memMB: int = 1024
    max_retries: int = 0
    python: Optional[str] = None


ConfigStore.instance().store("shunter", ShunterLauncherConf, group="hydra/launcher", provider="shunter")


class ShunterLauncher(Launcher):
    """Submits all jobs, then waits for them."""

    def __init__(self, **options: Any) -> None:
        self.options = ShunterLauncherConf(**options)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store what Hydra passes to a launcher."""
        self.context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs; returns how each ended, in the order of their overrides."""
        from shunter.runner import get_runner

        logging.getLogger("shunter.events").setLevel(logging.WARNING)  # Hydra would show records below it
        jobs = []
        with get_runner() as runner:
            for number, overrides in enumerate(job_overrides, initial_job_idx):
                config = self._config_of(list(overrides), number)
                handle = runner.run(
                    self._app(
                        config,
                        list(overrides),
                        runner.scheduler(self.options.scheduler).capabilities.is_local,
                    ),
                    self.options.scheduler,
                    OmegaConf.to_container(OmegaConf.create(self.options.cfg), resolve=True),
                    self.options.workspace,
                )
                print(f"#{number} {handle} : {' '.join(overrides)}", flush=True)  # noqa: T201 - as Hydra does
                jobs.append((handle, config, list(overrides)))
            return [_result(runner.wait(handle), handle, *rest) for handle, *rest in jobs]

    def _config_of(self, overrides: list[str], number: int) -> DictConfig:
        config = self.context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            config.hydra.job.id = f"{config.hydra.job.name}_{number}"
            config.hydra.job.num = number
        HydraConfig.instance().set_config(config)
        return config

    def _app(self, config: DictConfig, overrides: list[str], is_local: bool) -> Any:
        from shunter.specs import AppDef, Role, resource

        options = self.options
        folder = Path(config.hydra.sweep.dir, config.hydra.sweep.subdir)
        args = [os.path.relpath(sys.argv[0])]
        if config.hydra.job.config_name:
            args.append(f"--config-name={config.hydra.job.config_name}")
        args += [
            *overrides,
            *("hydra.mode=RUN", "hydra/launcher=basic", f"hydra.job.num={config.hydra.job.num}"),
            f"hydra.run.dir='{folder.absolute() if is_local else folder}'",
            f"+hydra.callbacks.shunter._target_={_CALLBACK}",
        ]
        role = Role(
            name=str(config.hydra.job.name),
            image=options.image,
            entrypoint=options.python or (sys.executable if is_local else "python"),
            args=[word.replace("$", "$$") for word in args],
            env=dict(options.env),
            max_retries=options.max_retries,
            resource=resource(options.cpu, options.gpu, options.memMB, options.h),
        )
        return AppDef(str(config.hydra.job.name), [role])


def _result(status: Any, handle: str, config: DictConfig, overrides: list[str]) -> JobReturn:
    folder = Path(config.hydra.sweep.dir, config.hydra.sweep.subdir).absolute()
    result = JobReturn(overrides, config, config.hydra, str(folder), config.hydra.job.name)
    state = "unknown" if status is None else status.state.name
    if state == "SUCCEEDED":
        result.status = JobStatus.COMPLETED
        path = folder / FILE
        result.return_value = json.loads(path.read_text()) if path.exists() else None
    else:
        result.status = JobStatus.FAILED
        reason = "" if status is None else f": {status.msg}"
        result.return_value = RuntimeError(f"the job {handle} is {state}{reason}; shunter why {handle}")
    return result

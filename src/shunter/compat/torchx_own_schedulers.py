"""TorchX's own schedulers as classes to derive from and to call: ours, with TorchX's interface and hooks.

``torchx.schedulers.docker_scheduler.DockerScheduler`` and its siblings. A subclass overrides TorchX's hooks
(``_submit_dryrun``, ``_cancel_existing``, ``log_iter``, ...); our scheduler answers the other calls.
The runner uses our scheduler itself unless something is overridden or patched, see
`shunter.schedulers.registry.as_scheduler`.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from shunter.compat.plugin_scheduler import PluginScheduler
from shunter.compat.torchx_docker import state_of_container
from shunter.compat.torchx_schedulers import TorchxDescribeAppResponse, as_torchx_rows
from shunter.compat.torchx_specs import known_state
from shunter.compat.torchx_workspace import DirWorkspaceMixin, TorchxDockerWorkspaceMixin
from shunter.schedulers.api import Scheduler
from shunter.schedulers.responses import DescribeAppResponse, ListAppResponse, Stream
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import runopts

T = TypeVar("T")
HOOKS = ["close", "describe", "list", "exists", "schedule", "submit", "submit_dryrun", "cancel", "delete"]
HOOKS += ["log_iter", "run_opts", "_run_opts", "_validate", "_submit_dryrun", "_cancel_existing"]
HOOKS += ["_delete_existing"]


class OwnScheduler(PluginScheduler[T]):
    """Answers TorchX's calls by the scheduler of ours that `ours` names as ``module:class``."""

    ours: ClassVar[str] = ""

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        """Count our own class as a subclass, without importing it."""
        place = cls.__dict__.get("ours")
        if place and any(f"{base.__module__}:{base.__qualname__}" == place for base in other.__mro__):
            return True
        return NotImplemented

    def as_ours(self) -> Scheduler[Any] | None:
        """Return our scheduler; None for a subclass from elsewhere, or if a test has patched this class."""
        return self._answering if _UNCHANGED.get(type(self)) == _hooks(type(self)) else None

    def _answer_by(self, *given: Any) -> None:
        """Make our scheduler from these arguments."""
        module, _, name = self.ours.partition(":")
        self._answering: Scheduler[Any] = getattr(import_module(module), name)(*given)

    @property
    def _makes_its_requests(self) -> bool:
        return type(self)._submit_dryrun is not OwnScheduler._submit_dryrun

    def close(self) -> None:
        """Close connections."""
        self._answering.close()

    def run_opts(self) -> runopts:
        """Return the options: ours and those of the workspace, or those of a subclass."""
        if type(self)._run_opts is not OwnScheduler._run_opts:
            return super().run_opts()
        return self._run_opts()

    def _run_opts(self) -> runopts:
        workspace_opts = getattr(self, "workspace_opts", runopts)
        options: runopts = workspace_opts()
        options.update(self._answering.run_opts())
        return options

    def submit(self, app: AppDef, cfg: Any, workspace: str | None = None) -> str:
        """Make a request and send it; returns the job's id."""
        if self._makes_its_requests:
            return super().submit(app, cfg, workspace)
        return self._answering.submit(app, cfg, workspace)

    def submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo[Any]:
        """Make the request, and let each role's ``pre_proc`` change it."""
        if self._makes_its_requests:
            return super().submit_dryrun(app, cfg)
        return self._answering.submit_dryrun(app, cfg)

    def _validate(self, app: AppDef, scheduler: str, cfg: Any = None) -> None:
        """Do nothing: our schedulers check jobs when they make the request."""

    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo[Any]:
        return self._answering.submit_dryrun(app, cfg)

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Send a request; returns the job's id."""
        return self._answering.schedule(dryrun_info)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what is known of a job; None if there is no such job."""
        found = self._answering.describe(app_id)
        if found is None:
            return None
        return TorchxDescribeAppResponse(**{**vars(found), "state": known_state(found.state)})

    def list(self, cfg: Any = None) -> builtins.list[ListAppResponse]:
        """Return the jobs of this scheduler."""
        return as_torchx_rows(self._answering.list(cfg))

    def _cancel_existing(self, app_id: str) -> None:
        self._answering.cancel(app_id)

    def _delete_existing(self, app_id: str) -> None:
        self._answering.delete(app_id)

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Return the lines of a replica's log."""
        return self._answering.log_iter(app_id, role_name, k, regex, since, until, should_tail, streams)


class TorchxDockerScheduler(TorchxDockerWorkspaceMixin, OwnScheduler[Mapping[str, Any]]):
    """Runs jobs in containers of this machine."""

    ours = "shunter.schedulers.docker_scheduler.scheduler:DockerScheduler"

    def __init__(self, session_name: str) -> None:
        super().__init__("docker", session_name)
        self._answer_by(session_name)

    def _get_app_state(self, container: Any) -> Any:
        """Return the state of a container of docker-py."""
        return state_of_container(container)


class TorchxSlurmScheduler(DirWorkspaceMixin, OwnScheduler[Mapping[str, Any]]):
    """Runs jobs on a Slurm cluster."""

    ours = "shunter.schedulers.slurm_scheduler.scheduler:SlurmScheduler"

    def __init__(self, session_name: str) -> None:
        super().__init__("slurm", session_name)
        self._answer_by(session_name)


class TorchxKubernetesScheduler(TorchxDockerWorkspaceMixin, OwnScheduler[Mapping[str, Any]]):
    """Runs jobs on a Kubernetes cluster."""

    ours = "shunter.schedulers.kubernetes_scheduler.scheduler:KubernetesScheduler"

    def __init__(self, session_name: str, client: Any = None, docker_client: Any = None) -> None:
        super().__init__("kubernetes", session_name, docker_client=docker_client)
        self._answer_by(session_name, client, docker_client)


class TorchxAWSBatchScheduler(TorchxDockerWorkspaceMixin, OwnScheduler[Mapping[str, Any]]):
    """Runs jobs on AWS Batch."""

    ours = "shunter.schedulers.aws_batch_scheduler.scheduler:AWSBatchScheduler"

    def __init__(
        self, session_name: str, client: Any = None, log_client: Any = None, docker_client: Any = None
    ) -> None:
        super().__init__("aws_batch", session_name, docker_client=docker_client)
        self._given = {"batch": client, "logs": log_client}
        self._answer_by(session_name, client, log_client, docker_client)

    @property
    def _client(self) -> Any:
        return _boto3_client(self._given, "batch")

    @property
    def _log_client(self) -> Any:
        return _boto3_client(self._given, "logs")


class TorchxAWSSageMakerScheduler(TorchxDockerWorkspaceMixin, OwnScheduler[Mapping[str, Any]]):
    """Runs training jobs on SageMaker."""

    ours = "shunter.schedulers.aws_sagemaker_scheduler.scheduler:AWSSageMakerScheduler"

    def __init__(self, session_name: str, client: Any = None, docker_client: Any = None) -> None:
        super().__init__("aws_sagemaker", session_name, docker_client=docker_client)
        self._given = {"sagemaker": client}
        self._answer_by(session_name, client, docker_client)

    @property
    def _client(self) -> Any:
        return _boto3_client(self._given, "sagemaker")


class TorchxLsfScheduler(OwnScheduler[Mapping[str, Any]]):
    """Runs jobs on an LSF cluster."""

    ours = "shunter.schedulers.lsf_scheduler.scheduler:LsfScheduler"

    def __init__(self, session_name: str) -> None:
        super().__init__("lsf", session_name)
        self._answer_by("lsf", session_name)


def _boto3_client(made: dict[str, Any], service: str) -> Any:
    """Return the client that a scheduler was given, or else one of the environment."""
    if made[service] is None:
        import boto3

        made[service] = boto3.client(service)
    return made[service]


def _hooks(cls: type) -> builtins.list[Any]:
    return [getattr(cls, name) for name in HOOKS]


_UNCHANGED = {cls: _hooks(cls) for cls in OwnScheduler.__subclasses__()}


# ---- factories


def create_docker_scheduler(session_name: str, **kwargs: Any) -> TorchxDockerScheduler:
    """Make a scheduler for a session."""
    return TorchxDockerScheduler(session_name)


def create_slurm_scheduler(session_name: str, **kwargs: Any) -> TorchxSlurmScheduler:
    """Make a scheduler for a session."""
    return TorchxSlurmScheduler(session_name)


def create_lsf_scheduler(session_name: str, **kwargs: Any) -> TorchxLsfScheduler:
    """Make a scheduler for a session."""
    return TorchxLsfScheduler(session_name)


def create_kubernetes_scheduler(
    session_name: str, client: Any = None, docker_client: Any = None, **kwargs: Any
) -> TorchxKubernetesScheduler:
    """Make a scheduler for a session."""
    return TorchxKubernetesScheduler(session_name, client, docker_client)


def create_aws_batch_scheduler(
    session_name: str,
    client: Any = None,
    log_client: Any = None,
    docker_client: Any = None,
    **kwargs: Any,
) -> TorchxAWSBatchScheduler:
    """Make a scheduler for a session."""
    return TorchxAWSBatchScheduler(session_name, client, log_client, docker_client)


def create_aws_sagemaker_scheduler(
    session_name: str, client: Any = None, docker_client: Any = None, **kwargs: Any
) -> TorchxAWSSageMakerScheduler:
    """Make a scheduler for a session."""
    return TorchxAWSSageMakerScheduler(session_name, client, docker_client)

"""TorchX's own schedulers as classes to derive from: ours answer what a subclass does not override.

A subclass overrides TorchX's hooks (``_submit_dryrun``, ``schedule``, ``describe``, ``_cancel_existing``,
``log_iter``, ...). Called itself, such a class makes our scheduler.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import datetime
from importlib import import_module
from typing import Any, ClassVar

from shunter.compat.plugin_scheduler import PluginScheduler
from shunter.compat.specs.status import torchx_rows, torchx_state
from shunter.schedulers.responses import Stream
from shunter.specs.app import AppDef
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import runopts
from shunter.workspace.docker_workspace import DockerWorkspaceMixin


class AnsweredByOurs:
    """A scheduler with TorchX's interface whose calls one of our schedulers answers: `_made`."""

    _made: Any

    def _as_theirs(self, value: Any) -> Any:
        """Return an answer in the classes of those who ask. Overridden where these are not ours."""
        return value

    def _validate(self, app: Any, scheduler: str, *cfg: Any) -> None:
        """Do nothing: our schedulers check jobs when they make the request."""

    def describe(self, app_id: str) -> Any:
        """Return what is known of a job; None if there is no such job."""
        response = self._made.describe(app_id)
        if response is not None:
            response.state = torchx_state(response.state)
        return self._as_theirs(response)

    def list(self, cfg: Any = None) -> Any:
        """Return the jobs of this scheduler."""
        return self._as_theirs(torchx_rows(self._made.list(cfg)))

    def exists(self, app_id: str) -> bool:
        """Tell whether there is such a job."""
        return bool(self._made.exists(app_id))

    def _cancel_existing(self, app_id: str) -> None:
        self._made.cancel(app_id)

    def _delete_existing(self, app_id: str) -> None:
        self._made.delete(app_id)

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Any = None,
    ) -> Iterable[str]:
        """Return the lines of a replica's log."""
        if streams is not None:
            streams = Stream(str(streams.value))
        lines: Iterable[str] = self._made.log_iter(
            app_id, role_name, k, regex, since, until, should_tail, streams
        )
        return lines


class DerivableScheduler(AnsweredByOurs, PluginScheduler[Any]):
    """The base of all of them. It is made with the arguments of our scheduler."""

    #: Our scheduler's class, as ``module:name``.
    ours: ClassVar[str] = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make our scheduler, or an instance of a subclass."""
        return cls._make(*args, **kwargs) if "ours" in vars(cls) else super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._made = self._make(*args, **kwargs)
        super().__init__(self._made.backend, self._made.session_name)

    @classmethod
    def _make(cls, *args: Any, **kwargs: Any) -> Any:
        return import_module(cls.ours.partition(":")[0]).create_scheduler(*args, **kwargs)

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        """Count our scheduler's class as a subclass, without importing it."""
        module, _, name = vars(cls).get("ours", "").partition(":")
        ours = (f"{module}.scheduler", name)
        return any((base.__module__, base.__name__) == ours for base in other.__mro__) or NotImplemented

    def __getattr__(self, name: str) -> Any:
        if name == "_made":
            raise AttributeError("the constructor of the base class has not been called")
        return getattr(self._made, name)

    def close(self) -> None:
        """Close connections."""
        self._made.close()

    def exists(self, app_id: str) -> bool:
        """Tell whether there is such a job. A subclass may describe it itself, which counts as in TorchX."""
        return self.describe(app_id) is not None

    def _run_opts(self) -> runopts:
        options: runopts = self._made.run_opts()
        return options

    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo[Any]:
        plain = copy.copy(app)
        plain.roles = [copy.copy(role) for role in app.roles]
        for role in plain.roles:  # it is `submit_dryrun` that lets them change the request
            role.pre_proc = lambda scheduler, dryrun_info: dryrun_info  # type: ignore[method-assign]
        info: AppDryRunInfo[Any] = self._made.submit_dryrun(plain, cfg)
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Send a request; returns the job's id."""
        return str(self._made.schedule(dryrun_info))


class KubernetesScheduler(DockerWorkspaceMixin, DerivableScheduler):
    """Runs jobs on a Kubernetes cluster."""

    ours = "shunter.schedulers.kubernetes_scheduler:KubernetesScheduler"


class AWSBatchScheduler(DockerWorkspaceMixin, DerivableScheduler):
    """Runs jobs on AWS Batch."""

    ours = "shunter.schedulers.aws_batch_scheduler:AWSBatchScheduler"


class AWSSageMakerScheduler(DockerWorkspaceMixin, DerivableScheduler):
    """Runs training jobs on SageMaker."""

    ours = "shunter.schedulers.aws_sagemaker_scheduler:AWSSageMakerScheduler"


class LsfScheduler(DerivableScheduler):
    """Runs jobs on an LSF cluster."""

    ours = "shunter.schedulers.lsf_scheduler:LsfScheduler"

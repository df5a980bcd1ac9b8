"""What is to be run, where and how, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from shunter.errors import UsageError
from shunter.specs.app import AppDef
from shunter.specs.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job to submit. Made once, from Python or from command line and configuration, and never changed.

    `Runner.plan` makes the request from it; the history stores it in the job's `JobRecord`.

    Attributes:
        app: the job itself; None if a component makes it.
        component: a builtin's name, ``file.py:function``, or a plugin's component.
        arguments: the component's arguments, as on the command line or by parameter name.
        defaults: values of parameters of the component that are not among the arguments.
        scheduler: name of the scheduler; "" for the runner's default one.
        name: name of the job; "" leaves that of its definition.
        options: the scheduler's options, as a mapping or as its options dataclass.
        workspace: the code that travels with the job, see `Workspace.from_str`; none by default.
        after: jobs of the same scheduler that have to succeed before this one starts, as
            `Runner.resolve_handle` takes them; with ``:any`` after the handle, any outcome will do.
        metrics: names and regular expressions of the metrics in its log; the first group is the value.
        parent_run_id: the run that this one belongs to.
        directory: the directory that it is submitted from; None for the current one.
        rerun_of: handle of the job that this one repeats.
        sweep: id of the sweep that this job is a point of, with its number there in ``point``.
        point: see ``sweep``.
        race: id of the race that this job takes part in, see `shunter.runner.races`.
        lease: the presigned URLs of that race's lease, if this is an object of S3; "" without.
        fingerprint: the code that the images of ``app`` already hold, where no workspace travels.
        images: by role, these images.
    """

    app: AppDef | None = None
    component: str | None = None
    arguments: Sequence[str] | Mapping[str, Any] = ()
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    scheduler: str = ""
    name: str = ""
    options: Any = field(default_factory=lambda: MappingProxyType({}))
    workspace: Workspace | str | None = None
    after: Sequence[str] = ()
    metrics: Mapping[str, str] | None = None
    parent_run_id: str | None = None
    directory: str | None = None
    rerun_of: str | None = None
    sweep: str | None = None
    point: int | None = None
    race: str | None = None
    lease: str = field(default="", repr=False)
    fingerprint: str | None = None
    images: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.app is not None and not hasattr(self.app, "roles"):  # TorchX's own has them too
            raise UsageError(f"app={self.app!r}: expected an AppDef; for a component: run_component")
        _check(self.component, "component", str | None, "a name, such as 'utils.echo'")
        _check(self.arguments, "arguments", Sequence | Mapping, _ARGUMENTS)
        if isinstance(self.arguments, str) or not all(isinstance(word, str) for word in self.arguments):
            raise UsageError(f"arguments={self.arguments!r}: expected {_ARGUMENTS}")
        _check(self.scheduler, "scheduler", str, "a name, such as 'local_cwd'")


_ARGUMENTS = "a list of words, such as ['--msg', 'hello'], or a dict, such as {'msg': 'hello'}"


def _check(value: object, name: str, kinds: Any, description: str) -> None:
    """Refuse a value of another type.

    Raises:
        UsageError: it is.
    """
    if not isinstance(value, kinds):
        raise UsageError(f"{name}={value!r}: expected {description}")

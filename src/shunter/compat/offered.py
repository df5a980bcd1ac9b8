"""Our schedulers for an installed TorchX, which finds them by its entry points ``torchx.schedulers``.

Releases of TorchX up to 0.7 drop their own schedulers as soon as a distribution offers one. Schedulers that
TorchX has itself are therefore offered too: from TorchX's own module where that exists.

Jobs started this way are recorded in shunter's history, so `shunter list` and the other commands know
them. As in shunter, a dry run builds and sends nothing: the code is shipped when the job is submitted.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

from shunter import specs
from shunter.cli.shown_plan import shown_request
from shunter.compat.schedulers.derivable import AnsweredByOurs
from shunter.runner import Runner
from shunter.runner.preparation import inject
from shunter.schedulers import responses
from shunter.schedulers.api import Scheduler
from shunter.schedulers.registry import DEFAULT_SCHEDULER_MODULES, get_scheduler_factory
from shunter.specs.conversion import is_dict_type, is_list_type, list_item_type
from shunter.specs.handles import parse_app_handle
from shunter.specs.serialize import to_json
from shunter.specs.translation import classes_of, translated
from shunter.specs.workspace import Workspace

#: TorchX's schedulers and their modules; shunter's own are used where TorchX no longer has the module.
KEPT = {
    "local_docker": "torchx.schedulers.docker_scheduler",
    "local_cwd": "torchx.schedulers.local_scheduler",
    "slurm": "torchx.schedulers.slurm_scheduler",
    "kubernetes": "torchx.schedulers.kubernetes_scheduler",
    "kubernetes_mcad": "torchx.schedulers.kubernetes_mcad_scheduler",
    "gcp_batch": "torchx.schedulers.gcp_batch_scheduler",
}
#: Schedulers that are always ours.
OURS = ("aws_batch", "aws_sagemaker", "sagemaker_local", "ray", "lsf", "sge")
_PLAIN = (str, int, float, bool)


def create(name: str, session_name: str, **parameters: Any) -> Any:
    """Make a scheduler for TorchX.

    Raises:
        ModuleNotFoundError: neither TorchX nor shunter has it.
    """
    module = KEPT.get(name, "")
    if module and (importlib.util.find_spec(module) or name not in DEFAULT_SCHEDULER_MODULES):
        return importlib.import_module(module).create_scheduler(session_name, **parameters)
    return make_class(name)(name, session_name, parameters)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in KEPT and name not in OURS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return functools.partial(create, name)


@functools.cache
def make_class(name: str) -> type:
    """Return the class for a scheduler, derived from those of the installed TorchX."""
    from torchx.schedulers.api import Scheduler as TheirScheduler
    from torchx.workspace import WorkspaceMixin

    ours = get_scheduler_factory(name)("torchx")
    ships = ours.capabilities.ships_by_default
    ours.close()
    bases = (_Offered, *((_Workspace, WorkspaceMixin) if ships else ()), TheirScheduler)
    return type("OfferedScheduler", bases, {"__module__": __name__})


class _Offered(AnsweredByOurs):
    """Answers the calls of an installed TorchX by one of our schedulers.

    Args:
        name: name of the scheduler.
        session_name: name of TorchX's session.
        parameters: what TorchX passes to every scheduler. Strings are ignored: they come from environment
            variables.
    """

    def __init__(self, name: str, session_name: str, parameters: Mapping[str, Any]) -> None:
        super().__init__(name, session_name)  # type: ignore[call-arg]
        given = {key: value for key, value in parameters.items() if not isinstance(value, str)}
        self._runner = Runner(session_name, {name: get_scheduler_factory(name)}, scheduler_params=given)
        self._name = name
        self._workspace = ""

    @property
    def _made(self) -> Scheduler[Any]:
        return self._runner.scheduler(self._name)

    def close(self) -> None:
        """Close the connections and the history."""
        self._runner.close()

    def _run_opts(self) -> Any:
        from torchx.specs import runopts

        options = runopts()
        for name, option in self._made.run_opts():
            kind = _their_type(option.opt_type)
            default = option.default if kind is not str or isinstance(option.default, str) else None
            options.add(name, type_=kind, help=option.help, default=default, required=option.is_required)
        return options

    def _submit_dryrun(self, app: Any, cfg: Mapping[str, Any]) -> Any:
        from torchx.specs import AppDryRunInfo

        job = translated(app, _our_classes())
        definition = to_json(job)
        inject(job, self._name, self._made.session_name)
        workspace = Workspace.from_str(self._workspace)
        self._workspace = ""
        given = {key: value for key, value in cfg.items() if value is not None}
        info = self._made.submit_dryrun(job, given, workspace)
        info.definition, info.travels = definition, str(workspace) or None
        offered = AppDryRunInfo(info.request, lambda _: _shown(info))
        offered.shunter = info
        return offered

    def schedule(self, dryrun_info: Any) -> str:
        """Ship the job's code and start the job; returns its id."""
        info = dryrun_info.shunter
        info.request = dryrun_info.request
        return parse_app_handle(self._runner.schedule(info)).app_id

    def _as_theirs(self, value: Any) -> Any:
        return translated(value, _their_classes())


class _Workspace:
    """What TorchX asks of a scheduler whose jobs take a workspace with them."""

    _workspace: str

    def workspace_opts(self) -> Any:
        """Return no options: those of our schedulers have the workspace's among them."""
        from torchx.specs import runopts

        return runopts()

    def build_workspace_and_update_role(self, role: Any, workspace: Any, cfg: Mapping[str, Any]) -> None:
        """Note the workspace for the request that is made next."""
        projects = getattr(workspace, "projects", None)
        if projects is None:
            self._workspace = str(workspace)
        else:
            self._workspace = ",".join(f"{source}={to or '.'}" for source, to in projects.items())

    def caching_build_workspace_and_update_role(
        self, role: Any, cfg: Mapping[str, Any], build_cache: Mapping[object, object]
    ) -> None:
        """Note the workspace of a role, as releases of 2026 give it."""
        if role.workspace:
            self.build_workspace_and_update_role(role, role.workspace, cfg)

    def dryrun_push_images(self, app: Any, cfg: Mapping[str, Any]) -> Any:
        """Do nothing: the request names the images already."""

    def push_images(self, images_to_push: Any) -> None:
        """Do nothing: our schedulers push when the job is submitted."""


@functools.cache
def _our_classes() -> dict[str, type]:
    return classes_of(specs, responses)


@functools.cache
def _their_classes() -> dict[str, type]:
    from torchx.schedulers import api
    from torchx.specs import api as their_specs

    return classes_of(their_specs, api)


def _their_type(kind: Any) -> Any:
    """Return an option's type for TorchX; str, so that the text is passed on, if TorchX cannot parse it."""
    if kind in _PLAIN:
        return kind
    if is_list_type(kind) and list_item_type(kind) is str:
        return typing.List[str]  # noqa: UP006 - compared with this by TorchX
    if is_dict_type(kind):
        return typing.Dict[str, str]  # noqa: UP006
    return str


def _shown(info: Any) -> str:
    """Return a request in readable form, without secrets."""
    request = shown_request(info)
    return request if isinstance(request, str) else json.dumps(request, default=str, indent=2)

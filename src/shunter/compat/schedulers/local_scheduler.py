"""TorchX's local scheduler as a class to derive from (``torchx.schedulers.local_scheduler``).

Jobs are those of our `local_cwd`. What is TorchX's is here: a request that names each process, images that
are directories of this machine, a file with both streams of a replica, and that `close` ends the jobs.
"""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import os
import pprint
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from shunter.compat.schedulers.derivable import DerivableScheduler
from shunter.schedulers.local_scheduler import LocalScheduler as SupervisedScheduler
from shunter.schedulers.local_scheduler.request import RANK0_ENV, visible_gpus
from shunter.schedulers.responses import DescribeAppResponse, Stream
from shunter.specs.app import AppDef, Role, macros
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.resources import NULL_RESOURCE
from shunter.specs.status import AppState, is_terminal

log = logging.getLogger(__name__)
AppId = str
STDOUT_LOG, STDERR_LOG, COMBINED_LOG = "stdout.log", "stderr.log", "combined.log"
#: Variables of ours that TorchX sets too.
_DEFAULTS = (RANK0_ENV, "TORCHELASTIC_ERROR_FILE", "PET_LOG_DIR")
#: Seconds between two looks at a log.
POLL_SECONDS = 0.1
#: Starts a program in a directory: its words are the directory, the program, and the program's arguments.
_START_IN = ["sh", "-c", 'cd "$0" && exec "$@"']


# ---- requests


@dataclass
class ReplicaParam:
    """How a replica's process is started."""

    args: list[str]
    env: dict[str, str]
    stdout: str | None = None
    stderr: str | None = None
    combined: str | None = None
    cwd: str | None = None


@dataclass
class PopenRequest:
    """The processes of a job, by role."""

    app_id: AppId
    log_dir: str
    role_params: dict[str, list[ReplicaParam]]
    role_log_dirs: dict[str, list[str]]


class ImageProvider(ABC):
    """Locates the files of an image on this machine."""

    @abstractmethod
    def fetch(self, image: str) -> str:
        """Return the directory of an image."""

    def fetch_role(self, role: Role) -> str:
        """Return the directory of a role's image."""
        return self.fetch(role.image)

    def get_cwd(self, image: str) -> str | None:
        """Return the directory in which its programs are started; None for that of this process."""
        return None

    def get_entrypoint(self, img_root: str, role: Role) -> str:
        """Return the path of a role's program."""
        return role.entrypoint

    def get_replica_param(
        self,
        img_root: str,
        role: Role,
        stdout: str | None = None,
        stderr: str | None = None,
        combined: str | None = None,
    ) -> ReplicaParam:
        """Return how a replica of a role is started."""
        command = [self.get_entrypoint(img_root, role), *role.args]
        return ReplicaParam(command, dict(role.env), stdout, stderr, combined, self.get_cwd(role.image))


class LocalDirectoryImageProvider(ImageProvider):
    """An image is the absolute path of a directory."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        pass

    def fetch(self, image: str) -> str:
        """Return the directory.

        Raises:
            ValueError: there is no such directory.
        """
        if not os.path.isdir(image):
            raise ValueError(f"the image {image!r} is not a directory")
        return image

    def get_cwd(self, image: str) -> str | None:
        """Return the directory of the image."""
        return self.fetch(image)


class CWDImageProvider(LocalDirectoryImageProvider):
    """Every image is the current directory."""

    def fetch(self, image: str) -> str:
        """Return the current directory."""
        return os.getcwd()


# ---- logs


class LogIterator:
    """The lines of a log file with their ends, followed until a job has ended.

    Those of `COMBINED_LOG` are the lines of the two files beside it. Subclasses override `_check_finished`,
    for example to fetch the file first, and may set the attributes themselves, without this constructor.

    Args:
        app_id: the job.
        log_file: path of the file, which need not exist yet.
        scheduler: knows the job.
        should_tail: whether to follow; otherwise only what is there now.
    """

    def __init__(self, app_id: str, log_file: str, scheduler: Any, should_tail: bool = True) -> None:
        self._app_id = app_id
        self._log_file = log_file
        self._scheduler = scheduler
        self._app_finished = not should_tail

    def __iter__(self) -> Iterator[str]:
        only_now = self._app_finished
        self._check_finished()
        while not os.path.isfile(self._log_file) and not only_now and not self._app_finished:
            time.sleep(POLL_SECONDS)
            self._check_finished()
        if not os.path.isfile(self._log_file):
            raise RuntimeError(f"the job {self._app_id} has written no {self._log_file}")
        folder, name = os.path.split(self._log_file)
        names = (STDOUT_LOG, STDERR_LOG) if name == COMBINED_LOG else (name,)
        positions = {os.path.join(folder, name): 0 for name in names}
        while True:
            is_last = (
                only_now or self._app_finished
            )  # checked before reading, so that no last lines are missed
            for path in positions:
                for line in _lines_from(path, positions[path], with_incomplete=is_last):
                    positions[path] += len(line)
                    yield line.decode(errors="replace")
            if is_last:
                return
            self._check_finished()
            if not self._app_finished:
                time.sleep(POLL_SECONDS)

    def _check_finished(self) -> None:
        response = self._scheduler.describe(self._app_id)
        self._app_finished = response is None or is_terminal(response.state)


def _lines_from(path: str, position: int, *, with_incomplete: bool) -> Iterator[bytes]:
    if os.path.exists(path):
        with open(path, "rb") as file:
            file.seek(position)
            yield from (line for line in file if line.endswith(b"\n") or with_incomplete)


# ---- the scheduler


@dataclass
class _LocalAppDef:
    """A job that this process has submitted: where its logs are, its replicas by role, and its state."""

    id: str
    log_dir: str
    role_replicas: dict[str, list[Any]] = field(default_factory=dict)
    state: AppState = AppState.PENDING
    last_updated: float = 0.0
    kill: Callable[[], object] = field(default=lambda: None, repr=False)

    def set_state(self, state: AppState) -> None:
        """Set the state, and when that was."""
        self.state, self.last_updated = state, time.time()


class LocalScheduler(DerivableScheduler):
    """Runs jobs as processes of this machine.

    Args:
        session_name: name of the runner's session.
        image_provider_class: made from the options, says where an image lies and how a replica is started.
        cache_size: not used; TorchX remembers that many jobs.
        extra_paths: directories that come first in each replica's PATH.
    """

    ours = "shunter.schedulers.local_scheduler:LocalScheduler"
    # set here, since subclasses need not call the constructor
    _apps: dict[str, _LocalAppDef]
    _image_provider_class: Callable[[Any], ImageProvider]
    _extra_paths: list[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an instance: ours takes no image provider."""
        return object.__new__(cls)

    def __init__(
        self,
        session_name: str,
        image_provider_class: Callable[[Any], ImageProvider] = CWDImageProvider,
        cache_size: int = 100,
        extra_paths: list[str] | None = None,
    ) -> None:
        if cache_size <= 0:
            raise ValueError(f"cache_size has to be greater than 0, not {cache_size}")
        self.backend, self.session_name = "local", session_name
        self._image_provider_class = image_provider_class
        self._extra_paths = extra_paths or []
        self._apps = {}

    @functools.cached_property
    def _made(self) -> SupervisedScheduler:
        return SupervisedScheduler(self.session_name)

    @functools.cached_property
    def _planned(self) -> dict[str, AppDryRunInfo[Any]]:
        """The requests of ours for jobs that have not been submitted yet."""
        return {}

    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo[Any]:
        request = self._to_popen_request(app, cfg)
        return AppDryRunInfo(request, lambda popen: pprint.pformat(asdict(popen), indent=2, width=80))

    def _to_popen_request(self, app: AppDef, cfg: Mapping[str, Any]) -> PopenRequest:
        """Return how the processes of a job are started; nothing is written yet."""
        provider = self._image_provider_class(cfg)
        known = self._made.run_opts()
        options = {name: cfg[name] for name, _ in known if name in cfg}
        if cfg.get("log_dir"):
            options["log_dir"] = os.path.join(str(cfg["log_dir"]), self.session_name)
        info = self._made.submit_dryrun(_skeleton(app, cfg), options)
        app_id: str = info.request.app_id
        self._planned[app_id] = info
        params: dict[str, list[ReplicaParam]] = {}
        for role, plan in zip(app.roles, info.request.roles, strict=True):
            img_root = provider.fetch_role(role)
            params[role.name] = []
            for index, replica in enumerate(plan.replicas):
                values = macros.Values(img_root, app_id, str(index), RANK0_ENV)
                applied = values.apply(role)
                applied.env = {**{name: replica.env[name] for name in _DEFAULTS}, **applied.env}
                self._set_path(applied, provider.get_cwd(role.image) or os.getcwd(), cfg)
                files = [
                    os.path.join(replica.log_dir, name) for name in (STDOUT_LOG, STDERR_LOG, COMBINED_LOG)
                ]
                params[role.name].append(provider.get_replica_param(img_root, applied, *files))
        directories = {
            plan.name: [replica.log_dir for replica in plan.replicas] for plan in info.request.roles
        }
        log_dir = str(Path(info.request.roles[0].replicas[0].log_dir).parents[1])
        return PopenRequest(app_id, log_dir, params, directories)

    def _set_path(self, role: Role, cwd: str, cfg: Mapping[str, Any]) -> None:
        """Add a replica's directory to its PATH, which also has this process's."""
        paths = [*self._extra_paths, role.env.get("PATH", "")]
        paths = [cwd, *paths] if cfg.get("prepend_cwd") else [*paths, cwd]
        role.env["PATH"] = os.pathsep.join(filter(None, paths))

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Start the processes; returns the job's id."""
        request: PopenRequest = dryrun_info.request
        info = self._planned.pop(request.app_id)
        app = _LocalAppDef(request.app_id, request.log_dir, dict(request.role_params))
        for plan in info.request.roles:
            for replica, param in zip(plan.replicas, request.role_params[plan.name], strict=True):
                path = os.pathsep.join(filter(None, [param.env.get("PATH"), os.environ.get("PATH")]))
                replica.argv = [*_START_IN, param.cwd or os.getcwd(), *param.args]
                replica.env = {**replica.env, **param.env, "PATH": path}
        app.kill = functools.partial(self._made.cancel, request.app_id)
        self._made.schedule(info)
        self._apps[request.app_id] = app
        for directory in itertools.chain(*request.role_log_dirs.values()):
            os.makedirs(directory, exist_ok=True)
            Path(directory, COMBINED_LOG).touch()  # stands for both files, see `LogIterator`
        app.set_state(AppState.RUNNING)
        return request.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what is known of a job; None if there is no such job."""
        response: DescribeAppResponse | None = super().describe(app_id)
        app = self._apps.get(app_id)
        if response is not None and app is not None:
            app.set_state(response.state)
            response.ui_url = f"file://{app.log_dir}"
            counts = {status.role: len(status.replicas) for status in response.roles_statuses}
            response.roles = [Role(name, "", num_replicas=count) for name, count in counts.items()]
        return response

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
        """Return the lines of a replica's log until the job has ended, as TorchX does in any case."""
        return super().log_iter(app_id, role_name, k, regex, since, until, True, streams)

    def close(self) -> None:
        """Stop what runs."""
        for app in self._apps.values():
            if not is_terminal(app.state):
                app.kill()
                response = self._made.wait(app.id)
                app.set_state(AppState.CANCELLED if response is None else response.state)
        self._made.close()


def _skeleton(app: AppDef, cfg: Mapping[str, Any]) -> AppDef:
    """Return a job with as many replicas, whose programs and variables are filled in when it is submitted.

    Its roles ask for GPUs only if these are to be shared out, and there are enough.
    """
    wanted = sum(role.num_replicas * max(role.resource.gpu, 0) for role in app.roles)
    shares_gpus = bool(cfg.get("auto_set_cuda_visible_devices"))
    if shares_gpus and wanted > len(visible_gpus()):
        log.warning("the job asks for %s GPUs, and this machine has %s", wanted, len(visible_gpus()))
        shares_gpus = False
    roles = []
    for role in app.roles:
        plain = Role(role.name, "", entrypoint=_START_IN[0], num_replicas=role.num_replicas)
        plain.max_retries, plain.retry_policy = role.max_retries, role.retry_policy
        plain.resource = copy.copy(role.resource if shares_gpus else NULL_RESOURCE)
        roles.append(plain)
    return AppDef(app.name, roles)


def create_scheduler(
    session_name: str,
    cache_size: int = 100,
    extra_paths: list[str] | None = None,
    image_provider_class: Callable[[Any], ImageProvider] = CWDImageProvider,
    **kwargs: Any,
) -> Any:
    """Make `local_cwd`, or this module's scheduler if an image provider or extra paths are given.

    Raises:
        ValueError: ``cache_size`` is not greater than 0.
    """
    made = LocalScheduler(session_name, image_provider_class, cache_size, extra_paths)
    if image_provider_class is CWDImageProvider and not extra_paths:
        return SupervisedScheduler(session_name)
    return made

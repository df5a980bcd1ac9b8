"""TorchX's local scheduler as a class to derive from: ``torchx.schedulers.local_scheduler.LocalScheduler``.

Its jobs are child processes of the program that submits them, end with `close`, and their logs are files, as
subclasses expect. `local_cwd` is another one, whose jobs have a supervisor: `schedulers.local_scheduler`.
"""

from __future__ import annotations

import builtins
import json
import os
import pprint
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, TextIO

from shunter.compat.plugin_scheduler import PluginScheduler
from shunter.compat.torchx_local import (
    COMBINED_LOG,
    ENV_CUDA_VISIBLE_DEVICES,
    STDERR_LOG,
    STDOUT_LOG,
    CWDImageProvider,
    ImageProvider,
    LogIterator,
    PopenProtocol,
    PopenRequest,
    ReplicaParam,
    Tee,
    log,
)
from shunter.compat.torchx_schedulers import (
    TorchxDescribeAppResponse,
    TorchxListAppResponse,
    make_unique,
)
from shunter.schedulers import Stream, filter_regex
from shunter.schedulers.local_scheduler.options import LocalOpts
from shunter.schedulers.local_scheduler.scheduler import LocalScheduler
from shunter.schedulers.responses import DescribeAppResponse, ListAppResponse
from shunter.specs.app import AppDef, Role
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import runopts
from shunter.specs.status import NONE, AppState, ReplicaStatus, RoleStatus, is_terminal
from shunter.specs.substitution import macros

STREAM_LOGS = {None: COMBINED_LOG, Stream.COMBINED: COMBINED_LOG}
STREAM_LOGS |= {Stream.STDOUT: STDOUT_LOG, Stream.STDERR: STDERR_LOG}
#: Seconds that processes have to end after SIGTERM.
GRACE_SECONDS = 10.0
#: The file that says that a job has ended, and how; it is written for failed jobs, too.
END_FILE = "SUCCESS"


@dataclass
class LocalReplica:
    """A process, and the files and threads that take its output."""

    role_name: str
    replica_id: int
    proc: PopenProtocol
    stdout: TextIO | None = None
    stderr: TextIO | None = None
    combined: Tee | None = None
    combined_file: TextIO | None = None
    error_file: str = "<N/A>"

    def is_alive(self) -> bool:
        """Tell whether the process runs."""
        return self.proc.poll() is None

    def failed(self) -> bool:
        """Tell whether the process has ended with an exit code that is not 0."""
        return not self.is_alive() and self.proc.returncode != 0

    def record(self) -> dict[str, Any]:
        """Return what is kept of the replica when the job has ended."""
        return {
            "replica_id": self.replica_id,
            "pid": self.proc.pid,
            "exitcode": self.proc.returncode,
            "stdout": getattr(self.stdout, "name", None),
            "stderr": getattr(self.stderr, "name", None),
            "error_file": self.error_file,
        }

    def terminate(self) -> None:
        """Stop the process group, and close the files."""
        if self.is_alive():
            _signal_group(self.proc.pid, signal.SIGTERM)
            try:
                self.proc.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                _signal_group(self.proc.pid, signal.SIGKILL)
                self.proc.wait()
        self.close()

    def close(self) -> None:
        """Close the files when the process has ended."""
        if self.combined is not None:
            self.combined.close()
            self.combined = None
        for file in (self.stdout, self.stderr, self.combined_file):
            if file is not None:
                file.close()


@dataclass
class LocalAppDef:
    """A job: its replicas by role, and its state."""

    id: str
    log_dir: str
    role_replicas: dict[str, list[LocalReplica]] = field(default_factory=dict)
    state: AppState = AppState.PENDING
    last_updated: float = 0.0

    def add_replica(self, role_name: str, replica: LocalReplica) -> None:
        """Add a replica of a role."""
        self.role_replicas.setdefault(role_name, []).append(replica)

    def set_state(self, state: AppState) -> None:
        """Set the state, and when that was."""
        self.state = state
        self.last_updated = time.time()

    def kill(self) -> None:
        """Stop all replicas."""
        for replica in self._replicas():
            replica.terminate()
        if not is_terminal(self.state):
            self.set_state(AppState.CANCELLED)
            self._note_end()

    def close(self) -> None:
        """Close the files of replicas that have ended."""
        for replica in self._replicas():
            replica.close()

    def update(self) -> None:
        """Look at the processes; when one has failed, stop the others, as TorchX does."""
        replicas = self._replicas()
        if is_terminal(self.state) or not replicas:
            return
        # Before failures: a replica that fails between the two is seen as failed.
        is_alive = any(replica.is_alive() for replica in replicas)
        if any(replica.failed() for replica in replicas):
            self.set_state(AppState.FAILED)
            self.kill()
            self._note_end()
        elif not is_alive:
            self.set_state(AppState.SUCCEEDED)
            self.close()
            self._note_end()
        else:
            self.set_state(AppState.RUNNING)

    def _note_end(self) -> None:
        """Write how the job ended, successfully or not, to the file `END_FILE` next to the logs."""
        if not os.path.isdir(self.log_dir):  # removed with the scheduler's temporary folder
            return
        roles = {name: [each.record() for each in replicas] for name, replicas in self.role_replicas.items()}
        document = {
            "app_id": self.id,
            "log_dir": self.log_dir,
            "final_state": self.state.name,
            "last_updated": self.last_updated,
            "roles": roles,
        }
        with open(os.path.join(self.log_dir, END_FILE), "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)

    def _replicas(self) -> list[LocalReplica]:
        return [replica for replicas in self.role_replicas.values() for replica in replicas]


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass


class TorchxLocalScheduler(PluginScheduler[Mapping[str, Any]]):
    """Runs jobs as child processes.

    Args:
        session_name: name of the runner's session.
        image_provider_class: made from the options, says where an image lies and how a replica is started.
        cache_size: how many jobs are remembered; ended ones are forgotten, the oldest first.
        extra_paths: directories that are put first in each replica's PATH.
    """

    def __init__(
        self,
        session_name: str,
        image_provider_class: Callable[[Any], ImageProvider],
        cache_size: int = 100,
        extra_paths: builtins.list[str] | None = None,
    ) -> None:
        super().__init__("local", session_name)
        _check_cache_size(cache_size)
        self._image_provider_class = image_provider_class
        self._cache_size = cache_size
        self._extra_paths = extra_paths or []
        self._apps: dict[str, LocalAppDef] = {}
        self._base_log_dir: str | None = None
        self._created_tmp_log_dir = False

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        """Count our own local scheduler as one of these, without importing it."""
        place = ("shunter.schedulers.local_scheduler.scheduler", "LocalScheduler")
        if cls is TorchxLocalScheduler and any((b.__module__, b.__name__) == place for b in other.__mro__):
            return True
        return NotImplemented

    def _run_opts(self) -> runopts:
        ours = dict(runopts.from_dataclass(LocalOpts))
        names = ("log_dir", "prepend_cwd", "auto_set_cuda_visible_devices")
        return runopts(**{name: ours[name] for name in names})

    def _validate(self, app: AppDef, scheduler: str, cfg: Any = None) -> None:
        """Do nothing: processes need not say which resources they need."""

    # ---- requests

    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo[PopenRequest]:
        request = self._to_popen_request(app, cfg)
        return AppDryRunInfo(request, lambda each: pprint.pformat(asdict(each), indent=2, width=80))

    def _to_popen_request(self, app: AppDef, cfg: Mapping[str, Any]) -> PopenRequest:
        """Return how the processes of a job are started; nothing is written yet."""
        app_id = make_unique(app.name)
        provider = self._image_provider_class(cfg)
        log_dir = os.path.join(self._log_base(cfg), self.session_name, app_id)
        params: dict[str, list[ReplicaParam]] = {}
        directories: dict[str, list[str]] = {}
        for role in app.roles:
            img_root = provider.fetch_role(role)
            params[role.name], directories[role.name] = [], []
            for replica_id in range(role.num_replicas):
                values = macros.Values(
                    img_root=img_root,
                    app_id=app_id,
                    replica_id=str(replica_id),
                    rank0_env="TORCHX_RANK0_HOST",
                )
                replica_role = values.apply(role)
                folder = os.path.join(log_dir, role.name, str(replica_id))
                replica_role.env.setdefault("TORCHX_RANK0_HOST", "localhost")
                replica_role.env.setdefault("TORCHELASTIC_ERROR_FILE", os.path.join(folder, "error.json"))
                replica_role.env.setdefault("PET_LOG_DIR", os.path.join(log_dir, "torchelastic", role.name))
                self._set_path(replica_role, provider.get_cwd(role.image) or os.getcwd(), cfg)
                files = [os.path.join(folder, name) for name in (STDOUT_LOG, STDERR_LOG, COMBINED_LOG)]
                params[role.name].append(provider.get_replica_param(img_root, replica_role, *files))
                directories[role.name].append(folder)
        self.auto_set_CUDA_VISIBLE_DEVICES(params, app, cfg)
        return PopenRequest(app_id, log_dir, params, directories)

    def _log_base(self, cfg: Mapping[str, Any]) -> str:
        given = cfg.get("log_dir")
        if given:
            self._base_log_dir = str(given)
        elif self._base_log_dir is None or not self._created_tmp_log_dir:
            self._base_log_dir = tempfile.mkdtemp(prefix="torchx_")
            self._created_tmp_log_dir = True
        return self._base_log_dir

    def _set_path(self, role: Role, cwd: str, cfg: Mapping[str, Any]) -> None:
        """Add a replica's directory to its PATH; `run_local_job` appends this process's PATH."""
        paths = [*self._extra_paths, *filter(None, [role.env.get("PATH")])]
        paths = [cwd, *paths] if cfg.get("prepend_cwd") else [*paths, cwd]
        role.env["PATH"] = os.pathsep.join(paths)

    def auto_set_CUDA_VISIBLE_DEVICES(  # noqa: N802 - TorchX's name
        self, role_params: dict[str, builtins.list[ReplicaParam]], app: AppDef, cfg: Mapping[str, Any]
    ) -> None:
        """Share this machine's GPUs out among the replicas, if the option says so and there are enough."""
        if not cfg.get("auto_set_cuda_visible_devices"):
            return
        wanted = [
            (role, param) for role in app.roles if role.resource.gpu > 0 for param in role_params[role.name]
        ]
        needed = sum(role.resource.gpu for role, _ in wanted)
        present = self._cuda_device_count()
        if needed > present:
            log.warning("the job asks for %s GPUs, and this machine has %s", needed, present)
            return
        first = 0
        for role, param in wanted:
            numbers = range(first, first + role.resource.gpu)
            first += role.resource.gpu
            param.env[ENV_CUDA_VISIBLE_DEVICES] = ",".join(map(str, numbers))

    def _cuda_device_count(self) -> int:
        program = shutil.which("nvidia-smi")
        if program is None:
            return 0
        done = subprocess.run([program, "-L"], capture_output=True, text=True, check=False)
        return sum(line.startswith("GPU ") for line in done.stdout.splitlines())

    # ---- running

    def schedule(self, dryrun_info: AppDryRunInfo[PopenRequest]) -> str:
        """Start the processes; returns the job's id.

        Raises:
            IndexError: ``cache_size`` jobs are already running.
        """
        request = dryrun_info.request
        self._forget_old_jobs()
        os.makedirs(request.log_dir, exist_ok=True)
        log.info("the logs are in %s", request.log_dir)
        app = LocalAppDef(request.app_id, request.log_dir)
        self._apps[request.app_id] = app
        try:
            for role_name, replicas in request.role_params.items():
                for replica_id, param in enumerate(replicas):
                    app.add_replica(role_name, self._popen(role_name, replica_id, param))
        except OSError:
            app.kill()
            raise
        app.set_state(AppState.RUNNING)
        return request.app_id

    def run_local_job(
        self,
        args: builtins.list[str],
        env: dict[str, str],
        stdout: TextIO | None,
        stderr: TextIO | None,
        cwd: str | None = None,
    ) -> PopenProtocol:
        """Start the process of a replica. Overridden by subclasses that start it differently."""
        paths = [env.get("PATH"), os.environ.get("PATH")]
        environ = {**os.environ, **env, "PATH": os.pathsep.join(filter(None, paths))}
        return subprocess.Popen(
            args, env=environ, stdout=stdout, stderr=stderr, cwd=cwd, start_new_session=True
        )

    def _popen(self, role_name: str, replica_id: int, replica_params: ReplicaParam) -> LocalReplica:
        param = replica_params
        paths = [param.stdout, param.stderr]
        for path in [*paths, param.combined]:
            if path:
                os.makedirs(os.path.dirname(path), exist_ok=True)
        out, err = (open(path, "w", encoding="utf-8") if path else None for path in paths)  # noqa: SIM115
        process = self.run_local_job(param.args, param.env, out, err, param.cwd)
        combined = file = None
        if param.combined:
            file = open(param.combined, "w", encoding="utf-8")  # noqa: SIM115
            combined = Tee(file, *(path for path in paths if path))
        error_file = param.env.get("TORCHELASTIC_ERROR_FILE", "<N/A>")
        return LocalReplica(role_name, replica_id, process, out, err, combined, file, error_file)

    def _forget_old_jobs(self) -> None:
        for app in self._apps.values():
            app.update()
        ended = [app for app in self._apps.values() if is_terminal(app.state)]
        ended.sort(key=lambda app: app.last_updated)
        for app in ended[: max(0, len(self._apps) - self._cache_size + 1)]:
            app.close()
            del self._apps[app.id]
        if len(self._apps) >= self._cache_size:
            raise IndexError(
                f"cache_size is {self._cache_size}, and {len(self._apps)} jobs run: wait, or raise it"
            )

    # ---- observing and ending

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what is known of a job; None if there is no such job."""
        app = self._apps.get(app_id)
        if app is None:
            return None
        app.update()
        statuses = [
            RoleStatus(
                name,
                [ReplicaStatus(each.replica_id, _state_of(each), name, "localhost") for each in replicas],
            )
            for name, replicas in app.role_replicas.items()
        ]
        return TorchxDescribeAppResponse(
            app_id=app_id,
            state=app.state,
            num_restarts=0,
            structured_error_msg=_first_error(app),
            ui_url=f"file://{app.log_dir}",
            roles_statuses=statuses,
            roles=[
                Role(name, "", num_replicas=len(replicas)) for name, replicas in app.role_replicas.items()
            ],
        )

    def list(self, cfg: Any = None) -> builtins.list[ListAppResponse]:
        """Return the jobs of this object."""
        for app in self._apps.values():
            app.update()
        return [TorchxListAppResponse(app_id=app.id, state=app.state) for app in self._apps.values()]

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
        """Return the lines of a replica's log, until the job has ended, whether it is to be followed or not.

        ``since`` and ``until`` are ignored, with a warning.
        """
        if since or until:
            log.warning("lines of local logs have no times: since and until are not used")
        path = os.path.join(self._apps[app_id].log_dir, role_name, str(k), STREAM_LOGS[streams])
        if not os.path.isfile(path):
            raise RuntimeError(f"there is no log of replica {k} of role {role_name!r} of {app_id}")
        lines: Iterable[str] = LogIterator(app_id, path, self, should_tail=True)
        return filter_regex(regex, lines) if regex else lines

    def _cancel_existing(self, app_id: str) -> None:
        app = self._apps[app_id]
        app.kill()

    def close(self) -> None:
        """Stop what runs, and remove the temporary folder of the logs."""
        for app in self._apps.values():
            app.update()
            app.kill()
        if self._created_tmp_log_dir and self._base_log_dir:
            shutil.rmtree(self._base_log_dir, ignore_errors=True)

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # attributes may be missing, and modules may be gone
            pass


def _state_of(replica: LocalReplica) -> AppState:
    if replica.is_alive():
        return AppState.RUNNING
    if not replica.failed():
        return AppState.SUCCEEDED
    code = replica.proc.returncode
    return AppState.CANCELLED if code is not None and code < 0 else AppState.FAILED


def _first_error(app: LocalAppDef) -> str:
    """Return the document that the replica that failed first wrote; ``<NONE>`` without one."""
    written = [
        replica.error_file
        for replicas in app.role_replicas.values()
        for replica in replicas
        if os.path.isfile(replica.error_file)
    ]
    if not written or app.state != AppState.FAILED:
        return NONE
    with open(min(written, key=os.path.getmtime), encoding="utf-8", errors="replace") as file:
        return file.read()


def _check_cache_size(cache_size: int) -> None:
    if cache_size <= 0:
        raise ValueError(f"cache_size has to be greater than 0, not {cache_size}")


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
    _check_cache_size(cache_size)
    if image_provider_class is CWDImageProvider and not extra_paths:
        return LocalScheduler(session_name)
    return TorchxLocalScheduler(session_name, image_provider_class, cache_size, extra_paths)

"""Make what is submitted for a job: the files of its folder and the native script. Pure."""

from __future__ import annotations

import fnmatch
import json
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shunter._toolkit import stack_dump
from shunter.errors import ConfigError
from shunter.limits import MOST_SECONDS, MOST_SUBMISSIONS
from shunter.redaction import REDACTED, Redactor, redact_text
from shunter.schedulers.hpc import shared_folder
from shunter.schedulers.hpc.options import PER_HOST, PER_JOB, HpcOpts
from shunter.schedulers.hpc.shared_folder import RUN_SCRIPT, SCRIPT, base_folder, job_folder
from shunter.specs.app import NO_IMAGE, AppDef, Role, macros
from shunter.specs.training import check_channels, grace_variables, output_of, specification
from shunter.workspace.manifest import Manifest

SPREAD_SCRIPT = "spread.sh"
#: The variable with the hosts of a submission, in lines "HOST SLOTS".
HOSTS = "SHUNTER_HOSTS"
RANK0_ENV = "TORCHX_RANK0_HOST"
#: Stands in the script for the number of a submission of a chain, from 0.
LINK = "@LINK@"
#: Placeholders in values for paths and numbers that only a node knows; `quoted` replaces them by variables.
REPLICA, JOB_DIR = "@{replica}@", "@{job}@"
_NODE_VALUES = {REPLICA: "$SHUNTER_REPLICA", JOB_DIR: "$SHUNTER_JOB_DIR"}
_NODE_VALUE = re.compile(f"({'|'.join(re.escape(mark) for mark in _NODE_VALUES)})")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
#: A line of a role's file that sets a variable; within quotes the value may have line breaks.
_EXPORT = re.compile(r"""^export ([A-Za-z_][A-Za-z0-9_]*)=((?:'[^']*'|"[^"]*"|[^\s'"])*)$""", re.MULTILINE)
#: Variables of an activated environment, by which ``python`` in the job is that of the submitting shell.
ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_*",
    "PYTHONPATH",
    "MODULEPATH",
    "LOADEDMODULES",
)


@dataclass
class HpcRequest:
    """The request of a cluster. It can be printed: only ``roles`` may hold secrets, which are masked there.

    Args:
        app_id: id of the job, which is also its native name or comment.
        host: the login node; "" for this machine.
        shared_dir: the folder on shared storage; may begin with ``~/`` until it is submitted to another host.
        command: the native submit command. The script goes to its standard input.
        script: the native script. `LINK` in it stands for the number of the submission.
        roles: content of the files ``roles/ROLE.sh``.
        layout: role and number of replicas, in order.
        chain: how many submissions.
        workdir: the directory to run in.
        results: where the results will be; "" if nothing runs under the toolkit.
        warnings: what has no effect here.
        details: more values of the backend, which go into ``job.json`` as they are.
    """

    app_id: str
    name: str
    host: str
    shared_dir: str
    command: list[str]
    script: str
    roles: dict[str, str]
    layout: list[tuple[str, int]]
    chain: int = 1
    workdir: str = ""
    results: str = ""
    warnings: list[str] = field(default_factory=list)
    #: Native ids of jobs to wait for, each with whether any end will do, and the native options for that.
    after: list[tuple[str, bool]] = field(default_factory=list)
    dependencies: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    #: More files of the job's folder, which only its user may read; some hold secrets, and none is printed.
    files: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The job's folder."""
        return job_folder(self.shared_dir, self.app_id)

    def __str__(self) -> str:
        lines = [f"# {warning}" for warning in self.warnings]
        where = f" on {self.host}" if self.host else ""
        lines.append(f"# {shlex.join([*self.command, *self.dependencies])}  < script{where}")
        lines.append(self.script.rstrip("\n"))
        follow_up = self.files.get(shared_folder.FOLLOW_UP_SCRIPT)
        if follow_up is not None:
            lines += ["", "# what follows on its end", follow_up.rstrip("\n")]
        for name, text in self.roles.items():
            lines += ["", f"# {posixpath.join(self.folder, 'roles', name + '.sh')}", _masked(text)]
        return redact_text("\n".join(lines))

    def at_home(self, home: str) -> HpcRequest:
        """Return the request with the home directory in place of ``~``."""
        if not self.shared_dir.startswith("~/"):
            return self
        return self.moved(self.shared_dir, posixpath.join(home, self.shared_dir[2:]))

    def moved(self, planned: str, path: str) -> HpcRequest:
        """Return the request with another path in place of a planned one."""
        if planned == path:
            return self

        def put(text: str) -> str:
            return text.replace(planned, path)

        return replace(
            self,
            shared_dir=put(self.shared_dir),
            command=[put(word) for word in self.command],
            script=put(self.script),
            roles={name: put(text) for name, text in self.roles.items()},
            files={name: put(text) for name, text in self.files.items()},
            workdir=put(self.workdir),
            results=put(self.results),
        )


class JobPlan:
    """A job as a backend needs it to write its script.

    Args:
        app: the job.
        opts: the options.
        app_id: its id.
        manifest: its workspace, if code travels with it.

    Attributes:
        host: the login node; "" for this machine.
        shared_dir, folder, workdir: paths on the cluster. Those of another host may begin with ``~/``, which
            is replaced by the home directory before anything is submitted, even within quotes.
    """

    def __init__(self, app: AppDef, opts: HpcOpts, app_id: str, manifest: Manifest | None) -> None:
        self.app = app
        self.opts = opts
        self.app_id = app_id
        self.host = opts.host or ""
        self.shared_dir = _shared_dir(opts)
        self.folder = job_folder(self.shared_dir, app_id)
        self.layout = [(role.name, role.num_replicas) for role in app.roles]
        self.workdir = self._workdir(manifest)
        self.warnings: list[str] = []
        self.details: dict[str, Any] = {}
        _check_options(app, opts)
        _check_names(app)
        if not self.host:
            for role in app.roles:
                check_channels(role.metadata)

    @property
    def replicas(self) -> int:
        """How many replicas the job has."""
        return sum(count for _, count in self.layout)

    @property
    def is_array(self) -> bool:
        """Whether the replicas are the elements of an array, each independent of the others."""
        return self.opts.array and self.replicas > 1

    @property
    def is_gang(self) -> bool:
        """Whether several replicas run together, in one submission."""
        return self.replicas > 1 and not self.is_array

    @property
    def allocated(self) -> list[tuple[Role, int]]:
        """The roles that share an allocation, with how many replicas of each; an array's element is one."""
        roles = self.app.roles
        return [(role, role.num_replicas) for role in roles] if self.is_gang else [(roles[0], 1)]

    @property
    def retries(self) -> int:
        """How many times its script restarts the job after a failure: the highest number of its roles.

        0 if the job's follow-up decides that.
        """
        return 0 if self.opts.retry is not None else max(role.max_retries for role in self.app.roles)

    def amount(self, need: Callable[[Role], int], per: str) -> float:
        """Return how much of a resource to ask for where the site counts it per job, per host or per slot."""
        needs = [(max(need(role), 0), cpus_of(role), count) for role, count in self.allocated]
        if per == PER_JOB:
            return sum(amount * count for amount, _, count in needs)
        return max(amount / (1 if per == PER_HOST else slots) for amount, slots, _ in needs)

    def memory_factor(self, per: str) -> float:
        """Return how many MB to ask for, in such a unit, for each MB of a replica."""
        if per == PER_JOB:
            return sum(count for _, count in self.allocated)
        return 1 if per == PER_HOST else 1 / min(cpus_of(role) for role, _ in self.allocated)

    def log_path(self, name: str) -> str:
        """Return a path for what the native script itself prints."""
        return posixpath.join(self.folder, "logs", name)

    def run(self, mode: str, *words: str, link: bool = True) -> list[str]:
        """Return a command that calls ``run.sh``; the backend quotes it for its script."""
        links = ["--link", LINK] if link and self.opts.chain > 1 else []
        return ["sh", posixpath.join(self.folder, RUN_SCRIPT), mode, *links, *words]

    def around_job(self, *command: str, retries: int = 0, rank0: str = "") -> list[str]:
        """Return the command to put around what starts all replicas of a submission."""
        return self.run("job", *_flags(retries, rank0), "--", *command)

    def replica(
        self, role: str, index: str, *, alone: bool = False, retries: int = 0, rank0: str = "", grace: int = 0
    ) -> list[str]:
        """Return the command that runs one replica on its node.

        Args:
            role: its role; "-" if ``index`` counts through all roles.
            index: a number, or a variable that holds it: ``SLURM_PROCID``, ``LSB_JOBINDEX-1``.
            alone: whether it runs without `around_job`, as in arrays.
            retries: how often it is restarted after a failure; only if it is alone.
            rank0: host of the first replica, if it is known; only if it is alone.
            grace: how many seconds the others get to stop, if the queue kills them once this one has failed.
        """
        flags = [*_flags(retries, rank0), *(["--grace", str(grace)] if grace else [])]
        return self.run("replica", *flags, role, index, link=alone)

    def start_lines(self, index: str, hosts: str, start: Sequence[str], lost: str = "") -> list[str]:
        """Return the lines of the script that start the replicas, where the cluster has no program for it.

        Args:
            index: the variable that numbers the elements of an array from 0, such as ``LSB_JOBINDEX-1``.
            hosts: a line of shell that prints the hosts of the submission, as "HOST SLOTS".
            start: begins the command that runs a line of shell on another host.
            lost: what that command writes when it has lost the host, as a pattern of grep.
        """
        retries = self.retries
        if self.is_array:
            return [shlex.join(self.replica("-", index, alone=True, retries=retries))]
        if self.is_gang:
            spread = self._spread_command(start, lost)
            return [f"{HOSTS}=$({hosts})", f"export {HOSTS}", shlex.join(spread)]
        replica = self.replica(self.app.roles[0].name, "0")
        return [shlex.join(self.around_job(*replica, retries=retries))]

    def _spread_command(self, start: Sequence[str], lost: str) -> list[str]:
        """Return the command that places all replicas on hosts and starts them; see `start_lines`."""
        needs = ",".join(f"{role.name}={cpus_of(role)}" for role in self.app.roles)
        grace = f"{max(self.opts.grace_period, 1):.0f}"
        words = ["sh", posixpath.join(self.folder, SPREAD_SCRIPT), "--needs", needs, "--grace", grace]
        words += ["--lost", lost] if lost else []
        return self.around_job(*words, "--", *start, retries=self.retries)

    def request(self, command: Sequence[str], script: str) -> HpcRequest:
        """Return the request with this submit command and script."""
        return HpcRequest(
            app_id=self.app_id,
            name=self.app.name,
            host=self.host,
            shared_dir=self.shared_dir,
            command=list(command),
            script=script,
            roles={role.name: self._role_file(role) for role in self.app.roles},
            layout=self.layout,
            chain=self.opts.chain,
            workdir=self.workdir,
            results=self._results(),
            warnings=self.warnings,
            details={**self.details, **({"array": True} if self.is_array else {})},
        )

    def _workdir(self, manifest: Manifest | None) -> str:
        if self.opts.workdir:
            return self.opts.workdir
        if manifest is not None:
            return posixpath.join(self.shared_dir, "code", manifest.fingerprint[:32])
        return os.getcwd() if not self.host else posixpath.join(self.folder, "work")

    def _results(self) -> str:
        """Return where the results will be; "" if no role runs under the toolkit."""
        trained = [role for role in self.app.roles if specification(role.metadata)]
        if not trained:
            return ""
        sent = output_of(specification(trained[0].metadata), self.app_id)
        is_one = len(trained) == trained[0].num_replicas == 1
        own = base_folder(self.folder, trained[0].name, 0) if is_one else posixpath.join(self.folder, "ml")
        return sent or own

    def _role_file(self, role: Role) -> str:
        values = macros.Values(
            img_root=self.workdir, app_id=self.app_id, replica_id=REPLICA, rank0_env=RANK0_ENV
        )
        env = {key: values.substitute(value) for key, value in role.env.items()}
        env = {
            "PYTHONUNBUFFERED": "1",
            **_copied(self.opts, self.host),
            **(self.opts.env or {}),
            **env,
            **grace_variables(env, self.opts.grace_period),
        }
        wrong = sorted(name for name in env if not _VARIABLE.match(name))
        if wrong:
            raise ConfigError(
                f"role {role.name!r}: a shell cannot set the variable {wrong[0]!r}",
                hint="On clusters, names of variables consist of letters, digits and _.",
            )
        lines = [*(self.opts.prologue or ())]
        lines += [f"export {name}={quoted(value)}" for name, value in env.items()]
        if self.opts.hang_timeout is not None:
            lines.append(f"export {stack_dump.VARIABLE}={stack_dump.LINUX_SIGNAL}")
            lines.append('export PYTHONPATH="$SHUNTER_JOB_DIR/python${PYTHONPATH:+:$PYTHONPATH}"')
        lines.append(f"cd {quoted(self.workdir)} 2>/dev/null || no_folder {quoted(self.workdir)}")
        command = [role.entrypoint, *(values.substitute(argument) for argument in role.args)]
        lines.append("set -- " + " ".join(quoted(word) for word in command))
        return "\n".join(lines) + "\n"


def cpus_of(role: Role) -> int:
    """Return how many cpus, which are slots, each replica of a role gets: at least one."""
    return max(role.resource.cpu, 1)


def quoted(text: str) -> str:
    """Quote a text for the shell; the marks for what only a node knows become its variables."""
    if not text:
        return shlex.quote(text)
    parts = filter(None, _NODE_VALUE.split(text))
    return "".join(f'"{_NODE_VALUES[part]}"' if part in _NODE_VALUES else shlex.quote(part) for part in parts)


def document_of(request: HpcRequest) -> dict[str, Any]:
    """Return what ``job.json`` holds of a request; nothing of it is secret."""
    return {
        "app_id": request.app_id,
        "name": request.name,
        "layout": [list(pair) for pair in request.layout],
        "chain": request.chain,
        "workdir": request.workdir,
        **({"results": request.results} if request.results else {}),
        **({"follows": True} if shared_folder.FOLLOW_UP in request.files else {}),
        **request.details,
    }


def files_of(request: HpcRequest, document: dict[str, Any]) -> dict[str, tuple[bytes, int]]:
    """Return the files of a job's folder."""
    texts = {
        "job.json": json.dumps(document, indent=1),
        SCRIPT: request.script,
        "layout": "".join(f"{role} {count}\n" for role, count in request.layout),
        **request.files,
        **{f"roles/{name}.sh": text for name, text in request.roles.items()},
    }
    return {
        RUN_SCRIPT: (shared_folder.shell_script(RUN_SCRIPT), 0o700),
        SPREAD_SCRIPT: (shared_folder.shell_script(SPREAD_SCRIPT), 0o700),
        **{name: (text.encode("utf-8", "surrogateescape"), 0o600) for name, text in texts.items()},
    }


def _check_options(app: AppDef, opts: HpcOpts) -> None:
    problems = []
    if opts.max_running is not None and opts.max_running < 1:
        problems.append(f"max_running={opts.max_running} must be at least 1")
    if opts.max_running is not None and not opts.array:
        problems.append("max_running is for arrays: set array=True, too")
    shapes = {(cpus_of(role), role.resource.memMB, role.resource.gpu) for role in app.roles}
    if opts.array and len(shapes) > 1:
        problems.append("the replicas of an array are alike, and the roles need different resources")
    if opts.chain < 1:
        problems.append(f"chain={opts.chain} must be at least 1")
    if opts.chain > MOST_SUBMISSIONS:
        problems.append(f"chain={opts.chain} is more than {MOST_SUBMISSIONS:,}, the maximum")
    if not 0 <= opts.grace_period <= MOST_SECONDS:
        problems.append(f"grace_period={opts.grace_period:g} is not a number of seconds")
    problems += [
        f"{name} has a line break"
        for name, value in vars(opts).items()
        if isinstance(value, str) and ("\n" in value or "\r" in value)
    ]
    problems += [
        f"env: {name!r} is not a valid variable name" for name in opts.env or {} if not _VARIABLE.match(name)
    ]
    if problems:
        raise ConfigError("; ".join(problems))


def _check_names(app: AppDef) -> None:
    """Refuse names of roles that the files and commands of a job could not hold, `run.sh` and `spread.sh`."""
    wrong = [role.name for role in app.roles if role.name == "-" or re.search(r"[\s=,\0]", role.name)]
    if wrong:
        raise ConfigError(
            f"a role of a job on a cluster cannot be named {wrong[0]!r}",
            hint="Use letters, digits, '_', '-' and '.'.",
        )


def _flags(retries: int, rank0: str) -> list[str]:
    return [*(["--retries", str(retries)] if retries else []), *(["--rank0", rank0] if rank0 else [])]


def _shared_dir(opts: HpcOpts) -> str:
    path = opts.shared_dir or shared_folder.DEFAULT_SHARED
    if not opts.host:
        return os.path.abspath(os.path.expanduser(path))
    path = posixpath.normpath(path)
    if not path.startswith(("/", "~/")):
        raise ConfigError(
            f"shared_dir={path!r} is not an absolute path", hint="Begin it with / or with ~/ on another host."
        )
    return path


def _copied(opts: HpcOpts, host: str) -> dict[str, str]:
    patterns = opts.copy_env if opts.copy_env is not None else () if host else ENVIRONMENT
    return {
        name: value
        for name, value in os.environ.items()
        if _VARIABLE.match(name) and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def _masked(text: str) -> str:
    """Return a role's file without the values of variables that hold secrets."""
    redactor = Redactor()

    def mask(match: re.Match[str]) -> str:
        name, value = match.groups()
        return f"export {name}={REDACTED}" if redactor.named(name, value) != value else match.group()

    return _EXPORT.sub(mask, text.rstrip("\n"))


def ignored_fields(backend: str, roles: Sequence[Role]) -> list[str]:
    """Say which fields of roles have no effect where programs run on the nodes themselves."""
    found = []
    for role in roles:
        names = [f"the image {role.image}"] if role.image not in ("", NO_IMAGE) else []
        names += [f"resource.devices {', '.join(role.resource.devices)}"] if role.resource.devices else []
        found += [f"role {role.name!r}: {backend} ignores {name}" for name in names]
    return found

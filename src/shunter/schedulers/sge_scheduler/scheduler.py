"""`sge`: jobs on Grid Engine, by its command line."""

from __future__ import annotations

import builtins
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from shunter.errors import BackendError, ConfigError
from shunter.schedulers.api import Dependency
from shunter.schedulers.capabilities import SEPARATE_STREAMS, Capabilities
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.queries import JobIds, NativeJob, by_job
from shunter.schedulers.hpc.request import HpcRequest
from shunter.schedulers.hpc.scheduler import LIST_FILTERS, HpcScheduler
from shunter.schedulers.hpc.shared_folder import job_folder
from shunter.schedulers.sge_scheduler import doctor, observe
from shunter.schedulers.sge_scheduler.options import SgeOpts
from shunter.schedulers.sge_scheduler.reasons import HINTS
from shunter.schedulers.sge_scheduler.request import (
    make_script,
    queue_words,
    with_check,
)
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.status import AppState

#: How far `list` looks back into the accounting by default.
LISTED_DAYS = 30
_ENVIRONMENT_HINT = (
    "Source the site's settings.sh first (it sets SGE_ROOT and SGE_CELL), or name a login node: host=."
)


class SgeScheduler(HpcScheduler):
    """Runs jobs on Grid Engine: Son of Grid Engine, Open Cluster Scheduler and their relatives."""

    opts_class = SgeOpts
    make_script = staticmethod(make_script)
    queue_words = staticmethod(queue_words)
    examine = doctor.examine
    examine_job = doctor.examine_job
    id_pattern = r"^(\d+)(?:\.\d+-\d+:\d+)?\s*$"  # 12, or 12.1-5:1 of an array
    cancel_command = ("qdel",)
    over_words = r"does not exist|not found|has (deleted|registered)"
    refusal_hints = HINTS
    capabilities = Capabilities(
        list_filters=LIST_FILTERS,
        streams=SEPARATE_STREAMS,
        arrays=True,
        retries=("application",),
        notes={
            "exec": "qrsh, in a slot beside the job",
            "after": "-hold_jid, success is checked on the node",
        },
    )
    unreachable_words = (
        r"unable to (send message to|contact) qmaster|commlib error|got select error|can't resolve host name"
        r"|failed receiving gdi request|got (send|read) error|timed out|timeout"
    )

    def __init__(self, backend: str, session_name: str) -> None:
        super().__init__(backend, session_name)
        #: The user's name, by login node.
        self._users: dict[str, str] = {}

    # ---- submitting

    def wait_options(self, after: Sequence[tuple[str, bool]]) -> builtins.list[str]:
        """Return ``-hold_jid``, which waits for any end; `_depend_on` adds what checks for success."""
        return ["-hold_jid", ",".join(native_id for native_id, _ in after)]

    def _depend_on(self, info: AppDryRunInfo[HpcRequest], dependencies: Sequence[Dependency]) -> None:
        """Let the job wait for others; on the node its script checks whether they succeeded."""
        super()._depend_on(info, dependencies)
        folders = []
        for item in dependencies:
            if item.any_end:
                continue
            place, _, job = self.observed(item.app_id)
            if job is None:
                raise ConfigError(
                    f"it is unknown whether {item.app_id} succeeds: it has no folder in {place.shared}/jobs",
                    hint=f"To wait however it ends: --after {item.app_id}:any.",
                )
            folders.append(job_folder(place.shared, item.app_id))
        if folders:
            info.request.script = with_check(info.request.script, info.request.folder, folders)

    # ---- observing

    def query(self, commands: Commands, refs: Sequence[JobIds]) -> Mapping[str, builtins.list[NativeJob]]:
        """Ask qstat, and the accounting for what has left the queue."""
        listed = self._listed(commands, {number for ref in refs for number in ref.native_ids})
        ended = self._ended(commands, [n for ref in refs for n in ref.native_ids if n not in listed])
        return by_job(refs, {**ended, **listed}, listed.values())

    def query_all(self, commands: Commands, since: float | None) -> builtins.list[NativeJob]:
        """Return this user's jobs: those of qstat, and those that ended lately."""
        days = LISTED_DAYS if since is None else max(1, int((time.time() - since) // 86400) + 1)
        jobs = self._listed(commands, None)
        answer = commands.run(["qacct", "-o", self._user(commands), "-d", str(days), "-j"])
        ended = observe.jobs_from_accounting(answer.text) if answer.code == 0 else {}
        return list({**ended, **jobs}.values())

    def _listed(self, commands: Commands, wanted: set[str] | None) -> dict[str, NativeJob]:
        """Return what the queue lists; with details of those of ``wanted`` (or all) that wait."""
        command = ["qstat", "-xml", "-s", "prs", "-u", self._user(commands)]
        parts = self._parsed(observe.jobs_from_queue, self._ask(commands, command))
        waiting = {part.native_id for part in parts if part.state != AppState.RUNNING}
        waiting = waiting if wanted is None else waiting & wanted
        details = {}
        if waiting:
            command = ["qstat", "-xml", "-j", ",".join(sorted(waiting, key=int))]
            details = self._parsed(observe.parse_details, self._ask(commands, command))
        return observe.with_details(parts, details)

    def _ended(self, commands: Commands, numbers: Sequence[str]) -> dict[str, NativeJob]:
        """Return what the accounting has of jobs; what it lacks, or cannot be read, is missing."""
        if not numbers:
            return {}
        which = ["-j", *numbers] if len(numbers) == 1 else ["-o", self._user(commands), "-j"]
        answer = commands.run(["qacct", *which])
        return observe.jobs_from_accounting(answer.text) if answer.code == 0 else {}

    def _ask(self, commands: Commands, command: Sequence[str]) -> str:
        return self.ask(commands, command, "ask Grid Engine for jobs", hint=_ENVIRONMENT_HINT)

    def _parsed(self, parse: Any, text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise BackendError(f"cannot read what Grid Engine says: {error}") from None

    def _user(self, commands: Commands) -> str:
        """Return the user's name where commands run."""
        if commands.host not in self._users:
            self._users[commands.host] = commands.check(["id", "-un"], "ask for the user's name").strip()
        return self._users[commands.host]

    # ---- ending and entering

    def task_id(self, native_id: str, number: int) -> str:
        """Return the id of a task, ``ID.TASK``; tasks begin with 1."""
        return f"{native_id}.{number + 1}"

    def enter_command(
        self, native: NativeJob, number: int, host: str, command: Sequence[str], *, tty: bool
    ) -> builtins.list[str]:
        """Return the qrsh command that runs a command on a replica's host, in a slot by itself."""
        qrsh = ["qrsh", "-now", "y", "-pty", "y" if tty else "n", "-N", "shunter-exec"]
        return [*qrsh, "-l", f"hostname={host}", shlex.join(command)]


def create_scheduler(session_name: str, **kwargs: object) -> SgeScheduler:
    """Make the scheduler for a session."""
    return SgeScheduler("sge", session_name)

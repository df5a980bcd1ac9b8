"""`lsf`: jobs on IBM Spectrum LSF, by its command line."""

from __future__ import annotations

import builtins
import re
import shlex
import time
from collections.abc import Mapping, Sequence

from trainyard.errors import BackendError, ConfigError, UnreachableError
from trainyard.schedulers.base import Check, Dependency
from trainyard.schedulers.capabilities import SEPARATE_STREAMS, Capabilities
from trainyard.schedulers.hpc.commands import Commands
from trainyard.schedulers.hpc.queries import JobIds, NativeJob
from trainyard.schedulers.hpc.scheduler import HpcScheduler
from trainyard.schedulers.ids import is_made_here
from trainyard.schedulers.lsf.options import LsfOpts
from trainyard.specs.status import is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.schedulers.hpc.request import HpcRequest, JobPlan
    from trainyard.specs.dryrun_info import AppDryRunInfo

_NOTHING = re.compile(
    r"No (unfinished|matching|pending|running)? ?job|is not found|Illegal job ID", re.IGNORECASE
)
_OVER = re.compile(r"already finished|No matching job|is not found|is being terminated|being signaled")
_ENVIRONMENT_HINT = "Source the site's profile.lsf first, or name a login node: host=."


class LsfScheduler(HpcScheduler):
    """Runs jobs on LSF 10.1 and later."""

    opts_class = LsfOpts
    capabilities = Capabilities(
        streams=SEPARATE_STREAMS,
        arrays=True,
        retries=("application",),
        notes={"exec": "ssh, where nodes allow it", "after": "-w"},
    )
    unreachable_words = (
        r"LSF is down|Please wait|not responding|still trying|Cannot connect to LSF|communication time"
        r"|Failed in an LSF library call|Connection refused|timed out|timeout"
    )

    # ---- submitting

    def make_script(self, plan: JobPlan, opts: Any) -> tuple[list[str], str]:
        """Return bsub's command and script."""
        from trainyard.schedulers.lsf.request import make_script

        return make_script(plan, opts)

    def parse_submitted(self, text: str) -> str:
        """Return the id in ``Job <12> is submitted to queue <normal>.``, which others may precede."""
        match = re.search(r"Job <(\d+)> is submitted", text)
        if match is None:
            raise ValueError(text)
        return match[1]

    def dependency_options(self, after: Sequence[str], *, any_end: bool) -> builtins.list[str]:
        """Return ``-w``; an array counts as done when all its elements are."""
        return ["-w", " && ".join(f"{'ended' if any_end else 'done'}({number})" for number in after)]

    def depend_on(self, info: AppDryRunInfo[HpcRequest], dependencies: Sequence[Dependency]) -> None:
        """Let the job wait for others; bsub takes a single condition."""
        super().depend_on(info, dependencies)
        conditions = [word for word in info.request.dependencies if word != "-w"]
        info.request.dependencies = ["-w", " && ".join(conditions)] if conditions else []

    def hint_for(self, words: str) -> str:
        """Return what to do about a refusal."""
        from trainyard.schedulers.lsf.reasons import hint_for

        return hint_for(words)

    # ---- observing

    def query(self, commands: Commands, refs: Sequence[JobIds]) -> Mapping[str, builtins.list[NativeJob]]:
        """Ask bjobs once, and bhist for what it has forgotten (CLEAN_PERIOD)."""
        numbers = [number for ref in refs for number in ref.native_ids]
        found = self._jobs(commands, numbers) if numbers else {}
        missing = [number for number in numbers if number not in found]
        if missing:
            found |= self._history(commands, missing)
        nameless = {ref.app_id for ref in refs if not ref.native_ids}
        named: dict[str, builtins.list[NativeJob]] = {}
        if nameless:
            for item in self._jobs(commands, []).values():
                if item.app_id in nameless and not is_terminal(item.state):
                    named.setdefault(item.app_id, []).append(item)
        answer = {}
        for ref in refs:
            items = [found[n] for n in ref.native_ids if n in found] or named.get(ref.app_id, [])
            if items:
                answer[ref.app_id] = items
        return answer

    def query_all(self, commands: Commands, since: float | None) -> builtins.list[NativeJob]:
        """Return this user's jobs, as far as bjobs remembers them."""
        jobs = list(self._jobs(commands, []).values())
        for item in jobs:  # what has ended is ours if its folder is there: it may have been deleted
            if is_terminal(item.state) or not is_made_here(item.app_id):
                item.app_id = ""
        return jobs

    def _jobs(self, commands: Commands, numbers: Sequence[str]) -> dict[str, NativeJob]:
        from trainyard.schedulers.lsf import observe

        answer = commands.run(
            ["bjobs", "-a", "-json", "-o", observe.FIELDS, *numbers], hint=_ENVIRONMENT_HINT
        )
        try:
            return observe.native_jobs(observe.parse_jobs(answer.text), time.time())
        except ValueError as error:
            if _NOTHING.search(answer.words):
                return {}
            failure = self.refusal(commands, "ask LSF for jobs", answer.words, _ENVIRONMENT_HINT)
            if answer.code == 0 and not isinstance(failure, UnreachableError):
                failure = BackendError(
                    f"cannot read what bjobs says: {error}",
                    hint="`lsid` tells LSF's version; 10.1 is needed.",
                )
            raise failure from None

    def _history(self, commands: Commands, numbers: Sequence[str]) -> dict[str, NativeJob]:
        """Return how forgotten jobs ended, as far as the events of LSF still have it."""
        from trainyard.schedulers.lsf.observe import parse_history

        try:
            answer = commands.run(["bhist", "-n", "0", "-UF", *numbers])
        except ConfigError:  # not every site gives it to users
            return {}
        return parse_history(answer.text, time.time())

    # ---- ending

    def cancel_natively(self, commands: Commands, native_ids: Sequence[str]) -> None:
        """Call bkill once."""
        answer = commands.run(["bkill", *native_ids])
        lines = f"{answer.text}\n{answer.err}".splitlines()
        refused = [line.strip() for line in lines if line.strip() and not _OVER.search(line)]
        if answer.code != 0 and refused:
            raise self.refusal(commands, "kill the job", "\n".join(refused))

    # ---- entering

    def enter_command(
        self, native: NativeJob, number: int, command: Sequence[str], *, tty: bool
    ) -> builtins.list[str]:
        """Return the ssh command that runs a command on a replica's host: LSF starts nothing in a job."""
        replica = native.replicas.get(number)
        host = replica.host if replica is not None and replica.host else ""
        host = host or (native.hosts[number] if number < len(native.hosts) else "")
        if not host:
            raise ConfigError(f"LSF does not say on which host replica {number} of {native.native_id} runs")
        words = shlex.join(command) if command else "exec ${SHELL:-/bin/sh} -i"
        return ["ssh", *(["-tt"] if tty else ["-T"]), "-oConnectTimeout=20", "--", host, words]

    # ---- doctor

    def doctor(self, cfg: Mapping[str, Any]) -> builtins.list[Check]:
        """Check whether jobs with these options could run."""
        from trainyard.schedulers.lsf.doctor import checks

        return checks(self.commands(str(cfg.get("host") or "")), cfg)


def create_scheduler(session_name: str, **kwargs: object) -> LsfScheduler:
    """Make the scheduler for a session."""
    return LsfScheduler("lsf", session_name)

"""`lsf`: jobs on IBM Spectrum LSF, by its command line."""

from __future__ import annotations

import builtins
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shunter.errors import BackendError, ConfigError, UnreachableError
from shunter.schedulers.api import Check
from shunter.schedulers.capabilities import SEPARATE_STREAMS, Capabilities
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.follow_up_request import QueueWords
from shunter.schedulers.hpc.queries import JobIds, NativeJob, by_job
from shunter.schedulers.hpc.request import HpcRequest, JobPlan
from shunter.schedulers.hpc.scheduler import LIST_FILTERS, HpcScheduler
from shunter.schedulers.hpc.ssh import CONNECT_SECONDS
from shunter.schedulers.lsf_scheduler import observe
from shunter.schedulers.lsf_scheduler.doctor import checks, examine_job
from shunter.schedulers.lsf_scheduler.options import LsfOpts
from shunter.schedulers.lsf_scheduler.reasons import HINTS
from shunter.schedulers.lsf_scheduler.request import ID_PATTERN, make_script, queue_words
from shunter.specs.dryrun_info import AppDryRunInfo

_NOTHING = re.compile(
    r"No (unfinished|matching|pending|running)? ?job|is not found|Illegal job ID", re.IGNORECASE
)
_ENVIRONMENT_HINT = "Source the site's profile.lsf first, or name a login node: host=."

_VERSION_HINT = "`lsid` tells LSF's version: 10.1 with Fix Pack 2 or newer is needed (bjobs -json)."


class LsfScheduler(HpcScheduler):
    """Runs jobs on LSF 10.1 and later."""

    opts_class = LsfOpts
    id_pattern = ID_PATTERN
    cancel_command = ("bkill",)
    over_words = r"already finished|no matching job|is not found|is being terminated|being signaled"
    refusal_hints = HINTS
    capabilities = Capabilities(
        list_filters=LIST_FILTERS,
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
        return make_script(plan, opts)

    def queue_words(self, plan: JobPlan, opts: Any, command: builtins.list[str]) -> QueueWords:
        """Return LSF's words for a job's follow-up."""
        return queue_words(plan, opts, command)

    def wait_options(self, after: Sequence[tuple[str, bool]]) -> builtins.list[str]:
        """Return one ``-w`` with all conditions; an array counts as done when all its elements are.

        A job whose condition can no longer be met is ended at once (``-ti``) instead of waiting for ever.
        """
        conditions = [f"{'ended' if any_end else 'done'}({number})" for number, any_end in after]
        may_fail = any(not any_end for _, any_end in after)
        return ["-w", " && ".join(conditions), *(["-ti"] if may_fail else [])]

    # ---- observing

    def query(self, commands: Commands, refs: Sequence[JobIds]) -> Mapping[str, builtins.list[NativeJob]]:
        """Ask bjobs once, and bhist for what it has forgotten (CLEAN_PERIOD)."""
        numbers = [number for ref in refs for number in ref.native_ids]
        found = self._jobs(commands, numbers) if numbers else {}
        missing = [number for number in numbers if number not in found]
        if missing:
            found |= self._history(commands, missing)
        nameless = any(not ref.native_ids for ref in refs)
        return by_job(refs, found, self._jobs(commands, []).values() if nameless else ())

    def query_all(self, commands: Commands, since: float | None) -> builtins.list[NativeJob]:
        """Return this user's jobs, as far as bjobs remembers them."""
        return list(self._jobs(commands, []).values())

    def _jobs(self, commands: Commands, numbers: Sequence[str]) -> dict[str, NativeJob]:
        answer = commands.run(
            ["bjobs", "-a", "-json", "-o", observe.FIELDS, *numbers], hint=_ENVIRONMENT_HINT
        )
        try:
            return observe.jobs_from_json(answer.text, time.time())
        except ValueError as error:
            if _NOTHING.search(answer.words):
                return {}
            is_old = "llegal option" in answer.words
            hint = _VERSION_HINT if is_old else _ENVIRONMENT_HINT
            failure = self.refusal(commands, "ask LSF for jobs", answer.words, hint)
            if answer.code == 0 and not isinstance(failure, UnreachableError):
                failure = BackendError(f"cannot read what bjobs says: {error}", hint=_VERSION_HINT)
            raise failure from None

    def _history(self, commands: Commands, numbers: Sequence[str]) -> dict[str, NativeJob]:
        """Return how forgotten jobs ended, as far as the events of LSF still have it."""
        try:
            answer = commands.run(["bhist", "-n", "0", "-UF", *numbers])
        except ConfigError:  # not every site gives it to users
            return {}
        return observe.jobs_from_history(answer.text, time.time())

    # ---- ending and entering

    def task_id(self, native_id: str, number: int) -> str:
        """Return the id of an element, ``ID[INDEX]``; indices begin with 1."""
        return f"{native_id}[{number + 1}]"

    def enter_command(
        self, native: NativeJob, number: int, host: str, command: Sequence[str], *, tty: bool
    ) -> builtins.list[str]:
        """Return the ssh command that runs a command on a replica's host: LSF starts nothing in a job."""
        options = ["-tt" if tty else "-T", f"-oConnectTimeout={CONNECT_SECONDS}"]
        return ["ssh", *options, "--", host, shlex.join(command)]

    # ---- doctor

    def examine(self, cfg: Mapping[str, Any]) -> Iterable[Check]:
        """Check whether jobs with these options could run."""
        return checks(self, cfg)

    def examine_job(self, job: AppDryRunInfo[HpcRequest]) -> builtins.list[Check]:
        """Compare the job with the hosts of its queue: LSF has no dry run."""
        roles = job.app.roles if job.app is not None else []
        return [examine_job(self.commands(job.request.host), job.request, roles, self.opts_class(**job.cfg))]


def create_scheduler(session_name: str, **kwargs: object) -> LsfScheduler:
    """Make the scheduler for a session."""
    return LsfScheduler("lsf", session_name)

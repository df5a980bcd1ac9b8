"""`lsf`: jobs on IBM Spectrum LSF, by its command line."""

from __future__ import annotations

import builtins
import re
import shlex
import time
from collections.abc import Mapping, Sequence

from shunter.errors import BackendError, ConfigError, UnreachableError
from shunter.schedulers.capabilities import SEPARATE_STREAMS, Capabilities
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.queries import JobIds, NativeJob, by_job
from shunter.schedulers.hpc.scheduler import LIST_FILTERS, HpcScheduler
from shunter.schedulers.hpc.ssh import CONNECT_SECONDS
from shunter.schedulers.lsf_scheduler import doctor, observe
from shunter.schedulers.lsf_scheduler.options import LsfOpts
from shunter.schedulers.lsf_scheduler.reasons import HINTS
from shunter.schedulers.lsf_scheduler.request import make_script, queue_words

_NOTHING = re.compile(
    r"No (unfinished|matching|pending|running)? ?job|is not found|Illegal job ID", re.IGNORECASE
)
_ENVIRONMENT_HINT = "Source the site's profile.lsf first, or name a login node: host=."

_VERSION_HINT = "`lsid` tells LSF's version: 10.1 with Fix Pack 2 or newer is needed (bjobs -json)."


class LsfScheduler(HpcScheduler):
    """Runs jobs on LSF 10.1 and later."""

    opts_class = LsfOpts
    make_script = staticmethod(make_script)
    queue_words = staticmethod(queue_words)
    examine = doctor.examine
    examine_job = doctor.examine_job
    id_pattern = r"Job <(\d+)> is submitted"
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


def create_scheduler(session_name: str, **kwargs: object) -> LsfScheduler:
    """Make the scheduler for a session."""
    return LsfScheduler("lsf", session_name)

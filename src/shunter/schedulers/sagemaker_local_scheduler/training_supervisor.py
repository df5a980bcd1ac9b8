"""The supervisor of a training job: replicas are hosts, and each attempt is prepared and has its data.

What takes long before an attempt, such as fetching data, is done by a thread.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from shunter._toolkit import store
from shunter.schedulers.sagemaker_local_scheduler.attempt import Attempt
from shunter.schedulers.sagemaker_local_scheduler.host_making import NOT_FOUND, HostMaker, NotPrepared
from shunter.schedulers.sagemaker_local_scheduler.job_results import Results, Unsent
from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings
from shunter.schedulers.sagemaker_local_scheduler.job_status import (
    LONGEST_REASON,
    MESSAGES,
    advance,
    end_attempt,
    finish,
    first_status,
)
from shunter.schedulers.sagemaker_local_scheduler.log_metrics import final_metrics
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor import reasons
from shunter.schedulers.supervisor.container_replica import ContainerReplica
from shunter.schedulers.supervisor.observe import text_of
from shunter.schedulers.supervisor.replica import Replica
from shunter.schedulers.supervisor.supervisor import Supervisor, ended_children
from shunter.specs.status import AppState
from shunter.system.processes import signal_name

#: The last steps of jobs that are stopped, by why; "" for the status itself.
_LAST_STEPS = {
    reasons.CANCELLED: "",
    reasons.TIMEOUT: "MaxRuntimeExceeded",
    reasons.WAIT_TIMEOUT: "MaxWaitTimeExceeded",
}
#: Ends of containers that are this machine's fault.
_LOST = (reasons.REMOVED, reasons.DEAD)


class TrainingSupervisor(Supervisor):
    """Carries out one request.

    Args:
        job: the job's directory.
        plan: ``process``, which is a `ProcessPlan` with a replica for each host, and ``request``, ``arn``,
            ``region``, ``settings``, ``programs``.

    Raises:
        OSError: the state cannot be written.
    """

    job_class = TrainingJob
    job: TrainingJob
    # SIGUSR2 asks for an interruption. SIGIO comes when a program writes to a file that is checked for
    # writers.
    SIGNALS = (*Supervisor.SIGNALS, signal.SIGIO)

    def __init__(self, job: TrainingJob, plan: dict[str, Any]) -> None:
        state = job.read_state()
        if state is None:
            raise ValueError(f"no job in {job.path}")
        self.status = {key: state[key] for key in first_status(0.0)}
        self.request: dict[str, Any] = plan["request"]
        self.settings = Settings(**plan["settings"])
        self.store = store.Store(
            self.settings.patience, threading.Event(), plan["region"], warn=lambda message: None
        )
        self.attempt: Attempt | None = None
        self._is_preparing = False
        #: The machines were taken away, and others are not there yet.
        self._is_waiting = False
        self._is_interrupted = False
        self._retries_left = (self.request.get("RetryStrategy") or {}).get("MaximumRetryAttempts", 0)
        #: Why the job has failed besides how its hosts ended.
        self._failure = ""
        super().__init__(job, plan["process"])
        containers = [r.container.name for r in self.replicas if isinstance(r, ContainerReplica)]
        self.maker = HostMaker(job, plan, self.settings, containers)

    # ---- attempts

    def _begin(self) -> None:
        longest = (self.request.get("StoppingCondition") or {}).get("MaxWaitTimeInSeconds")
        if longest is not None:
            left = self.status["created_at"] + longest - time.time()
            self._after(left, lambda: self._stop_all(reasons.WAIT_TIMEOUT, str(longest)))
        self._make_attempt()

    def _make_attempt(self) -> None:
        """Have a thread prepare an attempt; `_is_prepared` goes on."""
        self._is_preparing = True
        attempt = self.attempt = Attempt(
            self.maker,
            self.store,
            self.replicas[0].restarts + 1,
            lambda number: self.replicas[number].may_run(),
            lambda step, message: self.call_soon(lambda: self._tell(step, message)),
        )

        def prepare() -> None:
            problem: Exception | None = None
            try:
                attempt.prepare()
            except Exception as error:
                problem = error
            self.call_soon(lambda: self._is_prepared(attempt, problem))

        threading.Thread(target=prepare, name="prepare", daemon=True).start()

    def _tell(self, step: str, message: str) -> None:
        """Move along the status ladder while an attempt is prepared."""
        if self.stopping is None and not self._is_interrupted:
            self._waits_for = message if step == "Starting" else ""
            self._move(step, message)

    def _is_prepared(self, attempt: Attempt, problem: Exception | None) -> None:
        self._is_preparing = False
        if problem is None and self.stopping is None and not self._is_interrupted:
            self._start_attempt(attempt)
            return
        attempt.stop()
        if self.stopping is not None:
            return
        if self._is_interrupted:
            self._wait_for_machines()
        elif isinstance(problem, NotPrepared) and problem.is_internal and self._retries_left > 0:
            self._restart(str(problem))
        else:
            self._failure = str(problem) if isinstance(problem, NotPrepared) else _fault(problem)
            self._stop_all(reasons.NOT_STARTED, self._failure)

    def _start_attempt(self, attempt: Attempt) -> None:
        for host, replica, program in zip(self.maker.hosts, self.replicas, attempt.programs, strict=True):
            if program is not None:
                replica.program, replica.argv = program.program, program.argv
                replica.env, replica.cwd = program.env, program.cwd
            elif isinstance(replica, ContainerReplica):
                replica.container.gpus = None if self.maker.gives_gpus(host) else ""
        attempt.start()
        now = time.time()
        self.status["training_start"] = self.status["training_start"] or now
        self.status["attempt_start"] = now
        self._move("Training")
        longest = (self.request.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds", 86400)
        left = longest - self.status["training_seconds"]
        self._after(left, lambda: self._end_of_training(attempt, longest))
        super()._begin()

    def _end_of_training(self, attempt: Attempt, limit: float) -> None:
        if attempt is self.attempt and self.status["attempt_start"] is not None:
            self._stop_all(reasons.TIMEOUT, f"{limit:g}")

    def _is_over(self) -> bool:
        is_busy = self._is_preparing or self._is_waiting
        return not is_busy and super()._is_over() and not self._goes_on()

    def _goes_on(self) -> bool:
        """End an attempt whose hosts have all ended; returns whether there will be another one."""
        attempt = self.attempt
        if attempt is None or self.status["attempt_start"] is None:
            return False
        end_attempt(self.status, time.time())
        try:
            problem = attempt.finish(was_killed=any(replica.was_killed for replica in self.replicas))
        except Exception as error:
            problem = _fault(error)
        if self.stopping is not None:
            return False
        if self._is_interrupted:
            self._wait_for_machines()
            return True
        lost = [replica for replica in self.replicas if replica.end in _LOST]
        if lost and self._retries_left > 0:
            self._restart(f"InternalServerError: {self._host_of(lost[0])}: {lost[0].reason}")
            return True
        self._failure = self._failure_of_hosts() or problem
        return False

    def _restart(self, reason: str) -> None:
        """Make another attempt after a fault of this machine."""
        self._retries_left -= 1
        self._move("Restarting", reason)
        self._set_hosts_aside()
        self._make_attempt()

    def _set_hosts_aside(self) -> None:
        for replica in self.replicas:
            replica.set_aside()
        self._dirty = True

    # ---- interruptions

    def _handle(self, signums: bytes) -> None:
        if signal.SIGUSR2 in signums:
            self._interrupt()
        super()._handle(signums)

    def _interrupt(self) -> None:
        """End the hosts, as when the machines of a spot job are taken away."""
        if self.stopping is not None or self._is_interrupted:
            return
        if not self._is_preparing and self.status["attempt_start"] is None:
            self.job.forget("interrupt")  # no instances run
            return
        self._is_interrupted = True
        self.store.cancelled.set()
        self._move("Interrupted")
        self._stop(self.replicas, reasons.CANCELLED, " by an interruption")

    def _wait_for_machines(self) -> None:
        """Make another attempt when there are machines again."""
        request = self.job.asked("interrupt") or {}
        self.job.forget("interrupt")
        self._is_interrupted, self._is_waiting, self.attempt = False, True, None
        self.store.cancelled.clear()
        self._set_hosts_aside()

        def go_on() -> None:
            if self.stopping is None:
                self._is_waiting = False
                self._move("Starting")
                self._make_attempt()

        self._after(float(request.get("absence") or 0.0), go_on)

    def _ended_children(self) -> Iterator[tuple[int, int]]:
        """Yield the children that have ended, but for the commands that threads run and wait for."""
        groups = [-replica.pid for replica in self.replicas if replica.pid]
        programs = self._hangs.programs if self._hangs is not None else []
        for which in (*groups, *programs):
            yield from ended_children(which)

    # ---- its end

    def _stop_all(self, reason: str, detail: str, signum: int = 0) -> None:
        if self.stopping is not None:
            return
        super()._stop_all(reason, detail, signum)
        self.store.cancelled.set()
        self._is_waiting = False
        if reason == reasons.CANCELLED:
            self.status["status"] = "Stopping"
            self._move("Stopping")

    def _conclude(self) -> None:
        """Send the results, decide how the job ends, and remove the hosts and their files."""
        end, secondary, reason, message = self._outcome()
        unsent: Unsent | None = None
        try:
            if self.attempt is not None and self.attempt.has_started:
                unsent = self._send_results(self.attempt, with_model=end != "Failed")
        except Exception as error:
            end, secondary, reason = "Failed", "", reason or _fault(error)
        if unsent is not None and end != "Failed":
            if self.stopping is not None and unsent.is_disk_full:  # perhaps the reason for the stop
                message = f"Training job stopped; its results were not sent: {unsent.problem}"
            else:
                end, secondary = "Failed", ""
                reason = f"ClientError: Artifact upload failed: {unsent.problem}"
        try:
            self.status["metrics"], problems = final_metrics(self.job, self.request, self.replicas)
            if problems:
                text = message or reason or MESSAGES.get(secondary or end, "")
                message = "; ".join([text.rstrip("."), *problems])
            self.maker.close()
        except Exception as error:  # what is left is removed with the job
            _fault(error)
        finish(self.status, end, time.time(), secondary=secondary, reason=reason, message=message)

    def _send_results(self, attempt: Attempt, *, with_model: bool) -> Unsent | None:
        """Send model and output; see `Results`."""
        is_waited_for = self.stopping is not None and self.stopping[0] == reasons.CANCELLED
        results = Results(self.job, self.request, attempt.trees, with_model=with_model)
        if not results.kinds:
            return None
        self._move("Uploading", results.message)
        sent = results.send(self.store, 0.0 if is_waited_for else self.settings.patience)
        self.status["artifacts"] = results.model_uri
        return sent

    def _outcome(self) -> tuple[str, str, str, str]:
        """Return status, last step, failure reason and last message, as far as the hosts decide them."""
        stopped, words = self.stopping or ("", "")
        if stopped in _LAST_STEPS and not self._failure:
            return "Stopped", _LAST_STEPS[stopped], "", ""
        if stopped == reasons.HUNG:
            return "Failed", "", f"AlgorithmError: {words}", ""
        if self._failure:
            return "Failed", "", self._failure, ""
        if stopped:
            return "Failed", "", f"InternalServerError: {words}", ""
        return "Completed", "", "", ""

    def _failure_of_hosts(self) -> str:
        """Return the reason for which the first host has failed; "" if none has."""
        failed = [replica for replica in self.replicas if replica.state == AppState.FAILED]
        if not failed:
            return ""
        first = min(failed, key=lambda replica: replica.ended_at or 0.0)
        if first.end in _LOST:
            return f"InternalServerError: {self._host_of(first)}: {first.reason}"
        base = self.job.base_dir(first.role, first.index)
        report = text_of(os.path.join(base, "output", "failure"))
        code = NOT_FOUND if first.exit_code is None else first.exit_code
        text = report or _words_of(first) or next((line for line in reversed(first.log_end()) if line), "")
        where = f", host: {self._host_of(first)}" if len(self.replicas) > 1 else ""
        tail = f", exit code: {code}{where}"
        head = "AlgorithmError: "
        return head + text[: LONGEST_REASON - len(head) - len(tail)] + tail

    def _host_of(self, replica: Replica) -> str:
        return self.maker.hosts[self.replicas.index(replica)].name

    # ---- state

    def _move(self, secondary: str, message: str = "") -> None:
        """Move along the status ladder."""
        advance(self.status, secondary, time.time(), message)
        self._write_state()

    def _present_state(self) -> AppState:
        return AppState.PENDING if self.status["attempt_start"] is None else AppState.RUNNING

    def _final_state(self) -> AppState:
        if self.status["status"] == "Stopped" and self.stopping is not None:
            return reasons.state_of(self.stopping[0])
        return AppState.SUCCEEDED if self.status["status"] == "Completed" else AppState.FAILED

    def _message(self) -> str:
        return str(self.status["failure_reason"]) or super()._message()

    def _document(self, state: AppState) -> dict[str, Any]:
        return {**super()._document(state), **self.status}


def _fault(error: Exception | None) -> str:
    """Log an error that nobody expected; returns the failure reason that says so."""
    with suppress(OSError):  # the disk of the log may be full
        traceback.print_exception(error)
    return f"InternalServerError: a fault of the local supervisor: {error!r}"


def _words_of(replica: Replica) -> str:
    """Return in words how a host ended, if that says more than its exit code."""
    if replica.end in (reasons.FAILED, reasons.NOT_EXECUTED):  # the last line of the log says why
        return ""
    if replica.end in (reasons.SIGNAL, reasons.EXIT_LIKE_SIGNAL):
        return f"ended by {signal_name((replica.exit_code or 0) - 128)}"
    return replica.reason

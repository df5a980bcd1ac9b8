"""The supervisor of one job: it moves the job along the status ladder, and writes its state.

Two threads share the work. The main one waits for signals, deadlines and failed hosts, and stops the hosts.
The other one does what takes time: fetching data, starting hosts, waiting for them, sending results.
"""

from __future__ import annotations

import select
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from shunter._toolkit import store
from shunter.backoff import Backoff
from shunter.schedulers.sagemaker_local_scheduler.attempt import Attempt, Outcome
from shunter.schedulers.sagemaker_local_scheduler.job_results import send_results
from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings
from shunter.schedulers.sagemaker_local_scheduler.job_status import MESSAGES, Journal
from shunter.schedulers.sagemaker_local_scheduler.log_metrics import final_metrics
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.sagemaker_local_scheduler.training_platform import Platform
from shunter.schedulers.supervision import STOP
from shunter.schedulers.supervisor.documents import is_full_disk
from shunter.schedulers.supervisor.job_directory import log_exception
from shunter.system.wakeup import Wakeup

T = TypeVar("T")

#: Why hosts are stopped. A later reason counts only if it is stronger.
STRENGTH = {"interrupt": 1, "host_failed": 1, "hung": 2, "max_run": 2, "max_wait": 3, "stop": 4}
#: The last steps of jobs that are stopped, by why; "" for the status itself.
_LAST_STEPS = {"stop": "", "max_run": "MaxRuntimeExceeded", "max_wait": "MaxWaitTimeExceeded"}
LONGEST_WAIT = 3600.0
#: Between two attempts to write the state while the disk is full.
SECONDS_BETWEEN_WRITES = 0.5


@dataclass(frozen=True)
class Conclusion:
    """How a job ends."""

    status: str
    secondary: str = ""
    reason: str = ""
    message: str = ""


class TrainingSupervisor:
    """Carries out one request.

    Args:
        job: the job's directory.
        plan: ``request``, ``arn``, ``region``, ``settings``, ``programs``.

    Raises:
        OSError: the state cannot be written.
    """

    job_class = TrainingJob

    def __init__(self, job: TrainingJob, plan: dict[str, Any]) -> None:
        self._events: deque[tuple[str, Attempt | None]] = deque()
        # First: once the state names this process, signals can come. SIGIO comes when a program writes to a
        # file that is checked for writers.
        ignored = (signal.SIGINT, signal.SIGHUP, signal.SIGIO)
        self._wakeup = Wakeup((signal.SIGTERM, signal.SIGUSR1, *ignored))
        self.job = job
        self.request: dict[str, Any] = plan["request"]
        self.arn: str = plan["arn"]
        self.settings = Settings(**plan["settings"])
        self.journal = Journal(job, on_delay=self.check_deadlines)
        self.cancelled = threading.Event()
        self.store = store.Store(
            self.settings.patience, self.cancelled, plan["region"], warn=lambda message: None
        )
        self.platform = Platform(
            job, self.request, plan["arn"], plan["region"], self.settings, plan["programs"]
        )
        self.ending = ""
        #: Why the job is ended for a host that hangs.
        self.hung = ""
        self.attempt: Attempt | None = None
        self._lock = threading.RLock()
        self._kill_at = 0.0
        self._is_concluding = False

    def _post(self, event: str, attempt: Attempt | None = None) -> None:
        """Send an event to the main thread. An empty one makes it check the deadlines."""
        self._events.append((event, attempt))
        self._wakeup.wake()

    # ---- the main thread

    def run(self) -> None:
        """Run the job to its end."""
        if self.job.asked("stop"):
            self._events.append(("stop", None))
        worker = threading.Thread(target=self._work, name="work")
        worker.start()
        poller = select.poll()
        poller.register(self._wakeup.fileno(), select.POLLIN)
        while True:
            poller.poll(self._seconds_left() * 1000 if not self._events else 0)
            received = self._wakeup.read()
            if signal.SIGTERM in received:
                self._request_end("stop")
            if signal.SIGUSR1 in received:
                self._request_end("interrupt")
            while self._events:
                event, attempt = self._events.popleft()
                if event == "done":
                    worker.join()
                    return
                if event and attempt in (None, self.attempt):
                    self._request_end(event)
            self.journal.catch_up()
            self._act_on_deadlines()

    def _seconds_left(self) -> float:
        times = [moment for moment, _ in self._deadlines()]
        if self._kill_at:
            times.append(self._kill_at)
        if self.journal.is_behind:
            times.append(time.time() + SECONDS_BETWEEN_WRITES)
        return max(0.0, min([*times, time.time() + LONGEST_WAIT]) - time.time())

    def _deadlines(self) -> list[tuple[float, str]]:
        if self.ending and STRENGTH[self.ending] >= STRENGTH["max_run"]:
            return []
        condition = self.request.get("StoppingCondition") or {}
        found = []
        attempt = self.attempt
        if attempt is not None and attempt.started_at and attempt.ended_at is None:
            left = condition.get("MaxRuntimeInSeconds", 86400) - self.journal.state["training_seconds"]
            found.append((attempt.started_at + left, "max_run"))
        if "MaxWaitTimeInSeconds" in condition:
            created = self.journal.state["created_at"]
            found.append((created + condition["MaxWaitTimeInSeconds"], "max_wait"))
        return found

    def _act_on_deadlines(self) -> None:
        now = time.time()
        for moment, kind in self._deadlines():
            if moment <= now:
                self._request_end(kind)
        if self._kill_at and self._kill_at <= now:
            self._kill_at = 0.0
            attempt = self.attempt
            if attempt is not None:
                attempt.kill()

    def _request_end(self, kind: str) -> None:
        """Stop the hosts, unless that is under way for a stronger reason."""
        with self._lock:
            if self._is_concluding or (self.ending and STRENGTH[kind] <= STRENGTH[self.ending]):
                return
            if kind == "interrupt" and (self.attempt is None or self.attempt.ended_at is not None):
                self.job.forget("interrupt")  # no instances run
                return
            self.ending = kind
            self.cancelled.set()
            attempt = self.attempt
        if kind == "stop":
            self.journal.move("Stopping", status="Stopping")
        elif kind == "interrupt":
            self.journal.move("Interrupted")
        if attempt is not None:
            attempt.terminate()
            self._kill_at = self._kill_at or time.time() + self.settings.grace

    # ---- the working thread

    def _work(self) -> None:
        try:
            try:
                end = self._conclude(self._attempts())
            except Exception:
                log_exception()
                last = traceback.format_exc().strip().splitlines()[-1]
                end = Conclusion(
                    "Failed", reason=f"InternalServerError: a fault of the local supervisor: {last}"
                )
            self._close(end)
        finally:
            self._post("done")

    def _attempts(self) -> Outcome:
        """Make attempts until one is not interrupted and does not fail for this machine's fault."""
        retries = (self.request.get("RetryStrategy") or {}).get("MaximumRetryAttempts", 0)
        while True:
            with self._lock:
                if self.ending:
                    return Outcome("ended")
                attempt = self.attempt = Attempt(self)
            outcome = attempt.run()
            before = self.journal.state["training_seconds"]
            self.journal.set(training_seconds=before + attempt.seconds, attempt_start=None)
            if self._restart_after("interrupt"):
                self._restart_after_interruption(attempt)
            elif outcome.kind == "internal" and retries > 0 and self._restart_after("", "host_failed"):
                retries -= 1
                attempt.remove()
                self.journal.reset_hosts()
                self.journal.move("Restarting", outcome.reason)
                self.journal.set(restarts=self.journal.state["restarts"] + 1)
            else:
                return outcome

    def _restart_after(self, *endings: str) -> bool:
        """Prepare another attempt if the hosts were stopped for one of these reasons; return if they were."""
        with self._lock:
            if self.ending not in endings:
                return False
            self.attempt, self.ending, self._kill_at = None, "", 0.0
            self.cancelled.clear()
            return True

    def _restart_after_interruption(self, attempt: Attempt) -> None:
        request = self.job.asked("interrupt") or {}
        self.job.forget("interrupt")
        attempt.remove()
        self.journal.reset_hosts()
        self.journal.set(restarts=self.journal.state["restarts"] + 1)
        self.cancelled.wait(float(request.get("absence") or 0.0))
        with self._lock:
            if not self.ending:
                self.journal.move("Starting")

    def _conclude(self, outcome: Outcome) -> Conclusion:
        """Send the results, and decide how the job ends."""
        with self._lock:
            self._is_concluding = True
        if self.ending in _LAST_STEPS:
            end = Conclusion("Stopped", _LAST_STEPS[self.ending])
        elif self.ending == "hung":
            end = Conclusion("Failed", reason=f"AlgorithmError: stopped because it hung: {self.hung}")
        elif outcome.kind == "completed":
            end = Conclusion("Completed")
        else:
            end = Conclusion("Failed", reason=outcome.reason)
        attempt = self.attempt
        if attempt is None or not attempt.started_at:
            return end
        unsent = send_results(self, attempt.trees, with_model=end.status != "Failed")
        if unsent is None or end.status == "Failed":
            return end
        if self.ending == "stop" and unsent.is_disk_full:  # perhaps the reason for the stop
            return Conclusion(
                "Stopped", message=f"Training job stopped; its results were not sent: {unsent.problem}"
            )
        return Conclusion("Failed", reason=f"ClientError: Artifact upload failed: {unsent.problem}")

    def _close(self, end: Conclusion) -> None:
        """Remove the hosts and their files, and end the job."""
        attempt = self.attempt
        metrics: list[dict[str, Any]] = []
        problems: list[str] = []
        try:
            metrics, problems = final_metrics(self.job, self.request, self.journal.state)
            if attempt is not None:
                attempt.remove()
        except Exception:
            log_exception()
        try:
            self.platform.close()
        except Exception:
            log_exception()
            self.journal.set(metrics=metrics)
            # the next reader of the state tries again
            self.journal.end(end.status, secondary=end.secondary, reason=end.reason, is_swept=False)
            return
        self.journal.set(metrics=metrics)
        message = end.message
        if problems:
            what = message or end.reason or MESSAGES.get(end.secondary or end.status, "")
            message = "; ".join([what.rstrip("."), *problems])
        self.journal.end(end.status, secondary=end.secondary, reason=end.reason, message=message)

    # ---- for attempts

    def host_failed(self, attempt: Attempt) -> None:
        """Stop the other hosts."""
        self._post("host_failed", attempt)

    def host_hangs(self, attempt: Attempt, name: str, text: str) -> None:
        """Mark a host that hangs, or end the job, as requested; an empty text unmarks the host."""
        self.journal.set_host(name, reason=f"it hangs: {text}" if text else "")
        if text and self.settings.on_hang == STOP:
            self.hung = self.hung or f"{name}: {text}"
            self._post("hung", attempt)

    def check_deadlines(self) -> None:
        """Let the main thread check the deadlines: there may be a new one."""
        self._post("")

    def await_room(
        self, action: Callable[[], T], *, may_cancel: bool = True, patience: float | None = None
    ) -> T:
        """Do something, and try again while a disk is full.

        Args:
            action: what to do.
            may_cancel: whether it is given up when the job is to end.
            patience: seconds; by default as long as for a store that is out of reach.

        Raises:
            OSError: the disk stays full.
            StoreError: the same, of a store on this machine.
            Cancelled: the job is to end.
        """
        limit = self.settings.patience if patience is None else patience
        wait = Backoff(0.2, 5.0, jitter=0, limit=limit, stop=self.cancelled if may_cancel else None)
        while True:
            if may_cancel:
                self.store.raise_if_cancelled()
            try:
                return action()
            except (OSError, store.StoreError) as error:
                if not is_full_disk(error) or not wait.pause():
                    raise

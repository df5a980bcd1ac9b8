"""One attempt at a job: hosts with new directories, from fetching their data to the end of their programs."""

from __future__ import annotations

import functools
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shunter import system
from shunter._toolkit import channels, store, sync
from shunter.parallel import for_all
from shunter.schedulers.sagemaker_local_scheduler.host_watch import HostWatch
from shunter.schedulers.sagemaker_local_scheduler.hosts.host import (
    Exit,
    PlatformFailure,
    ProcessHost,
    Running,
    StartFailure,
)
from shunter.schedulers.sagemaker_local_scheduler.hosts.host_documents import (
    Situation,
    documents,
    output_directories,
)
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import Host, Shown, Tree, hosts_of
from shunter.schedulers.sagemaker_local_scheduler.input_data import Channels
from shunter.schedulers.sagemaker_local_scheduler.job_status import LONGEST_REASON
from shunter.schedulers.sagemaker_local_scheduler.logs import Log, Timekeeper, stream_name
from shunter.schedulers.sagemaker_local_scheduler.pipes import PipeFeeder
from shunter.schedulers.supervisor.documents import is_full_disk

if TYPE_CHECKING:
    from shunter.schedulers.sagemaker_local_scheduler.training_supervisor import TrainingSupervisor

NOT_FOUND = 127
LAST_LINES = 10
#: Pause between two attempts to get a network.
SECONDS_BETWEEN_NETWORKS = 1.0


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: ``completed``, ``failed``, ``internal`` (our fault) or ``ended`` (stopped)."""

    kind: str
    reason: str = ""


class TargetFailure(Exception):
    """The job's results cannot be stored where they should be."""


class Attempt:
    """One attempt at the job of a supervisor."""

    def __init__(self, run: TrainingSupervisor) -> None:
        self._run = run
        self._journal = run.journal
        self._hosts = hosts_of(run.request)
        self.trees: dict[str, Tree] = {}
        self.started_at = 0.0
        self.ended_at: float | None = None
        self._running: list[Running] = []
        self._started: list[Running] = []
        self._mirrors: list[sync.Mirror] = []
        self._pipes: list[PipeFeeder] = []
        self._exits: dict[str, Exit | PlatformFailure] = {}
        self._first_failure = ""
        self._is_given_up = False
        self._lock = threading.Lock()
        self._timekeeper: Timekeeper | None = None
        self._watch: HostWatch | None = None

    @property
    def seconds(self) -> float:
        """How long its hosts have run."""
        return (self.ended_at or time.time()) - self.started_at if self.started_at else 0.0

    def run(self) -> Outcome:
        """Make the attempt."""
        try:
            shown = self._prepare()
            self._start(shown)
            self._wait()
            return self._outcome()
        except store.Cancelled:
            return Outcome("ended")
        except TargetFailure as error:
            return Outcome("failed", f"ClientError: {error}")
        except store.StoreError as error:
            return Outcome("failed", f"ClientError: Data download failed: {error}")
        except StartFailure as error:
            return Outcome("failed", f"AlgorithmError: {error}, exit code: {NOT_FOUND}")
        except PlatformFailure as error:
            return Outcome("internal", f"InternalServerError: {error}")
        except OSError as error:
            if not is_full_disk(error):
                raise
            return Outcome("internal", f"InternalServerError: this machine's disk is full: {error}")
        finally:
            self._finish()

    # ---- before

    def _prepare(self) -> dict[str, dict[str, Shown]]:
        run, platform = self._run, self._run.platform
        platform.choose()
        run.store.raise_if_cancelled()
        self._connect()
        self._journal.move("Downloading")
        self._check_target()
        platform.prepare(self._hosts)
        run.store.raise_if_cancelled()
        inputs = Channels(run.request, self._hosts, run.store, platform.views(), run.settings.file_systems)
        shown: dict[str, dict[str, Shown]] = {}
        for host in self._hosts:
            tree = platform.tree(host)
            run.await_room(functools.partial(self._fill_tree, tree, host))
            self.trees[host.name] = tree
            data = tree.part("input", "data")
            shown[host.name] = inputs.prepare(host, data)
            self._restore(host, tree)
            self._pipes += inputs.pipes(host, data)
        return shown

    def _connect(self) -> None:
        """Get a network for the hosts; wait while all addresses are in use."""
        shown = ""
        while why := self._run.platform.connect(self._hosts):
            if why != shown:
                shown = why
                self._journal.move("Starting", f"Waiting for a network: {why}")
                self._set_reason_of_hosts(f"waiting for a network: {why}")
            self._run.cancelled.wait(SECONDS_BETWEEN_NETWORKS)
            self._run.store.raise_if_cancelled()
        if shown:
            self._journal.move("Starting")
            self._set_reason_of_hosts("")

    def _set_reason_of_hosts(self, reason: str) -> None:
        for host in self._hosts:
            self._journal.set_host(host.name, reason=reason)

    def _fill_tree(self, tree: Tree, host: Host) -> None:
        run = self._run
        situation = Situation(
            self._hosts,
            host,
            run.arn,
            run.journal.state["restarts"] + 1,
            tree.base,
            tree.interface,
            run.platform.names(self._hosts),
        )
        directories = output_directories(run.request)
        if run.request.get("CheckpointConfig"):
            directories.append("checkpoints")
        tree.make(directories, documents(run.request, situation))

    def _check_target(self) -> None:
        """Check that the results can be stored, before the job runs for hours."""
        uri = self._run.request["OutputDataConfig"]["S3OutputPath"]
        try:
            self._run.store.check_target(store.Place.parse(uri))
        except store.StoreError as error:
            raise TargetFailure(f"the results could not be stored at {uri}: {error}") from error

    def _restore(self, host: Host, tree: Tree) -> None:
        config = self._run.request.get("CheckpointConfig")
        if config:
            folder, place = tree.part("checkpoints"), store.Place.parse(config["S3Uri"])
            channels.restore(place, folder, self._run.store)
            mirror = sync.Mirror(
                folder,
                place,
                "checkpoints",
                self._run.store,
                is_alive=lambda: self._is_alive(host),
                has_writer=system.has_writer,
                warn=lambda message: None,
            )
            self._mirrors.append(mirror)

    def _is_alive(self, host: Host) -> bool:
        return all(running.is_alive() for running in list(self._running) if running.plan == host)

    # ---- while it runs

    def _start(self, shown: dict[str, dict[str, Shown]]) -> None:
        self._timekeeper = Timekeeper()
        logs = []
        for host in self._hosts:
            stream = stream_name(host.name)
            path = self._run.job.log_path(stream)
            with open(f"{path}.log", "ab"):
                pass
            self._timekeeper.add(path)
            logs.append(f"{path}.log")
            self._journal.add_log(host.name, stream)
            running = self._run.platform.host(host, self.trees[host.name], path, shown[host.name])
            self._running.append(running)
        self._run.store.raise_if_cancelled()
        for mirror in self._mirrors:
            mirror.start()
        for feeder in self._pipes:
            feeder.start()
        now = time.time()
        self.started_at = now
        start = self._journal.state["training_start"] or now
        self._journal.set(training_start=start, attempt_start=now)
        self._journal.move("Training")
        self._run.check_deadlines()
        for running in self._running:
            if isinstance(running, ProcessHost):
                self._start_host(running)  # in this thread: they end with the thread that starts them
        for_all(self._start_host, [each for each in self._running if not isinstance(each, ProcessHost)])
        self._watch = HostWatch(
            self._run.job.usage_path,
            self._running,
            logs,
            self.trees,
            self._journal.state["restarts"],
            self._run.settings.hang_timeout,
            lambda name, text: self._run.host_hangs(self, name, text),
        )
        if self._run.cancelled.is_set():  # the request to stop may have come while they started
            self.terminate()

    def _start_host(self, running: Running) -> None:
        if self._run.cancelled.is_set():
            return
        running.start()
        with self._lock:
            self._started.append(running)
        self._journal.set_host(
            running.plan.name,
            state="running",
            started_at=time.time(),
            ended_at=None,
            exit_code=None,
            reason="",
        )

    def _wait(self) -> None:
        threads = [
            threading.Thread(target=self._wait_for, args=(running,), name=f"wait-{running.plan.name}")
            for running in self._started
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _wait_for(self, running: Running) -> None:
        name = running.plan.name
        try:
            ended: Exit | PlatformFailure = running.wait()
        except PlatformFailure as error:
            ended = error
        except Exception as error:  # an unexpected error must not leave the job waiting for ever
            ended = PlatformFailure(f"the state of {name} cannot be read: {error}")
        failed = not (isinstance(ended, Exit) and ended.code == 0)
        with self._lock:
            self._exits[name] = ended
            if failed and not self._first_failure and not self._run.cancelled.is_set():
                self._first_failure = name
            first = self._first_failure
        if isinstance(ended, Exit):
            is_stopping = self._run.cancelled.is_set() or self._is_given_up
            was_stopped = failed and is_stopping and ended.by_signal
            reason = ended.reason
            if failed and first not in ("", name):
                reason = f"stopped, since {first} had failed" if was_stopped else f"after {first} had failed"
            state = "stopped" if was_stopped else "exited"
            self._journal.set_host(
                name, state=state, exit_code=ended.code, reason=reason, ended_at=time.time()
            )
        else:
            self._journal.set_host(name, state="lost", reason=str(ended), ended_at=time.time())
        if failed:
            self._run.host_failed(self)

    def terminate(self) -> None:
        """Ask all hosts to stop (SIGTERM)."""
        for running in list(self._running):
            running.terminate()

    def kill(self) -> None:
        """Kill all hosts."""
        for running in list(self._running):
            running.kill()

    # ---- after

    def _finish(self) -> None:
        """Stop all threads of the attempt, and the hosts too if not all of them could be started."""
        self._is_given_up = True
        left = [running for running in self._started if running.plan.name not in self._exits]
        for running in left:
            running.kill()
        for running in left:
            self._wait_for(running)
        if self.started_at:
            self.ended_at = time.time()
        if self._watch is not None:
            self._watch.close()
        for feeder in self._pipes:
            feeder.stop()
        for mirror in self._mirrors:
            mirror.close()
        if self._timekeeper is not None:
            self._timekeeper.close()

    def _outcome(self) -> Outcome:
        was_killed = any(isinstance(ended, Exit) and ended.was_killed for ended in self._exits.values())
        self.ended_at = time.time()
        self._run.platform.reclaim()
        for mirror in self._mirrors:
            try:
                self._run.await_room(
                    functools.partial(mirror.finish, was_killed=was_killed), may_cancel=False
                )
            except (store.StoreError, OSError) as error:
                if not self._first_failure:
                    return Outcome("failed", f"ClientError: Checkpoint upload failed: {error}")
        problems = [feeder.problem for feeder in self._pipes if feeder.problem]
        if self._first_failure:
            return self._failure(self._first_failure)
        if any(not (isinstance(ended, Exit) and ended.code == 0) for ended in self._exits.values()):
            return Outcome("ended")
        if problems:
            return Outcome("failed", f"ClientError: Data download failed: {problems[0]}")
        return Outcome("completed")

    def _failure(self, name: str) -> Outcome:
        ended = self._exits[name]
        if isinstance(ended, PlatformFailure):
            return Outcome("internal", f"InternalServerError: {ended}")
        written = read_failure(self.trees[name].part("output", "failure"))
        text = written or ended.reason or self._last_line(name)
        where = f", host: {name}" if len(self._hosts) > 1 else ""
        tail = f", exit code: {ended.code}{where}"
        head = "AlgorithmError: "
        return Outcome("failed", head + text[: LONGEST_REASON - len(head) - len(tail)] + tail)

    def _last_line(self, name: str) -> str:
        """Return the last line of a host's log, the failure reason of last resort."""
        stream = next(host for host in self._journal.state["hosts"] if host["name"] == name)["streams"][-1]
        log = Log(self._run.job.log_path(stream))
        events = log.events(log.start_of_last(LAST_LINES, log.size), is_complete=True)
        texts = [event.data.decode("utf-8", "replace").strip() for event in events]
        return next((text for text in reversed(texts) if text), "")

    def remove(self) -> None:
        """Remove the hosts, but not their files."""
        for running in self._running:
            running.remove()


def read_failure(path: str) -> str:
    """Return the failure reason that a program has written, or ""."""
    try:
        # the program may have left anything there, a FIFO too
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return ""
    with open(fd, encoding="utf-8", errors="replace") as file:
        try:
            return file.read(LONGEST_REASON).strip()
        except OSError:
            return ""

"""The supervisor of one job: it starts the replicas, applies the retry policies, and keeps the state.

It is a process with one thread, which waits in one `poll` for everything: ends of processes, growth of logs,
signals, deadlines.
"""

from __future__ import annotations

import errno
import heapq
import os
import resource
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from shunter import system
from shunter.docker.command import remove_networks
from shunter.errors import ShunterError
from shunter.schedulers.supervisor import lease, outbox, reasons
from shunter.schedulers.supervisor.container_replica import (
    ContainerReplica,
    containers_of,
    inspect,
    replica_of,
    signal_containers,
)
from shunter.schedulers.supervisor.hang_watch import HangWatch
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.log_recorder import LogRecorder, ReplicaRecorder
from shunter.schedulers.supervisor.out_of_memory import OomWatch
from shunter.schedulers.supervisor.own_directory import make_own
from shunter.schedulers.supervisor.parents import Parents
from shunter.schedulers.supervisor.process_plan import ProcessPlan
from shunter.schedulers.supervisor.replica import Replica
from shunter.schedulers.supervisor.retry_counts import RetryCounts
from shunter.schedulers.supervisor.start_queue import StartQueue
from shunter.schedulers.supervisor.usage_sampler import UsageSampler
from shunter.specs.status import AppState, is_terminal
from shunter.system import processes
from shunter.system.identity import machine, myself
from shunter.system.wakeup import Wakeup

#: Seconds until what the replicas use is sampled for the first time.
FIRST_SAMPLE = 2.0
#: State changes closer together than this are written as one.
WRITE_INTERVAL = 0.02
STATE_RESERVE = 64 * 1024
LEFTOVER_GRACE = 1.0
#: Seconds until a container is asked for, or signalled, again.
CONTAINER_PAUSE = 0.2
#: The same while its daemon is away.
DAEMON_PAUSE = 1.0
#: `poll` takes at most 24 days; jobs may run longer.
LONGEST_WAIT = 86400.0
RESERVE_PER_REPLICA = 512
#: Files that the supervisor itself and its libraries may have open.
OTHER_FILES = 64


class Supervisor:
    """Runs one job to its end.

    Args:
        job: its directory.
        plan: a `ProcessPlan`, as JSON values.

    Raises:
        OSError: the state or log directory cannot be written.
    """

    job_class = JobDirectory
    #: The signals that end its wait.
    SIGNALS: tuple[int, ...] = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self, job: JobDirectory, plan: dict[str, Any]) -> None:
        self.job = job
        self.plan = ProcessPlan.from_json(plan)
        self.roles = {role.name: role for role in self.plan.roles}
        self.replicas = [
            replica_of(role.name, index, replica, self.plan.env)
            for role in self.plan.roles
            for index, replica in enumerate(role.replicas)
        ]
        self.grace = self.plan.grace_period
        self.started_at = time.time()
        #: How often a replica, a role or, as "", the whole job was retried.
        self._retried: dict[str, int] = {}
        self.stopping: tuple[str, str] | None = None
        #: How often the time limit has led to another attempt.
        self.continuations = 0
        self._is_continuing = False
        self._waits_for = ""
        self._has_begun = False
        self._takes_lease = False
        self._restarting: set[str] = set()
        self._retries: RetryCounts | None = None
        self._hangs: HangWatch | None = None
        self._orphans: set[int] = set()
        self._oom = OomWatch()
        self._recorder = LogRecorder(system.open_file_events())
        self._sampler: UsageSampler | None = None
        self._deadlines: list[tuple[float, int, Callable[[], None]]] = []
        self._is_daemon_away = False
        self._dirty = True
        self._last_write = 0.0
        self._calls: deque[Callable[[], object]] = deque()
        self._wakeup = Wakeup(self.SIGNALS)
        self._prepare()

    # ---- life

    def _prepare(self) -> None:
        """Make directories and the first logs, and write the first state.

        The logs of other replicas are made at their starts. Making files takes longer than all else that this
        process does for a start, and can be done while the replica before loads its program.
        """
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        os.chdir(self.plan.cwd)
        _allow_open_files(len(self.replicas), self.job.path)
        for role in self.roles:
            os.makedirs(os.path.dirname(self.job.index_path(role, 0)), exist_ok=True)
        for replica in self.replicas:
            if replica.index == 0:
                self._make_logs(replica)
        self._queue = StartQueue(self.plan, self._has_ended)
        self.job.reserve_final_state(STATE_RESERVE + RESERVE_PER_REPLICA * len(self.replicas))
        self.job.write_state(self._document(AppState.PENDING))

    def _make_logs(self, replica: Replica) -> None:
        """Make the logs of a replica, and watch them."""
        try:
            os.mkdir(replica.log_dir)
        except FileExistsError:
            pass
        except FileNotFoundError:
            os.makedirs(replica.log_dir, exist_ok=True)
        index_path = self.job.index_path(replica.role, replica.index)
        replica.recorder = ReplicaRecorder(replica.log_paths, index_path)
        self._recorder.add(replica.recorder)

    def run(self) -> None:
        """Run the job to its end."""
        if self.job.asked("cancel") is not None:
            self._cancel()
        elif self.plan.after:
            self._await_parents()
        if self.stopping is None:
            self._cancel_replicas()
            self._begin()
            self._after(FIRST_SAMPLE, self._sample_usage)
            self._watch_for_hangs()
        poller = select.poll()
        poller.register(self._wakeup.fileno(), select.POLLIN)
        while not self._is_over():
            self._handle_next(poller)
            if self._queue.is_active():
                self._start_more()
        self._finish()

    def call_soon(self, action: Callable[[], object]) -> None:
        """Have the supervisor's thread do something; any thread may call this."""
        self._calls.append(action)
        self._wakeup.wake()

    # ---- what starts when

    def _begin(self) -> None:
        """Start the replicas that there is room for."""
        self._queue.fill(self.replicas)
        self._start_more()

    def _start_more(self) -> None:
        """Start what there is room for."""
        if self.stopping is not None:
            self._queue.groups.clear()
        while not self._takes_lease and (group := self._queue.take()):
            if not self._has_begun and self.plan.lease is not None:
                self._take_lease(group, **self.plan.lease)
                return
            self._start_group(group)
        if self._queue.waits_for != self._waits_for:
            self._waits_for, self._dirty = self._queue.waits_for, True

    def _start_group(self, group: Sequence[Replica]) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._limit_time()
        for replica in group:
            if not is_terminal(replica.state):
                self._start(replica)

    def _take_lease(self, group: Sequence[Replica], place: str, handle: str) -> None:
        """Have a thread take the lease of this job's race, which may take minutes; then start a group."""
        self._takes_lease = True

        def take() -> None:
            holder = problem = ""
            try:
                holder = lease.take(place, handle)
            except OSError as error:
                problem = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            self.call_soon(lambda: self._may_begin(group, holder == handle, holder, problem))

        threading.Thread(target=take, name="lease", daemon=True).start()

    def _may_begin(self, group: Sequence[Replica], is_ours: bool, holder: str, problem: str) -> None:
        """Start a group and what follows it, if this job has the lease; or else end the job."""
        self._takes_lease = False
        if self.stopping is not None:
            return
        if is_ours:
            self._start_group(group)
            self._start_more()
        elif problem:
            self._stop_all(reasons.NO_LEASE, problem)
        else:
            self._lose(holder)

    def _lose(self, holder: str) -> None:
        """End this job, since another one of its race has started; nobody is notified."""
        with suppress(OSError):
            os.remove(self.job.file(outbox.WAITING))
        self._stop_all(reasons.RACE_LOST, holder)

    def _has_ended(self, replica: Replica) -> bool:
        """Tell whether a replica has ended, is not being restarted, and has left nothing running."""
        return (
            is_terminal(replica.state) and not replica.has_leftovers and replica.name not in self._restarting
        )

    def _await_parents(self) -> None:
        """Wait for the jobs that have to end first; stop this one if it can never start."""
        parents = Parents(self.plan.after)
        try:
            while self.stopping is None and not parents.are_done():
                if parents.problem:
                    self._stop_all(reasons.PARENT_FAILED, parents.problem)
                    return
                if parents.waits_for != self._waits_for:
                    self._waits_for, self._dirty = parents.waits_for, True
                self._write_state_if_due()
                if self._wakeup.fileno() in parents.wait(self._wakeup.fileno(), self._poll_timeout()):
                    self._handle_signals()
        finally:
            self._waits_for, self._dirty = "", True
            parents.close()

    def _handle_next(self, poller: select.poll) -> None:
        """Wait for an event, and handle it."""
        self._write_state_if_due()
        watched = self._recorder.fileno()
        others = [*([] if watched is None else [watched]), *self._queue.descriptors()]
        for fd in others:
            poller.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poller.poll(self._poll_timeout())]
        for fd in others:
            poller.unregister(fd)
        self._queue.seen()
        wait = self._recorder.seconds_to_wait()
        if watched in ready or (wait is not None and wait <= 0):
            self._recorder.record_changes()
        if self._wakeup.fileno() in ready:
            self._handle_signals()
        elif not system.HAS_SUBREAPER and (self._orphans or any(r.has_leftovers for r in self.replicas)):
            self._reap()  # no signal reports the ends of processes that are not our children
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            heapq.heappop(self._deadlines)[2]()

    def _poll_timeout(self) -> float | None:
        """Return the longest wait in milliseconds; None for no limit."""
        now = time.monotonic()
        waits = [] if not self._deadlines else [self._deadlines[0][0] - now]
        recorder = self._recorder.seconds_to_wait()
        if recorder is not None:
            waits.append(recorder)
        room = self._queue.seconds_to_wait()
        if room is not None:
            waits.append(room)
        if self._dirty:
            waits.append(self._last_write + WRITE_INTERVAL - now)
        return max(0.0, min([*waits, LONGEST_WAIT]) * 1000 + 0.5) if waits else None

    def _is_over(self) -> bool:
        if self._restarting or self._orphans or (self._queue.groups and self.stopping is None):
            return False
        return all(map(self._has_ended, self.replicas))

    def _finish(self) -> None:
        """End the logs and what is left of the replicas, and write the final state."""
        for replica in self.replicas:
            if replica.recorder is not None:
                replica.recorder.record()
        processes.kill_descendants()
        if not system.HAS_SUBREAPER:
            processes.kill_members_of_job(self.job.path)
        self._queue.close()
        self._conclude()
        self.job.write_final_state(self._document(self._final_state()))
        containers = containers_of(self.replicas)
        if self.plan.network and containers:
            with suppress(ShunterError):  # `delete` removes it too
                remove_networks(containers[0].docker, [self.plan.network])

    def _conclude(self) -> None:
        """Do what is left to do when no replica runs any more; subclasses may have something."""

    def _final_state(self) -> AppState:
        if self.stopping is not None:
            return reasons.state_of(self.stopping[0])
        states = {replica.state for replica in self.replicas}
        return next((s for s in (AppState.FAILED, AppState.CANCELLED) if s in states), AppState.SUCCEEDED)

    def _sample_usage(self) -> None:
        """Note what the replicas use, and do so again after a while."""
        if self._sampler is None:
            self._sampler = UsageSampler(self.job.usage_path())
        try:
            self._after(self._sampler.sample(self.replicas), self._sample_usage)
        except OSError:  # the system does not tell: the job does not depend on it
            pass

    # ---- what happens

    def _handle_signals(self) -> None:
        received = self._wakeup.read()
        while self._calls:
            self._calls.popleft()()
        self._handle(received)

    def _handle(self, signums: bytes) -> None:
        """Act on signals that have come."""
        if signal.SIGUSR1 in signums:  # cancelled, and the disk was full
            self._cancel()
        if signal.SIGTERM in signums:
            if self.job.asked("cancel") is not None:
                self._cancel()
            else:
                self._stop_all(reasons.SHUTDOWN, "", signal.SIGTERM)
        if signal.SIGUSR2 in signums:
            self._cancel_replicas()
        if signal.SIGCHLD in signums:
            self._reap()

    def _reap(self) -> None:
        by_pid = {replica.pid: replica for replica in self.replicas if replica.is_running}
        ended: list[ContainerReplica] = []
        for pid, status in self._ended_children():
            replica = by_pid.get(pid)
            if isinstance(replica, ContainerReplica):
                if not replica.is_lost:  # else it is another program, with the number of its last one
                    replica.command_ended(os.waitstatus_to_exitcode(status))
                    ended.append(replica)
            elif replica is not None:
                self._replica_ended(replica, status)
            elif self._hangs is not None:
                self._handle_hang(self._hangs.program_ended(pid, os.waitstatus_to_exitcode(status)))
        if ended:
            self._look_at_containers(ended)
        for replica in self.replicas:
            if replica.has_leftovers:
                replica.has_leftovers = processes.signal_group(replica.pid, 0)
        self._end_orphans()
        self._restart_if_ready()

    def _ended_children(self) -> Iterator[tuple[int, int]]:
        """Yield pid and status of all children that have ended, also of orphans that became ours."""
        return ended_children(-1)

    def _end_orphans(self) -> None:
        """End what stopped replicas have left behind outside their process groups.

        An orphan had no SIGTERM from us, since its parent may have passed one on. When the parent has ended,
        it gets one SIGTERM and the rest of the grace period. An orphan that has left the session may belong
        to any replica, so it is asked to end when the last of them is.
        """
        stopped = {r.pid: r for r in self.replicas if r.was_stopped and not r.is_running}
        signalled, self._orphans = self._orphans, set()
        if not stopped:
            return
        all_stop = not self._restarting and all(r.was_stopped for r in self.replicas if r.is_running)
        running = {replica.pid for replica in self.replicas if replica.is_running}
        groups = {replica.pid for replica in self.replicas}
        for pid, _, group, session, _, _ in processes.orphans(running, self.job.path):
            replica = stopped.get(session)
            if group in groups or (replica is None and not all_stop):
                continue
            if replica is not None:
                replica.has_leftovers = True
            if (replica or min(stopped.values(), key=lambda r: r.grace_is_over)).grace_is_over:
                processes.send_to(pid, signal.SIGKILL)
            elif pid not in signalled:
                processes.send_to(pid, signal.SIGTERM)
            self._orphans.add(pid)

    def _start(self, replica: Replica) -> None:
        self._dirty = True
        problem = ""
        try:
            if replica.recorder is None:
                self._make_logs(replica)
            own = self.plan.own_directories
            if replica.cwd and own:
                make_own(own["template"], own["beside"], replica.cwd)
        except OSError as error:
            problem = f"cannot write {error.filename or replica.log_dir}: {error.strerror or error}"
        if not problem:
            try:
                os.chdir(replica.cwd or self.plan.cwd)
                replica.start()
            except OSError as error:
                problem = f"{replica.argv[0]}: {error.strerror or error}"
                if isinstance(error, FileNotFoundError) and os.access(replica.program, os.X_OK):
                    problem += " (of its interpreter: see its first line)"
        if problem:
            replica.never_ran(problem)
            self._failed(replica, may_retry=False)

    def _replica_ended(self, replica: Replica, status: int) -> None:
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        evidence = self._oom.evidence(replica.pid) if killed and replica.ended_by is None else ""
        reason = replica.ended(status, evidence)
        self._dirty = True
        if replica.has_leftovers and not replica.was_stopped:
            self._after(min(self.grace, LEFTOVER_GRACE), lambda: self._kill_leftovers(replica))
        if reasons.state_of(reason) == AppState.FAILED and self.stopping is None:
            self._failed(replica)

    def _look_at_containers(self, lost: list[ContainerReplica]) -> None:
        """Ask the daemon for containers whose command has ended, until it says how they fare."""
        lost = [replica for replica in lost if replica.is_lost]
        if not lost:
            return
        found = inspect(lost)
        if self._is_daemon_away != (found is None):
            self._is_daemon_away, self._dirty = found is None, True
        if found is None:
            self._after(DAEMON_PAUSE, lambda: self._look_at_containers(lost))
            return
        for replica in lost:
            details = found.get(replica.container.name)
            try:
                reason = replica.look(None if details is None else details["State"])
            except OSError as error:
                replica.never_ran(f"{replica.program}: {error.strerror or error}")
                reason = reasons.NOT_STARTED
            if reason is not None:
                self._dirty = True
                if reasons.state_of(reason) == AppState.FAILED and self.stopping is None:
                    self._failed(replica, may_retry=reason != reasons.NOT_STARTED)
            elif not replica.is_lost:
                self._dirty = True
                if replica.was_stopped:  # it has not heard of that
                    self._signal([replica], "KILL" if replica.grace_is_over else "TERM")
        if any(replica.is_lost for replica in lost):
            self._after(CONTAINER_PAUSE, lambda: self._look_at_containers(lost))
        self._restart_if_ready()

    def _signal(self, group: Iterable[Replica], signum: str) -> None:
        """Signal the containers of a group; those that cannot get the signal now get it later."""
        attempts = [(replica, replica.started_at) for replica in signal_containers(group, signum)]

        def again() -> None:
            stopped = [
                replica
                for replica, started_at in attempts
                if replica.is_running and replica.started_at == started_at and not replica.is_lost
            ]
            self._signal([each for each in stopped if signum == "KILL" or not each.grace_is_over], signum)

        if attempts:
            self._after(CONTAINER_PAUSE, again)

    def _kill_leftovers(self, replica: Replica) -> None:
        if replica.has_leftovers:
            replica.kill()

    # ---- retries

    def _failed(self, replica: Replica, *, may_retry: bool = True) -> None:
        """Apply the retry policy of a replica's role to its failure."""
        if replica.name in self._restarting:
            return
        if may_retry and self._is_retried(replica):
            group = self._group(replica)
            self._restarting |= {member.name for member in group}
            self._stop(group, reasons.PEER_FAILED, replica.name)
        else:
            self._stop_peers(replica)

    def _is_retried(self, replica: Replica) -> bool:
        """Tell whether a failure leads to another attempt, and count it."""
        role = self.roles[replica.role]
        scope = {"REPLICA": replica.name, "ROLE": replica.role}.get(role.retry_policy, "")
        if self.plan.retry and (decided := self._by_class(replica, scope)) is not None:
            return decided
        used = self._retried.get(scope, 0)
        if used >= role.max_retries:
            return False
        self._retried[scope] = used + 1
        return True

    def _stop_peers(self, replica: Replica) -> None:
        """Stop the other replicas, if that is configured, when one has failed and is not restarted."""
        if self.plan.fail_fast:
            for other in (each for group in self._queue.groups for each in group if each.pid == 0):
                text = reasons.describe(reasons.PEER_FAILED, detail=replica.name)
                other.never_starts(reasons.PEER_FAILED, text)
            self._stop(self.replicas, reasons.PEER_FAILED, replica.name)

    def _group(self, replica: Replica) -> list[Replica]:
        """Return what is restarted when a replica has failed."""
        policy = self.roles[replica.role].retry_policy
        if policy == "REPLICA":
            return [replica]
        return [peer for peer in self.replicas if policy == "APPLICATION" or peer.role == replica.role]

    def _by_class(self, replica: Replica, scope: str) -> bool | None:
        """Decide by the class of a failure whether to try again; None if its class has no rule."""
        if self._retries is None:
            self._retries = RetryCounts(self.plan.retry)
        memory = replica.memory_mb if isinstance(replica, ContainerReplica) else 0
        decided = self._retries.decide(scope, replica.role, replica.to_json(), replica.log_end, memory)
        if decided is None:
            return None
        replica.note(decided.words)
        for member in containers_of(self._group(replica)):
            if member.role == replica.role:
                member.container.memory_mb = max(member.memory_mb, decided.memory_mb)
        return decided.again

    def _restart_if_ready(self) -> None:
        """Restart a group when all of it has ended."""
        waiting = [replica for replica in self.replicas if replica.name in self._restarting]
        if self.stopping is not None:
            self._restarting.clear()
        elif waiting and all(is_terminal(r.state) and not r.has_leftovers for r in waiting):
            self._restarting.clear()
            if self._is_continuing:
                self._is_continuing = False
                self._limit_time()
            for replica in waiting:
                replica.set_aside()
                self._start(replica)

    # ---- replicas that hang

    def _watch_for_hangs(self) -> None:
        """Check the replicas for hangs periodically, if that is configured."""
        if self.plan.hang_timeout and self._hangs is None:
            self._hangs = HangWatch(self.plan.hang_timeout)
            self._after(self._hangs.interval, self._check_for_hangs)

    def _check_for_hangs(self) -> None:
        if self._hangs is None or self.stopping is not None:
            return
        running = [replica for replica in self.replicas if replica.is_running and not replica.was_stopped]
        results = {r.name: self.job.base_dir(r.role, r.index) for r in running}
        for replica in self._hangs.check(running, results):
            replica.reason = ""
            replica.note("it shows activity again after it had hung")
            self._dirty = True
        self._after(self._hangs.interval, self._check_for_hangs)

    def _handle_hang(self, replica: Replica | None) -> None:
        """Mark a replica that hangs, or end the job, as is asked."""
        if replica is None or self._hangs is None:
            return
        seconds = f"{self._hangs.seconds:g}"
        stacks = "its log has the stacks" if self._hangs.has_stacks else "its stacks cannot be read"
        replica.reason = f"it hangs: no output for {seconds} s and no GPU activity; {stacks}"
        replica.note(f"it hung: no output for {seconds} s and no GPU activity; {stacks}")
        self._dirty = True
        if self.plan.on_hang == "stop":
            self._stop_all(reasons.HUNG, seconds)

    # ---- the time limit

    def _limit_time(self) -> None:
        """Begin to count the time of an attempt."""
        attempt = self.continuations
        if self.plan.timeout is not None:
            self._after(self.plan.timeout, lambda: self._end_of_time(attempt))

    def _end_of_time(self, attempt: int) -> None:
        """Stop what is running: permanently, or to restart it if the chain has attempts left."""
        if attempt != self.continuations or self.stopping is not None:
            return
        limit = f"{self.plan.timeout:g}"
        chain = self.plan.chain
        has_failed = any(r.state == AppState.FAILED and r.name not in self._restarting for r in self.replicas)
        running = [replica for replica in self.replicas if replica.is_running]
        if has_failed or self.continuations + 1 >= chain:
            self._stop_all(reasons.TIMEOUT, limit)
            return
        self.continuations += 1
        self._is_continuing = True
        self._restarting |= {replica.name for replica in running}
        self._stop(running, reasons.TO_BE_CONTINUED, limit)
        self._restart_if_ready()

    # ---- stopping

    def _cancel(self) -> None:
        if self.plan.lease is not None and not self._has_begun:
            with suppress(OSError):
                holder = lease.holder(self.plan.lease["place"])
                if holder not in ("", self.plan.lease["handle"]):
                    self._lose(holder)
        self._stop_all(reasons.CANCELLED, _by_whom(self.job.asked("cancel")))

    def _cancel_replicas(self) -> None:
        """Stop the replicas of an array that were cancelled; the others go on."""
        if not self.plan.array:  # there can be no request
            return
        for replica in self.replicas:
            if is_terminal(replica.state) and replica.name not in self._restarting:
                continue
            request = self.job.asked(f"cancel-{replica.role}-{replica.index}")
            if request is None:
                continue
            self._restarting.discard(replica.name)
            by = _by_whom(request)
            if replica.is_running:
                self._stop([replica], reasons.CANCELLED, by)
            else:
                replica.never_starts(reasons.CANCELLED, reasons.describe(reasons.CANCELLED, detail=by))
                self._dirty = True

    def _stop_all(self, reason: str, detail: str, signum: int = 0) -> None:
        if self.stopping is not None:
            return
        name = processes.signal_name(signum) if signum else ""
        self.stopping = (reason, reasons.describe(reason, signal=name, detail=detail))
        self._restarting.clear()
        for replica in self.replicas:
            if replica.pid == 0 and not is_terminal(replica.state):
                replica.never_starts(reason, self.stopping[1])
        self._stop(self.replicas, reason, detail)

    def _stop(self, group: Iterable[Replica], reason: str, detail: str) -> None:
        """Send SIGTERM to all that run, once, and SIGKILL after the grace period to what is left of them."""
        running = [replica for replica in group if replica.is_running and not replica.was_stopped]
        for replica in running:
            replica.stop(reason, detail)
        self._signal(running, "TERM")
        attempts = [(replica, replica.started_at) for replica in running]

        def kill() -> None:
            for replica, started_at in attempts:
                if replica.started_at == started_at:
                    replica.grace_is_over = True
                    if replica.is_running or replica.has_leftovers:
                        replica.kill()
            present = [each for each, started_at in attempts if each.started_at == started_at]
            self._signal([replica for replica in present if replica.is_running], "KILL")
            self._end_orphans()

        if running:
            self._after(self.grace, kill)
        self._dirty = True

    def _after(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._deadlines, (time.monotonic() + seconds, id(action), action))  # type: ignore[misc]

    # ---- state

    def _write_state_if_due(self) -> None:
        now = time.monotonic()
        if not self._dirty or now - self._last_write < WRITE_INTERVAL:
            return
        self._write_state()

    def _write_state(self) -> None:
        self._last_write = time.monotonic()
        try:
            self.job.write_state(self._document(self._present_state()))
            self._dirty = False
        except OSError:  # a full disk, for example: it is tried again
            pass

    def _present_state(self) -> AppState:
        is_waiting = self._waits_for and not self._has_begun
        return AppState.PENDING if is_waiting else AppState.RUNNING

    def _document(self, state: AppState) -> dict[str, Any]:
        final = is_terminal(state)
        restarts = [self.continuations, *self._retried.values(), *(each.restarts for each in self.replicas)]
        return {
            "app_id": self.plan.app_id,
            "state": state.name,
            "reason": self.stopping[0] if self.stopping else "",
            "msg": self._message() if final else self._waits_for or self._daemon_words(),
            "num_restarts": max(restarts),
            "started_at": self.started_at,
            "ended_at": time.time() if final else None,
            **machine(),
            "supervisor": myself(),
            "roles": [
                {"role": name, "replicas": [r.to_json() for r in self.replicas if r.role == name]}
                for name in self.roles
            ],
        }

    def _daemon_words(self) -> str:
        away = "the Docker daemon does not answer; how the containers fare is not known until it does"
        return away if self._is_daemon_away else ""

    def _message(self) -> str:
        """Return the reason why the job ended."""
        if self.stopping is not None:
            return self.stopping[1]
        state = self._final_state()
        if state == AppState.SUCCEEDED:
            return ""
        such = [replica for replica in self.replicas if replica.state == state]
        first = min(such, key=lambda replica: replica.ended_at or 0.0)
        others = f" (and {len(such) - 1} more {state.name.lower()})" if len(such) > 1 else ""
        return f"{first.name}: {first.reason}{others}"


def _by_whom(request: dict[str, Any] | None) -> str:
    by = (request or {}).get("by", "")
    return f" by {by}" if by else ""


def ended_children(which: int) -> Iterator[tuple[int, int]]:
    """Yield pid and status of the children that have ended, of those that waitpid(2) takes a number for."""
    while True:
        try:
            pid, status = os.waitpid(which, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _allow_open_files(replicas: int, path: str) -> None:
    """Raise the limit of open files as far as needed and allowed.

    Raises:
        OSError: with ``path``, if that is not far enough for the logs of all replicas.
    """
    count = replicas * ReplicaRecorder.FILES + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < replicas * ReplicaRecorder.LOG_FILES + OTHER_FILES:
        raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (ulimit -n)", path)
    if soft != resource.RLIM_INFINITY and soft < count:
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))

"""Watching hosts while they run: one thread samples what they use, and checks whether they hang."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from shunter.errors import ShunterError
from shunter.schedulers.sagemaker_local_scheduler.hosts.container_host import ContainerHost
from shunter.schedulers.sagemaker_local_scheduler.hosts.host import ProcessHost, Running
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import Tree
from shunter.schedulers.supervisor.hang_watch import HangWatch
from shunter.schedulers.supervisor.process_plan import ReplicaPlan
from shunter.schedulers.supervisor.replica import Replica
from shunter.schedulers.supervisor.usage_sampler import UsageSampler

#: Seconds until what hosts use is sampled for the first time.
FIRST_SAMPLE = 2.0
#: Seconds between two checks whether a program that writes stacks has ended.
REAPING = 0.2
_RESULTS = ("output", "model", "checkpoints")


class WatchedHost(Replica):
    """A host as it is now, as the sampler and `HangWatch` see replicas; the pid of a container is 0.

    Args:
        number: its place among the hosts.
        host: what runs it.
        log: its log.
        started_at: when it was started.
        restarts: how often the job was restarted before.
        results: directories that it writes results to.
    """

    def __init__(
        self, number: int, host: Running, log: str, started_at: float, restarts: int, results: list[str]
    ) -> None:
        env = host.environ if isinstance(host, ProcessHost) else dict(os.environ)
        super().__init__("", number, ReplicaPlan("", [], {}, ""), env)
        self.host, self.log, self.results = host, log, results
        self.pid = host.pid if isinstance(host, ProcessHost) else 0
        self.started_at, self.restarts = started_at, restarts
        self._runs = host.is_running if isinstance(host, ContainerHost) else bool(self.pid)

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.plan.name

    @property
    def is_running(self) -> bool:
        """Whether its program runs."""
        return self._runs

    def stack_program(self, headline: str, mode: str, program: list[str]) -> list[str]:
        """Return the command that examines it; see `Replica.stack_program`."""
        if isinstance(self.host, ContainerHost):
            return self.host.stack_program(headline, mode, program)
        return super().stack_program(headline, mode, program)

    @property
    def log_paths(self) -> tuple[str, str]:
        """Its log, for stdout and for stderr."""
        return self.log, self.log


class HostHangWatch(HangWatch):
    """Finds hosts that hang, containers too."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)

    def last_sign(self, replica: Replica, results: str) -> float:
        """Return when a host was last active: wrote output, or a file of its results."""
        last = super().last_sign(replica, results)
        for folder in replica.results if isinstance(replica, WatchedHost) else ():
            last = max(last, super().last_sign(replica, folder))
        return last

    def reap(self) -> Replica | None:
        """Take note of the end of a program; returns the host if it turns out to hang."""
        for pid in list(self._programs):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return self.program_ended(pid, os.waitstatus_to_exitcode(status))
        return None

    @property
    def is_busy(self) -> bool:
        """Whether programs run whose end is to be noted."""
        return bool(self._programs)


class HostWatch:
    """Looks at the hosts of an attempt.

    Args:
        usage_path: the file for the samples.
        hosts: all hosts, in order.
        logs: their logs.
        trees: their files, by name.
        restarts: how often the job was restarted before.
        hang_timeout: seconds without activity after which a host counts as hung; None for no check.
        found: called with the name of a host and what is said of it when it hangs, and with "" when it shows
            activity again.
    """

    def __init__(
        self,
        usage_path: str,
        hosts: Sequence[Running],
        logs: Sequence[str],
        trees: dict[str, Tree],
        restarts: int,
        hang_timeout: float | None,
        found: Callable[[str, str], None],
    ) -> None:
        self._usage_path = usage_path
        self._hosts, self._logs, self._trees = list(hosts), list(logs), trees
        self._restarts = restarts
        self._hangs = None if hang_timeout is None else HostHangWatch(hang_timeout)
        self._found = found
        self._started_at = time.time()
        self._sampler: UsageSampler | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-hosts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        sample_at = time.monotonic() + FIRST_SAMPLE
        check_at = float("inf") if self._hangs is None else time.monotonic() + self._hangs.interval
        while True:
            pause = min(sample_at, check_at) - time.monotonic()
            if self._hangs is not None and self._hangs.is_busy:
                pause = min(pause, REAPING)
            if self._closing.wait(max(0.0, pause)):
                return
            try:
                if time.monotonic() >= sample_at:
                    sample_at = time.monotonic() + self._sample()
                if self._hangs is not None:
                    self._note(self._hangs.reap())
                    if time.monotonic() >= check_at:
                        self._check(self._hangs)
                        check_at = time.monotonic() + self._hangs.interval
            except (OSError, ShunterError):  # the job does not depend on it
                pass

    def _seen(self) -> list[WatchedHost]:
        """Return all hosts as they are now."""
        found = []
        for number, (host, log) in enumerate(zip(self._hosts, self._logs, strict=True)):
            tree = self._trees[host.plan.name]
            results = [folder for name in _RESULTS if os.path.isdir(folder := tree.part(name))]
            found.append(WatchedHost(number, host, log, self._started_at, self._restarts, results))
        return found

    def _sample(self) -> float:
        """Take a sample; returns in how many seconds to take the next one."""
        if self._sampler is None:
            self._sampler = UsageSampler(self._usage_path)
        seen = self._seen()
        measured = [
            each.host.usage(each.index, each.restarts)
            for each in seen
            if isinstance(each.host, ContainerHost) and each.is_running
        ]
        processes = [each for each in seen if each.pid]
        return self._sampler.sample(seen if processes else [], filter(None, measured))

    def _check(self, hangs: HostHangWatch) -> None:
        running = [each for each in self._seen() if each.is_running]
        for host in hangs.check(running, {}):
            self._found(host.name, "")

    def _note(self, host: Replica | None) -> None:
        if host is None or self._hangs is None or self._closing.is_set():
            return
        stacks = "its log has the stacks" if self._hangs.has_stacks else "its stacks cannot be read"
        self._found(host.name, f"no output for {self._hangs.seconds:g} s and no GPU activity; {stacks}")

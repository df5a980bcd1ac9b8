"""Detects hung replicas: no output, no new results and no GPU activity for some time.

The supervisor calls `check` several times within that time. Slower work than checking files is done by the
program `stack_dump`; the supervisor reports its end to `program_ended`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from shunter._toolkit import hung_program, stack_dump
from shunter.schedulers.supervisor.replica import Replica

#: Without this device there is no NVIDIA GPU whose activity could be checked.
_GPU_DRIVER = "/dev/nvidiactl"
#: The directories of results that a program shows activity by, below its base directory.
RESULTS = ("output", "model", "checkpoints")


class HangWatch:
    """Watches the replicas of one job.

    Args:
        seconds: how long a replica may show no activity before it counts as hung.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        #: By name of a replica: the time of its last activity, other than times of files.
        self._alive: dict[str, float] = {}
        self._programs: dict[int, tuple[Replica, str, float]] = {}
        self.hung: set[str] = set()
        #: Whether the log of the hung replica that was found last contains its stacks.
        self.has_stacks = False

    @property
    def programs(self) -> list[int]:
        """The pids of the programs that examine replicas now."""
        return list(self._programs)

    @property
    def interval(self) -> float:
        """Seconds until the next check."""
        return self.seconds / hung_program.LOOKS

    def check(self, replicas: Iterable[Replica], results: dict[str, str]) -> list[Replica]:
        """Check running replicas; returns those that had hung and are active again.

        ``results`` has the directory below which a replica writes results, by the replica's name.
        """
        now = time.time()
        back = []
        busy = {replica.name for replica, _, _ in self._programs.values()}
        for replica in replicas:
            silent = now - self.last_sign(replica, results.get(replica.name, ""))
            if replica.name in self.hung:
                if silent < self.seconds:
                    self.hung.discard(replica.name)
                    back.append(replica)
            elif replica.name in busy:
                continue
            elif silent >= self.seconds:
                self._start(replica, stack_dump.DUMP)
            elif silent >= self.seconds / 2:
                self._start(replica, stack_dump.GPU)
        return back

    def last_sign(self, replica: Replica, results: str) -> float:
        """Return when a replica was last active, in seconds since the epoch."""
        times = [replica.started_at or 0.0, self._alive.get(replica.name, 0.0)]
        ignored = self._alive.get(f"{replica.name} dumped", 0.0)
        for path in replica.log_paths:
            changed = hung_program.changed(path)
            if changed > ignored:  # otherwise the stacks are the last thing that was written
                times.append(changed)
        times += [hung_program.newest_below(os.path.join(results, name)) for name in RESULTS if results]
        return max(times)

    def program_ended(self, pid: int, code: int) -> Replica | None:
        """Take note of a program's end; returns the replica if it turns out to hang."""
        found = self._programs.pop(pid, None)
        if found is None:
            return None
        replica, mode, started_at = found
        if replica.started_at != started_at or not replica.is_running:
            return None
        if code == stack_dump.GPU_AT_WORK:
            self._alive[replica.name] = time.time()
            return None
        if mode != stack_dump.DUMP:
            return None
        self.has_stacks = code == stack_dump.DUMPED
        self._alive[f"{replica.name} dumped"] = max(map(hung_program.changed, replica.log_paths))
        self.hung.add(replica.name)
        return replica

    def _start(self, replica: Replica, mode: str) -> None:
        if mode == stack_dump.GPU and not os.path.exists(_GPU_DRIVER):
            return
        headline = f"no output for {self.seconds:g} s and no GPU activity"
        program = [sys.executable, "-I", "-S", os.path.abspath(stack_dump.__file__)]
        argv = replica.stack_program(headline, mode, program)
        try:
            pid = os.posix_spawn(argv[0], argv, replica.env)
        except OSError:
            return
        assert replica.started_at is not None
        self._programs[pid] = (replica, mode, replica.started_at)

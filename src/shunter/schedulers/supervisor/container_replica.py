"""Replicas that are containers: ``docker start --attach`` is the process that the supervisor watches.

That command copies the container's output to the replica's log files, and ends when the container does. How
the container ended is asked of the daemon. If the command ends while the container runs (the daemon was
restarted, or somebody killed the command), `resume_log` takes its place: it copies on where it stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from shunter.docker.command import advice, is_absent, is_unreachable, tidy
from shunter.schedulers.supervisor import reasons, resume_log
from shunter.schedulers.supervisor.container_stacks import stack_command
from shunter.schedulers.supervisor.process_plan import ContainerPlan, ReplicaPlan
from shunter.schedulers.supervisor.replica import Replica

#: How long the daemon may take to answer. The supervisor does nothing else meanwhile.
DAEMON_SECONDS = 30.0
#: How often the daemon is asked again for the reason of a SIGKILL: it learns of a container's end and of a
#: lack of memory by two events, in either order.
MEMORY_LOOKS = 5
#: How often a container is started that the daemon has neither started nor refused to start.
MOST_STARTS = 3
#: What ``docker-init`` and shells end with when they cannot run a program.
_EXEC_FAILURES = {126: "cannot be executed", 127: "is not in the image"}
#: Exit codes that are 128 plus the number of a signal that usually ends a program.
_SIGNALS = {
    129: "SIGHUP",
    130: "SIGINT",
    131: "SIGQUIT",
    132: "SIGILL",
    133: "SIGTRAP",
    134: "SIGABRT",
    135: "SIGBUS",
    136: "SIGFPE",
    137: "SIGKILL",
    138: "SIGUSR1",
    139: "SIGSEGV",
    140: "SIGUSR2",
    141: "SIGPIPE",
    142: "SIGALRM",
    143: "SIGTERM",
    152: "SIGXCPU",
    153: "SIGXFSZ",
}
_KILLED = 137


class ContainerReplica(Replica):
    """A replica that is a container, which exists already.

    Args:
        role: name of its role.
        index: its index in the role.
        plan: the command that starts it, and the container.
        env: variables of the command.
    """

    def __init__(self, role: str, index: int, plan: ReplicaPlan, env: Mapping[str, str]) -> None:
        super().__init__(role, index, plan, env)
        assert plan.container is not None
        self.container: ContainerPlan = plan.container
        self.gpus = plan.container.gpus
        #: The command that copied its output has ended, and how the container fares is not known yet.
        self.is_lost = False
        #: The daemon did not answer since that command ended, which may have missed the end of the log.
        self.was_unseen = False
        self._memory_mb = plan.container.memory_mb
        self._looks = 0

    @property
    def process_pid(self) -> int:
        """0: its processes are not this machine's as far as is known."""
        return 0

    @property
    def memory_mb(self) -> int:
        """Its limit of memory in MB, 0 without one."""
        return self.container.memory_mb

    def start(self) -> None:
        """Start an attempt.

        Raises:
            OSError: the command cannot be executed.
        """
        if self.memory_mb > self._memory_mb:
            size = f"{self.memory_mb}m"
            run_docker(self, "update", "--memory", size, "--memory-swap", size, self.container.name)
            self._memory_mb = self.memory_mb
        self.is_lost, self.was_unseen, self._looks = False, False, 0
        super().start()

    def terminate(self) -> None:
        """Do nothing: the supervisor signals containers together, by `signal_containers`."""

    def kill(self) -> None:
        """Do nothing, likewise."""

    def resume(self) -> None:
        """Copy its output again, from where the command before has stopped.

        Raises:
            OSError: the program cannot be executed.
        """
        self.is_lost, self.was_unseen, self._looks = False, False, 0
        program = os.path.abspath(resume_log.__file__)
        argv = [sys.executable, "-I", "-S", program, self.program, self.container.name, *self.log_paths]
        self.spawn(sys.executable, argv, self.env, (os.devnull, os.devnull))

    def stack_program(self, headline: str, mode: str, program: list[str]) -> list[str]:
        """Return the command that examines it; see `Replica.stack_program`."""
        return stack_command(self.program, self.container.name, headline, mode, program)

    def look(self, state: dict[str, Any] | None) -> str | None:
        """Take note of the container's state after the command has ended.

        Args:
            state: what ``docker inspect`` calls its ``State``; None if there is no such container any more.

        Returns:
            the reason why the attempt ended; None if it goes on, or is not clear yet (``is_lost``).
        """
        self._looks += 1
        if state is None:
            return self._ends(reasons.REMOVED)
        status, code = state.get("Status"), int(state.get("ExitCode") or 0)
        if status in ("running", "paused", "restarting", "removing"):
            self.resume()
            return None
        error = str(state.get("Error") or "")
        if status == "created" and not error and not self.was_stopped:
            if self._looks > MOST_STARTS:
                return self._ends(reasons.NOT_STARTED, tidy("\n".join(self.log_end()[-3:])))
            self.is_lost = False
            self.spawn(self.program, self.argv, self.env, self.log_paths)
            return None  # the daemon went away before it had started it
        if status == "exited" and self.was_unseen:
            self.resume()
            return None
        may_lack_memory = code == _KILLED and self.memory_mb > 0 and not state.get("OOMKilled")
        if may_lack_memory and not self.was_stopped and self._looks <= MEMORY_LOOKS:
            self.is_lost = True
            return None
        self.exit_code = None if status == "created" else code
        if self.ended_by is not None:
            return self._ends(*self.ended_by)
        if error and (code or status == "created"):
            text = tidy(error)
            return self._ends(reasons.NOT_STARTED, ". ".join(filter(None, [text, advice(text)])))
        if status == "dead":
            return self._ends(reasons.DEAD)
        if code == 0:
            return self._ends(reasons.SUCCEEDED)
        if state.get("OOMKilled"):
            return self._ends(reasons.OUT_OF_MEMORY)
        if code in _EXEC_FAILURES:
            return self._ends(reasons.NOT_EXECUTED, _EXEC_FAILURES[code])
        return self._ends(reasons.EXIT_LIKE_SIGNAL if code in _SIGNALS else reasons.FAILED)

    def _ends(self, reason: str, detail: str = "") -> str:
        signum = _SIGNALS.get(self.exit_code or 0, "")
        self.is_lost = False
        self.end_with(
            reason, reasons.describe(reason, code=self.exit_code or 0, signal=signum, detail=detail)
        )
        return reason


def replica_of(role: str, index: int, plan: ReplicaPlan, env: Mapping[str, str]) -> Replica:
    """Return the replica that a plan describes: a process, or a container."""
    return (Replica if plan.container is None else ContainerReplica)(role, index, plan, env)


def containers_of(replicas: Iterable[Replica]) -> list[ContainerReplica]:
    """Return the replicas that are containers."""
    return [replica for replica in replicas if isinstance(replica, ContainerReplica)]


def run_docker(replica: ContainerReplica, *words: str) -> subprocess.CompletedProcess[str] | None:
    """Run the command that also starts the replica, with other words; None if the daemon does not answer."""
    try:
        done = subprocess.run(
            [replica.program, *words],
            env=replica.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DAEMON_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode and is_unreachable(done.stderr) else done


def inspect(replicas: list[ContainerReplica]) -> dict[str, dict[str, Any]] | None:
    """Return what the daemon knows of containers by name, without those that are gone.

    None if it does not say: a container that cannot be seen has not ended.
    """
    names = [replica.container.name for replica in replicas]
    done = run_docker(replicas[0], "container", "inspect", *names)
    if done is None or (done.returncode and not is_absent(done.stderr)):
        return None
    try:
        return {found["Name"].lstrip("/"): found for found in json.loads(done.stdout or "[]")}
    except ValueError:
        return None


def signal_containers(replicas: Iterable[Replica], signum: str) -> list[ContainerReplica]:
    """Send a signal to the containers among these replicas; returns those that could not get it now.

    The command may just be starting one of them, or the daemon be away.
    """
    containers = containers_of(replicas)
    if not containers:
        return []
    names = [replica.container.name for replica in containers]
    done = run_docker(containers[0], "kill", "--signal", signum, *names)
    if done is None:
        return containers
    sent = set(done.stdout.split())
    return [replica for replica in containers if replica.container.name not in sent]

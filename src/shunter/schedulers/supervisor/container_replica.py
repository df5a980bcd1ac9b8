"""Replicas that are containers: ``docker start --attach`` is the process that the supervisor watches.

That command copies the container's output to the replica's log files, and ends when the container does, with
its exit code. How the container ended is asked of the daemon. If the command ended otherwise (the daemon was
restarted, or somebody killed the command), `resume_log` takes its place: it copies on where it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from shunter import system
from shunter.docker.command import DockerCommand, advice, tidy
from shunter.errors import ShunterError
from shunter.schedulers.supervisor import reasons, resume_log
from shunter.schedulers.supervisor.container_stacks import stack_command
from shunter.schedulers.supervisor.process_plan import ContainerPlan, ReplicaPlan
from shunter.schedulers.supervisor.replica import Replica, is_full

#: How long the daemon may take to answer. The supervisor does nothing else meanwhile.
DAEMON_SECONDS = 30.0
#: How often the daemon is asked again for the reason of a SIGKILL: it learns of a container's end and of a
#: lack of memory by two events, in either order.
MEMORY_LOOKS = 5
#: How often `resume_log` may fail after a container's end, on a full disk for example.
MOST_FAILURES = 5
#: What ``docker start --attach`` ends with when it loses the daemon, before the container has ended.
LOST = 125
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
_RUNNING = ("running", "paused", "restarting")


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
        self.docker = DockerCommand(self.env, self.program)
        #: The command that copied its output has ended, and how the container fares is not known yet.
        self.is_lost = False
        self._given_mb = plan.container.memory_mb
        #: The exit code of that command, and whether it was `resume_log`, and how often that has failed.
        self._command_code = 0
        self._is_resumed = False
        self._failures = 0
        self._looks = 0
        #: Its first process on this machine; 0 while that is not known.
        self._first_pid = 0

    @property
    def memory_mb(self) -> int:
        """Its limit of memory in MB, 0 without one."""
        return self.container.memory_mb

    def may_run(self) -> bool:
        """Whether its program runs, or may run: True before its start. Any thread may ask.

        Its first process is looked at: the command that is attached may end much later.
        """
        if not super().may_run() or self.is_lost:
            return False
        if not self._first_pid and self.pid:
            try:
                details = self.docker.inspect("container", self.container.name, seconds=DAEMON_SECONDS)
            except (ShunterError, OSError, ValueError):
                return True
            state = details[0]["State"] if details else {}
            if state.get("Status") == "created":
                return True
            self._first_pid = state.get("Pid") or 0
            if not self._first_pid:
                return False
        return not self._first_pid or system.process_facts(self._first_pid) is not None

    def start(self) -> None:
        """Start an attempt.

        Raises:
            OSError: the command cannot be executed.
        """
        if self.memory_mb > self._given_mb:
            size = f"{self.memory_mb}m"
            with suppress(ShunterError):
                self.docker.run("update", "--memory", size, "--memory-swap", size, self.container.name)
            self._given_mb = self.memory_mb
        self._is_resumed, self._failures, self._looks = False, 0, 0
        self._first_pid = 0
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
        self.is_lost, self._is_resumed, self._looks = False, True, 0
        argv = resume_log.command(self.program, self.container.name, *self.log_paths)
        self.spawn(argv[0], argv, self.env, (os.devnull, os.devnull))

    def stack_program(self, headline: str, mode: str, program: list[str]) -> list[str]:
        """Return the command that examines it; see `Replica.stack_program`."""
        return stack_command(self.program, self.container.name, headline, mode, program)

    def command_ended(self, code: int) -> None:
        """Take note that the command that copied its output has ended; `look` says what that means."""
        self.is_lost, self._command_code = True, code
        self._failures += self._is_resumed and code != 0

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
        if status == "removing":
            return None  # its log cannot be read any more
        if status in _RUNNING:
            self._failures = 0
        lacks_lines = not self._has_whole_log(code) and self._failures < MOST_FAILURES
        if status in _RUNNING or (status == "exited" and lacks_lines):
            self.resume()
            return None
        error = str(state.get("Error") or "")
        if status == "created" and not error and not self.was_stopped:
            if self._looks > MOST_STARTS:
                return self._ends(reasons.NOT_STARTED, tidy("\n".join(self.log_end()[-3:])))
            self.is_lost = False
            self.spawn(self.program, self.argv, self.env, self.outputs)
            return None  # the daemon went away before it had started it
        may_lack_memory = code == _KILLED and self.memory_mb > 0 and not state.get("OOMKilled")
        if may_lack_memory and not self.was_stopped and self._looks <= MEMORY_LOOKS:
            self.is_lost = True
            return None
        self.exit_code = None if status == "created" else code
        self._ended_by_signal = code in _SIGNALS  # or it has exited with that code: the daemon does not say
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

    def _has_whole_log(self, code: int) -> bool:
        """Tell whether the command has copied all that a container has written that ended with a code."""
        if self._is_resumed:
            return not self._command_code
        # on a full disk the command ends as usual, whatever it could not write
        return self._command_code == code != LOST and not is_full(self.log_dir)

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


def inspect(replicas: list[ContainerReplica]) -> dict[str, dict[str, Any]] | None:
    """Return what the daemon knows of containers by name, without those that are gone.

    None if it does not say: a container that cannot be seen has not ended.
    """
    names = [replica.container.name for replica in replicas]
    try:
        found = replicas[0].docker.inspect("container", *names, seconds=DAEMON_SECONDS)
    except (ShunterError, OSError, ValueError):
        return None
    return {details["Name"].lstrip("/"): details for details in found}


def signal_containers(replicas: Iterable[Replica], signum: str) -> list[ContainerReplica]:
    """Send a signal to the containers among these replicas; returns those that could not get it now.

    The command may just be starting one of them, or the daemon be away.
    """
    containers = containers_of(replicas)
    if not containers:
        return []
    names = [replica.container.name for replica in containers]
    try:
        done = containers[0].docker.call("kill", "--signal", signum, *names, seconds=DAEMON_SECONDS)
    except (ShunterError, OSError):
        return containers
    sent = set(done.stdout.split())
    return [replica for replica in containers if replica.container.name not in sent]
